#include "weft/tests/examples/heap_by_caller.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sstream>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEFT_SANITIZED 1
#endif
#endif
#ifndef WEFT_SANITIZED
#define WEFT_SANITIZED 0
#endif

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace weft::testing {
namespace {

constexpr int kFrames = 24;
constexpr int kRecords = 4096;

struct Record {
  void* frames[kFrames];
  int depth;
};

constinit std::atomic<bool> armed{false};
constinit std::atomic<int> used{0};
Record records[kRecords];
constinit thread_local bool inside = false;  // backtrace itself may allocate

// Unused under a sanitizer, which keeps its own malloc.
[[maybe_unused]] void record() {
  if (!armed.load(std::memory_order_acquire) || inside) return;
  inside = true;
  const int at = used.fetch_add(1);
  if (at < kRecords) records[at].depth = backtrace(records[at].frames, kFrames);
  inside = false;
}

std::string file_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool is_runtime(const std::string& name) {
  for (const char* start : {"libc.so", "libc-", "libstdc++", "libgcc", "ld-linux", "libm.so"})
    if (name.rfind(start, 0) == 0) return true;
  return false;
}

// The nearest caller outside this file and the run-time libraries.
std::string caller(const Record& record) {
  for (int i = 2; i < record.depth; ++i) {  // past record() and the interposed function
    Dl_info info{};
    if (!dladdr(record.frames[i], &info) || !info.dli_fname) continue;
    const std::string name = file_name(info.dli_fname);
    if (is_runtime(name)) continue;
    const bool foreign = name.rfind("lib", 0) == 0 &&
                         std::string(info.dli_fname).find("bazel") == std::string::npos &&
                         std::string(info.dli_fname).find("runfiles") == std::string::npos;
    return foreign ? name : "weft";
  }
  return "unknown";
}

}  // namespace

bool HeapByCaller::available() { return !WEFT_SANITIZED; }

HeapByCaller::HeapByCaller() {
  void* frames[2];
  backtrace(frames, 2);  // loads libgcc now, not while counting
  used = 0;
  armed.store(true, std::memory_order_release);
}

HeapByCaller::~HeapByCaller() { armed.store(false); }

std::map<std::string, std::int64_t> HeapByCaller::counts() const {
  armed.store(false);
  std::map<std::string, std::int64_t> result;
  const int n = std::min(used.load(), kRecords);
  for (int i = 0; i < n; ++i) ++result[caller(records[i])];
  if (used.load() > kRecords) result["not attributed"] = used.load() - kRecords;
  return result;
}

std::string HeapByCaller::example() const {
  const int n = std::min(used.load(), kRecords);
  for (int i = 0; i < n; ++i) {
    if (caller(records[i]) != "weft") continue;
    std::ostringstream out;
    char** names = backtrace_symbols(records[i].frames, records[i].depth);
    for (int f = 2; f < records[i].depth; ++f) out << "\n  " << names[f];
    return out.str();
  }
  return "";
}

}  // namespace weft::testing

#if !WEFT_SANITIZED
extern "C" {

void* malloc(std::size_t bytes) {
  weft::testing::record();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t n, std::size_t bytes) {
  weft::testing::record();
  return __libc_calloc(n, bytes);
}
void* realloc(void* p, std::size_t bytes) {
  weft::testing::record();
  return __libc_realloc(p, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  weft::testing::record();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  weft::testing::record();
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}
}
#endif
