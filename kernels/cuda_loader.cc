// The CUDA backend in a build without it. libweft.so looks for a library of the backend,
// libweft_cuda.so in its own folder, when a driver is there. Programs that link the rooms have
// none.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "weft/kernels/cuda_library.h"

namespace weft {
namespace {

constexpr const char* kVariable = "WEFT_CUDA_BACKEND";

struct Opened {
  void* library = nullptr;
  const Backend* backend = nullptr;
  std::string missing;  // why there is no backend
};

// The file this code was linked into; empty if it is not libweft.so.
std::filesystem::path libweft() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&cuda_backend), &info) || !info.dli_fname) return {};
  const std::filesystem::path file = info.dli_fname;
  return file.filename().string().starts_with("libweft.so") ? file : std::filesystem::path();
}

// "0.1" of "0.1.0": the part of the version that the names of the libraries have.
std::string abi() {
  const std::string_view version = kVersion;
  return std::string(version.substr(0, version.rfind('.')));
}

Opened open_library() {
  Opened opened;
  const std::filesystem::path mine = libweft();
  if (mine.empty()) {
    opened.missing = "this build has no CUDA";
    return opened;
  }
  const char* const asked = std::getenv(kVariable);
  const bool given = asked && *asked;
  if (!given && !dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    opened.missing = "there is no CUDA driver (libcuda.so.1)";
    return opened;
  }
  const std::string file =
      given ? asked : (mine.parent_path() / ("libweft_cuda.so." + abi())).string();
  const std::string name = given ? detail::concat(kVariable, "=", file) : file;
  opened.library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened.library) {
    opened.missing = detail::concat("the CUDA backend cannot be opened: ", dlerror(),
                                    given ? detail::concat(" (", kVariable, ")") : "");
    return opened;
  }
  const auto find = [&](const char* symbol) { return dlsym(opened.library, symbol); };
  const auto stamp = reinterpret_cast<decltype(&weft_cuda_stamp)>(find("weft_cuda_stamp"));
  const auto backend = reinterpret_cast<decltype(&weft_cuda_backend)>(find("weft_cuda_backend"));
  if (!stamp || !backend) {
    opened.missing = detail::concat(name, " is not a CUDA backend of weft");
  } else if (stamp() != cuda_library_stamp()) {
    opened.missing = detail::concat(name, " is of another weft: ", stamp(), ", this one is ",
                                    cuda_library_stamp());
  } else {
    opened.backend = backend();
    return opened;
  }
  opened.library = nullptr;  // it stays open: what it started may run on
  return opened;
}

// Without a lock, since opening takes the dynamic linker's: a library that another thread opens may
// ask for CUDA in its static objects. Opening twice is harmless, and the first result counts.
const Opened& opened() {
  static constinit std::atomic<const Opened*> result{nullptr};
  const Opened* known = result.load(std::memory_order_acquire);
  if (!known) {
    const auto* const mine = new Opened(open_library());  // alive while statics are destroyed
    if (result.compare_exchange_strong(known, mine, std::memory_order_acq_rel)) return *mine;
    delete mine;
  }
  return *known;
}

// As early as the CPU's (kernels/cpu/runtime.cc).
[[gnu::constructor(101)]] void register_cuda() {
  register_runtime_finder(DeviceType::cuda, [](std::string& missing) -> Runtime* {
    missing = opened().missing;
    const Backend* const found = opened().backend;
    return found ? found->runtime : nullptr;
  });
}

}  // namespace

const Backend* cuda_backend() { return opened().backend; }

void* cuda_library_symbol(const char* name) {
  return opened().library ? dlsym(opened().library, name) : nullptr;
}

}  // namespace weft
