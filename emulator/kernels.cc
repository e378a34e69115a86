// Kernels: the threads of a block are fibers, which run in random order up to the next barrier, or
// to the next exchange among a warp. Blocks run one after the other, beginning at a random one.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/prelude.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

namespace {

std::int64_t cycles = 0;

namespace context = boost::context::detail;

struct Kernel {
  const Signature* signature = nullptr;
  int compared = 0;  // launches that were run in two orders
};

std::unordered_map<const void*, Kernel>& kernels() {
  static auto& made = *new std::unordered_map<const void*, Kernel>;
  return made;
}

constexpr unsigned kWarp = 32;

struct Fiber {
  context::fcontext_t at = nullptr;
  bool waits = false;
  int line = 0;
  unsigned mask = 0;  // of the warp that exchanges; 0: the whole block waits
  unsigned thread = 0;
  unsigned source = 0;  // the lane that gives the value
  std::array<char, 8> value{};
};

constexpr std::size_t kPage = 4096, kStack = 64 << 10;

// The block that is running.
struct {
  const void* kernel = nullptr;
  const Signature* signature = nullptr;
  void* const* arguments = nullptr;
  std::vector<unsigned> order;  // of the block's threads
  std::size_t next = 0;         // index into `order`
  Fiber* fiber = nullptr;       // null: the scheduler runs
  context::fcontext_t scheduler = nullptr;
} now;

void fiber_main(context::transfer_t from) {
  now.scheduler = from.fctx;
  for (;;) {
    while (now.next < now.order.size()) {
      const unsigned t = now.order[now.next++];
      threadIdx = uint3{t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
      now.signature->call(now.kernel, now.arguments);
    }
    now.fiber->waits = false;
    now.scheduler = context::jump_fcontext(now.scheduler, nullptr).fctx;
  }
}

std::vector<Fiber*> idle;

Fiber* take_fiber() {
  if (!idle.empty()) {
    Fiber* const fiber = idle.back();
    idle.pop_back();
    return fiber;
  }
  char* const stack = static_cast<char*>(
      mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (stack == MAP_FAILED) fault("no memory for a thread's stack");
  mprotect(stack, kPage, PROT_NONE);
  auto* const fiber = new Fiber;
  fiber->at = context::make_fcontext(stack + kPage + kStack, kStack, fiber_main);
  return fiber;
}

void resume(Fiber* fiber) {
  now.fiber = fiber;
  fiber->at = context::jump_fcontext(fiber->at, nullptr).fctx;
  now.fiber = nullptr;
}

/// Where all lanes of a mask wait, gives each its value and takes them out of `waiting`.
std::vector<Fiber*> finish_exchanges(std::vector<Fiber*>& waiting) {
  std::map<std::array<unsigned, 3>, std::vector<Fiber*>> exchanges;  // by warp, mask and line
  for (Fiber* fiber : waiting) {
    if (fiber->mask == 0) continue;
    const auto line = static_cast<unsigned>(fiber->line);
    exchanges[{fiber->thread / kWarp, fiber->mask, line}].push_back(fiber);
  }
  std::vector<Fiber*> finished;
  for (const auto& [where, fibers] : exchanges) {
    if (fibers.size() != static_cast<std::size_t>(std::popcount(where[1]))) continue;
    std::array<std::array<char, 8>, kWarp> values{};
    for (const Fiber* fiber : fibers) values[fiber->thread % kWarp] = fiber->value;
    for (Fiber* fiber : fibers) {
      fiber->value = values[fiber->source];
      fiber->mask = 0;
      fiber->waits = false;
      finished.push_back(fiber);
    }
  }
  std::erase_if(waiting, [](const Fiber* fiber) { return !fiber->waits; });
  return finished;
}

void check_barrier(const std::vector<Fiber*>& waiting) {
  for (const Fiber* fiber : waiting) {
    if (fiber->mask == 0) continue;
    fault("%s: divergent warp: not all of the lanes %#x come to the exchange at line %d",
          name_of(now.kernel).c_str(), fiber->mask, fiber->line);
  }
  if (waiting.size() != now.order.size()) {
    fault("%s: divergent barrier: %zu of %zu threads wait at line %d, the others have left",
          name_of(now.kernel).c_str(), waiting.size(), now.order.size(), waiting[0]->line);
  }
  for (const Fiber* fiber : waiting) {
    if (fiber->line != waiting[0]->line) {
      fault("%s: divergent barrier: threads wait at lines %d and %d", name_of(now.kernel).c_str(),
            fiber->line, waiting[0]->line);
    }
  }
}

void run_block() {
  std::shuffle(now.order.begin(), now.order.end(), options().random);
  now.next = 0;
  std::vector<Fiber*> waiting, phase;
  const auto go_on = [&](Fiber* fiber) {
    resume(fiber);
    fiber->waits ? waiting.push_back(fiber) : idle.push_back(fiber);
  };
  // A fiber takes the next thread when its own has ended; another fiber is needed only if a thread
  // waits.
  while (now.next < now.order.size()) go_on(take_fiber());
  while (!waiting.empty()) {
    phase = finish_exchanges(waiting);
    if (phase.empty()) {
      ++statistics().barriers;
      check_barrier(waiting);
      phase.swap(waiting);
    }
    std::shuffle(phase.begin(), phase.end(), options().random);
    for (Fiber* fiber : phase) go_on(fiber);
  }
}

void begin(const void* kernel, const Signature& signature, dim3 grid, dim3 block,
           void* const* arguments) {
  gridDim = grid;
  blockDim = block;
  now.kernel = kernel;
  now.signature = &signature;
  now.arguments = arguments;
  now.order.resize(std::size_t{block.x} * block.y * block.z);
  for (unsigned t = 0; t < now.order.size(); ++t) now.order[t] = t;
}

void run_blocks() {
  const std::uint64_t blocks = std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  const std::uint64_t shift = random_word() % blocks;
  const bool downwards = random_word() % 2;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    std::uint64_t b = (i + shift) % blocks;
    if (downwards) b = blocks - 1 - b;
    ++statistics().blocks;
    blockIdx = uint3{static_cast<unsigned>(b % gridDim.x),
                     static_cast<unsigned>(b / gridDim.x % gridDim.y),
                     static_cast<unsigned>(b / gridDim.x / gridDim.y)};
    run_block();
  }
}

// --- Races ---------------------------------------------------------------------------------------

// FNV-1a by words.
std::uint64_t hash(const char* data, std::size_t bytes) {
  std::uint64_t h = 0xcbf29ce484222325u;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, data + i, 8);
    h = (h ^ word) * 0x100000001b3u;
    h ^= h >> 32;
  }
  for (; i < bytes; ++i) h = (h ^ static_cast<unsigned char>(data[i])) * 0x100000001b3u;
  return h;
}

