#include "emulator/emulator.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/ucontext.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

namespace emulator {

namespace {

constinit thread_local int depth = 0;  // number of nested guards

std::recursive_mutex& mutex() {
  static auto& made = *new std::recursive_mutex;
  return made;
}

const char* text(const char* name, const char* otherwise) {
  const char* const found = std::getenv(name);
  return found && *found ? found : otherwise;
}

int number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end || value < 0 || value > 1 << 20) fault("%s=%s is no number it can be", name, text);
  return static_cast<int>(value);
}

/// Reads "9.0,7.5"; the last value counts for all further devices.
std::array<std::array<int, 2>, kMostDevices> capabilities_of(const char* list) {
  std::array<std::array<int, 2>, kMostDevices> found{};
  std::array<int, 2> last{};
  const char* at = list;
  for (auto& capability : found) {
    if (*at) {
      int length = 0;
      if (std::sscanf(at, "%d.%1d%n", &last[0], &last[1], &length) != 2 ||
          (at[length] && at[length] != ',')) {
        fault("WEFT_EMULATED_CAPABILITIES=%s: numbers such as 9.0,7.5", list);
      }
      at += length + (at[length] == ',');
    }
    capability = last;
  }
  return found;
}

void say(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

// Prints "f() at file:line" of an address on stderr. The process may be in any state, so this
// allocates no memory.
void print_place(const void* address) {
  Dl_info info{};
  if (!dladdr(address, &info) || !info.dli_fname) return;
  // The address of the call, not of the instruction after it.
  const auto offset =
      static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase) - 1;
  char text[32];
  std::snprintf(text, sizeof text, "%#tx", offset);
  const pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execlp("addr2line", "addr2line", "-Cfpe", info.dli_fname, text, nullptr);
    say(info.dli_fname);
    say("\n");
    _exit(1);
  }
  if (child > 0) waitpid(child, nullptr, 0);
}

void print_stack() {
  void* frames[24];
  const int count = backtrace(frames, 24);
  for (int i = 0; i < count; ++i) {
    say("  ");
    print_place(frames[i]);
  }
}

// Of the processor's page fault.
bool is_write(const void* context) {
  constexpr greg_t kWriteBit = 2;
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (signal == SIGSEGV && note_access(info->si_addr, is_write(context))) return;
  const int place = place_of(info->si_addr, 1);
  const char* what = "an address";
  if (signal == SIGILL) {
    what = "code that no thread may reach, or a misaligned access, at";
  } else if (place >= 0) {
    what = "another device's memory";
  } else if (place == kNowhere) {
    what = "no memory, beyond or after the end of a block,";
  }
  char by[400], text[600];
  describe_running_thread(by, sizeof by);
  if (!*by && place >= 0) what = "device memory, which the host cannot reach,";
  std::snprintf(text, sizeof text, "emulated CUDA: %s: %s %p %s\n", strsignal(signal), what,
                info->si_addr, *by ? by : "outside of kernels");
  say(text);
  print_stack();
  ::signal(signal, SIG_DFL);
  raise(signal);
}

// Kernels run on small stacks, so the handler has its own.
const bool handles_signals = [] {
  static char stack[1 << 16];
  const stack_t alternative{stack, 0, sizeof stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL}) sigaction(signal, &action, nullptr);
  return true;
}();

// What the kernels are compiled for (tools/weft.bzl).
const bool processor_will_do = [] {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return true;
  say("emulated CUDA: needs a processor with AVX2 and FMA\n");
  _exit(1);
}();

void print_statistics() {
  const Statistics& s = statistics();
  const auto bytes = [](const Count& c) { return c.traffic.read + c.traffic.written; };
  std::fprintf(
      stderr,
      "emulated CUDA: %ld launches, %ld blocks, %ld barriers, %ld copies, %ld fills, %ld "
      "products, %ld convolutions, %ld graph launches, %ld device bytes of copies and fills, %ld "
      "bytes of a device's memory at a time\n",
      s.kernels.calls, s.blocks, s.barriers, s.copies.calls, s.fills.calls, s.products.calls,
      s.convolutions.calls, s.graphs, bytes(s.copies) + bytes(s.fills), s.most_bytes);
}

}  // namespace

