// The CUDA backend for builds without it. libweft.so looks for the backend's library,
// libweft_cuda.so in its own folder, if there is a driver. Programs that link the rooms themselves
// have no such library.
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

// The path of libweft.so if this code is linked into it; else empty.
std::filesystem::path libweft() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&cuda_backend), &info) || !info.dli_fname) return {};
  const std::filesystem::path file = info.dli_fname;
  return file.filename().string().starts_with("libweft.so") ? file : std::filesystem::path();
}

// "0.1" for "0.1.0": the part of the version that is in the names of the libraries.
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
  opened.library = nullptr;  // it is never closed: threads that it started may still run
  return opened;
}

// Takes no lock, since opening takes the dynamic linker's: static objects of a library that another
// thread opens may need CUDA. Opening twice is harmless, and the first result is kept.
const Opened& opened() {
  static constinit std::atomic<const Opened*> result{nullptr};
  const Opened* known = result.load(std::memory_order_acquire);
  if (!known) {
    const auto* const mine = new Opened(open_library());  // never destroyed, for static objects
    if (result.compare_exchange_strong(known, mine, std::memory_order_acq_rel)) return *mine;
    delete mine;
  }
  return *known;
}

// Registers as early as the CPU backend (kernels/cpu/runtime.cc).
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