std::vector<std::uint64_t> hashes(int device) {
  std::vector<std::uint64_t> all;
  for_each_block(device,
                 [&](const char* data, std::size_t bytes) { all.push_back(hash(data, bytes)); });
  return all;
}

// Runs the kernel here and in a copy of the process, in another order of threads and blocks. If
// they leave different memory, threads read what others write without a barrier between them, or
// write to the same place.
void run_in_two_orders(int device) {
  int ends[2];
  if (pipe(ends) != 0) fault("pipe: %s", std::strerror(errno));
  const std::uint64_t seed = random_word();
  const pid_t child = fork();
  if (child < 0) fault("fork: %s", std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    options().random.seed(seed);
    run_blocks();
    const std::vector<std::uint64_t> theirs = hashes(device);
    const char* at = reinterpret_cast<const char*>(theirs.data());
    std::size_t left = theirs.size() * sizeof theirs[0];
    while (left > 0) {
      const ssize_t wrote = write(ends[1], at, left);
      if (wrote <= 0) _exit(1);
      at += wrote;
      left -= static_cast<std::size_t>(wrote);
    }
    _exit(0);
  }
  close(ends[1]);
  run_blocks();
  const std::vector<std::uint64_t> ours = hashes(device);
  std::vector<std::uint64_t> theirs(ours.size());
  auto* at = reinterpret_cast<char*>(theirs.data());
  std::size_t left = theirs.size() * sizeof theirs[0];
  while (left > 0) {
    const ssize_t got = read(ends[0], at, left);
    if (got <= 0) break;
    at += got;
    left -= static_cast<std::size_t>(got);
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) fault("%s: ended in another order of its threads", name_of(now.kernel).c_str());
  std::size_t i = 0;
  for_each_block(device, [&](const char* data, std::size_t bytes) {
    if (ours[i] != theirs[i]) {
      fault(
          "%s: a race: what it leaves at %p in a block of %zu bytes depends on the order of its "
          "threads",
          name_of(now.kernel).c_str(), static_cast<const void*>(data), bytes);
    }
    ++i;
  });
}