Options::Options()
    : devices(number("WEFT_EMULATED_DEVICES", 2)),
      races(number("WEFT_EMULATED_RACES", 1)),
      memory(static_cast<std::size_t>(number("WEFT_EMULATED_MEMORY", 4096)) << 20),
      peers(number("WEFT_EMULATED_PEERS", 1) != 0),
      statistics(number("WEFT_EMULATED_STATS", 0) != 0),
      reaches_pageable(number("WEFT_EMULATED_HMM", 0) != 0),
      counts(number("WEFT_EMULATED_COUNT", 0) != 0),
      traffic(counts && number("WEFT_EMULATED_TRAFFIC", 0) != 0),
      driver(number("WEFT_EMULATED_DRIVER", CUDART_VERSION)),
      nccl(number("WEFT_EMULATED_NCCL", 22809)),
      capabilities(capabilities_of(text("WEFT_EMULATED_CAPABILITIES", "9.0"))),
      code(text("WEFT_EMULATED_CODE", "80+ptx")),
      order(Order::lazy),
      random(static_cast<std::uint64_t>(number("WEFT_EMULATED_SEED", 1))) {
  if (devices > kMostDevices) fault("WEFT_EMULATED_DEVICES=%d: at most %d", devices, kMostDevices);
  if (const char* const text = std::getenv("WEFT_EMULATED_ORDER")) {
    if (!std::strcmp(text, "eager")) {
      order = Order::eager;
    } else if (!std::strcmp(text, "random")) {
      order = Order::random;
    } else if (std::strcmp(text, "lazy") != 0) {
      fault("WEFT_EMULATED_ORDER=%s: lazy, eager or random", text);
    }
  }
  if (statistics) std::atexit(print_statistics);
}

Options& options() {
  static auto& made = *new Options;  // never destroyed: static objects may still use the devices
  return made;
}

std::uint64_t random_word() { return options().random(); }

Guard::Guard() {
  ++depth;
  mutex().lock();
}

Guard::~Guard() {
  mutex().unlock();
  --depth;
}

void pause() {
  for (int i = 0; i < depth; ++i) mutex().unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  for (int i = 0; i < depth; ++i) mutex().lock();
}

Statistics& statistics() {
  static auto& made = *new Statistics;
  return made;
}

void Statistics::add(Count& to, Node node) {
  ++to.calls;
  to.traffic.read += node.traffic.read;
  to.traffic.written += node.traffic.written;
  replayed += in_graph;
  node.in_graph = in_graph;
  if (options().traffic) nodes.push_back(std::move(node));
}

void fault(const char* format, ...) {
  char text[2000];
  std::va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  std::fflush(nullptr);
  std::fprintf(stderr, "emulated CUDA: %s\n", text);
  print_stack();
  std::abort();
}

}  // namespace emulator

// The code that the backend takes its kernels to be compiled for; there is no such code here.
extern "C" const char* weft_emulated_code() { return emulator::options().code.c_str(); }

// For tests that count a program's calls of operator new: whether this thread is in the emulator.
extern "C" bool weft_cuda_emulator_runs() { return emulator::depth > 0; }

// For tests: how many times blocks have waited for all their threads, since the counts were taken.
extern "C" long weft_emulated_barriers() {
  const emulator::Guard guard;
  return emulator::statistics().barriers;
}

// For the benchmark: what has run since the last call, as JSON. Valid until the next call.
extern "C" const char* weft_emulated_take_counts() {
  using namespace emulator;
  const Guard guard;
  static auto& text = *new std::string;
  const auto field = [](const char* name, std::int64_t value) {
    return std::string("\"") + name + "\":" + std::to_string(value);
  };
  const auto traffic = [&](const Traffic& t) {
    return field("read", t.read) + "," + field("written", t.written);
  };
  const auto count = [&](const char* name, const Count& c) {
    return std::string("\"") + name + "\":{" + field("calls", c.calls) + "," + traffic(c.traffic) +
           "},";
  };
  const Statistics s = std::exchange(statistics(), {});
  text = "{" + count("kernels", s.kernels) + count("cublaslt", s.products) +
         count("cudnn", s.convolutions) + count("copies", s.copies) + count("fills", s.fills) +
         field("graph_launches", s.graphs) + "," + field("replayed", s.replayed) + ",\"nodes\":[";
  static auto& names = *new std::map<const void*, std::string>;  // of the kernels
  const auto name = [](const Node& node) {
    if (!node.kernel) return node.name;
    std::string& known = names[node.kernel];
    if (known.empty()) known = name_of(node.kernel);
    return known;
  };
  const char* comma = "";
  for (const Node& node : s.nodes) {
    text += comma + ("{\"name\":\"" + name(node) + "\"," + traffic(node.traffic) + "," +
                     field("operations", node.operations) + ",\"type\":\"" + node.type + "\"," +
                     field("in_graph", node.in_graph) + "}");
    comma = ",";
  }
  text += "]}";
  return text.c_str();
}