/// Calls f(parameter, address) for each value that may be an address in this emulator's memory.
template <class F>
void for_each_address(const Signature& signature, void* const* arguments, F&& f) {
  for (int i = 0; i < signature.count; ++i) {
    for (std::size_t at = 0; at + 8 <= signature.sizes[i]; at += 8) {
      std::uintptr_t word;
      std::memcpy(&word, static_cast<const char*>(arguments[i]) + at, 8);
      if (in_arena(word)) f(i, reinterpret_cast<const void*>(word));
    }
  }
}

}  // namespace

void note_kernel(const void* kernel, const Signature* signature) {
  const Guard guard;
  kernels()[kernel].signature = signature;
}

const Signature* signature_of(const void* kernel) {
  const auto found = kernels().find(kernel);
  return found == kernels().end() ? nullptr : found->second.signature;
}

// Most kernels have no symbol outside their object file, so the name comes from the debug
// information.
std::string name_of(const void* kernel) {
  Dl_info info{};
  if (!dladdr(kernel, &info) || !info.dli_fname) return "a kernel";
  char text[1000];
  std::snprintf(text, sizeof text, "addr2line -Cfe '%s' %#tx", info.dli_fname,
                static_cast<const char*>(kernel) - static_cast<const char*>(info.dli_fbase));
  FILE* const lines = popen(text, "r");
  if (!lines) return "a kernel";
  std::string name = std::fgets(text, sizeof text, lines) ? text : "a kernel";
  pclose(lines);
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

void describe_running_thread(char* text, std::size_t size) {
  *text = 0;
  if (!now.kernel) return;
  std::snprintf(text, size, "in block (%u,%u,%u) of (%u,%u,%u), thread (%u,%u,%u) of %s",
                blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, threadIdx.x,
                threadIdx.y, threadIdx.z, name_of(now.kernel).c_str());
}

void check_addresses(const void* kernel, const Signature& signature, void* const* arguments,
                     int device) {
  for_each_address(signature, arguments, [&](int i, const void* p) {
    // Padding and empty optionals contain old bytes of the stack, so the addresses in a struct are
    // not checked here: a wrong one shows when it is used.
    if (!signature.is_pointer[i]) return;
    const int place = place_of(p, 0);
    if (place == kNowhere) {
      fault("%s: parameter %d is %p, where no memory is", name_of(kernel).c_str(), i, p);
    }
    if (place >= 0 && place != device) {
      fault("%s on cuda:%d: parameter %d is memory of cuda:%d", name_of(kernel).c_str(), device, i,
            place);
    }
  });
}

void run_blocks_of(const void* kernel, const Signature& signature, dim3 grid, dim3 block,
                   void* const* arguments) {
  begin(kernel, signature, grid, block, arguments);
  run_blocks();
  now.kernel = nullptr;
}

void run_kernel(const void* kernel, const Traffic& traffic, const Signature& signature, dim3 grid,
                dim3 block, void* const* arguments, int device) {
  statistics().add(statistics().kernels, {.traffic = traffic, .kernel = kernel});
  if (options().counts) return;
  begin(kernel, signature, grid, block, arguments);
  if (kernels()[kernel].compared < options().races) {
    ++kernels()[kernel].compared;
    run_in_two_orders(device);
  } else {
    run_blocks();
  }
  for_each_address(signature, arguments, [&](int, const void* p) { check_border(p, kernel); });
  now.kernel = nullptr;
}

std::int64_t device_cycles() { return cycles; }

void barrier(int line) {
  const uint3 me = threadIdx;
  Fiber* const fiber = now.fiber;
  fiber->waits = true;
  fiber->line = line;
  now.scheduler = context::jump_fcontext(now.scheduler, nullptr).fctx;
  threadIdx = me;
}

unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

void exchange(int line, unsigned mask, unsigned source, void* value, std::size_t bytes) {
  Fiber& me = *now.fiber;
  me.thread = thread_number();
  if ((mask >> me.thread % kWarp & mask >> source & 1) == 0) {
    fault("%s: lane %u exchanges with lane %u at line %d, and the mask %#x lacks one of them",
          name_of(now.kernel).c_str(), me.thread % kWarp, source, line, mask);
  }
  me.mask = mask;
  me.source = source;
  if (bytes > 0) std::memcpy(me.value.data(), value, bytes);
  barrier(line);
  if (bytes > 0) std::memcpy(value, me.value.data(), bytes);
}

}  // namespace emulator

long long clock64() { return emulator::cycles += 1000; }
