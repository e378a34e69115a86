// CUDA devices on the host, as far as weft asks for them: cudart.cc, cublaslt.cc and cudnn.cc
// define the functions of NVIDIA's libraries. docs/cuda_emulator.md says what that proves and what
// not.
//
// One lock guards everything. A stream is a queue that runs as late as its order allows, on the
// host thread that has to wait for it, so that a missing wait, or host memory that is changed too
// early, shows. Set by environment variables:
//
//   WEFT_EMULATED_DEVICES=2      devices
//   WEFT_EMULATED_MEMORY=4096    MiB of each
//   WEFT_EMULATED_PEERS=1        0: they do not reach each other's memory
//   WEFT_EMULATED_ORDER=lazy     eager: streams run at once; random: now and then
//   WEFT_EMULATED_SEED=1         of everything random
//   WEFT_EMULATED_RACES=1        how many launches of each kernel are tried in two orders
//   WEFT_EMULATED_STATS=0        1: what ran, at exit
//   WEFT_EMULATED_HMM=0          1: devices read pageable host memory when a copy runs
//   WEFT_EMULATED_CONVOLUTIONS=1 0: cuDNN has no algorithm for any
//   WEFT_EMULATED_DRIVER=13000   the newest CUDA version the driver takes, here 13.0
//   WEFT_EMULATED_NCCL=22809     NCCL's version, here 2.28.9
//   WEFT_EMULATED_CAPABILITIES=9.0  of each device, such as 9.0,7.5; the last is that of the rest,
//   too WEFT_EMULATED_CODE=80+ptx    what the kernels claim to be compiled for
//   WEFT_EMULATED_COUNT=0        1: kernels, libraries and copies are counted and do nothing, and
//                                device memory is nothing but addresses
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace emulator {

inline constexpr int kMostDevices = 16;

enum class Order { lazy, eager, random };

struct Options {
  Options();

  int devices, races;
  std::size_t memory;
  bool peers, statistics, reaches_pageable, convolutions, counts;
  int driver, nccl;
  std::array<std::array<int, 2>, kMostDevices> capabilities;  // major, minor
  std::string code;
  Order order;
  std::mt19937_64 random;
};
Options& options();
std::uint64_t random_word();

/// Held by every function that looks at anything.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

/// Gives the guards of this thread to others for a moment.
void pause();

/// A fault of the program that a GPU would answer with anything at all. Ends it, with a stack
/// trace.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...);

/// Calls, and the bytes they name: for a copy those that are read and written, for a library's
/// those that its descriptors say, for a kernel those of the blocks that its parameters point into,
/// each block once and from the lowest address to its end.
struct Count {
  std::int64_t calls = 0, bytes = 0;
};
/// What ran so far. Kernels' bytes are counted on demand: WEFT_EMULATED_STATS or _COUNT.
struct Statistics {
  Count kernels, products, convolutions, copies, fills;
  std::int64_t blocks = 0, barriers = 0, graphs = 0;
  std::int64_t replayed = 0;    // of the calls, by graphs
  std::int64_t most_bytes = 0;  // of one device's memory at a time
  bool in_graph = false;
  void add(Count& to, std::int64_t bytes);
};
Statistics& statistics();

// --- Memory --------------------------------------------------------------------------------------

/// Where memory is: a device's number, or
enum : int { kPinned = -1, kOther = -2, kNowhere = -3 };

/// Poisoned, before an inaccessible page. Null when there is no room.
void* allocate(std::size_t bytes, int device);
/// Of what allocate() gave; kNowhere for anything else.
int allocated_on(const void* p);
/// Of what allocate() gave. Faults where something was written beyond the block.
void release(void* p);
/// Faults where the kernel wrote beside the block that p points into, if it can reach that.
void check_border(const void* p, const void* kernel);
/// Of all of [p, p + bytes); kNowhere where no or another block begins in it.
int place_of(const void* p, std::size_t bytes);
bool is_device_memory(const void* p, std::size_t bytes, int device);
/// Whether the address lies where this emulator's memory does, allocated or not.
bool in_arena(std::uintptr_t address);
/// Makes the memory of these devices accessible, and of no others.
void open_memory(const std::set<int>& devices);
inline void close_memory() { open_memory({}); }
/// Calls f(data, bytes) for each block of the device.
void for_each_block(int device, const std::function<void(const char*, std::size_t)>& f);
/// Where the block begins that p points into, and how many bytes are left of it from p on; null for
/// other addresses.
struct Rest {
  const void* block = nullptr;
  std::int64_t bytes = 0;
};
Rest rest_of(const void* p);
/// What libraries do to a workspace: anything. Called by queued work.
void scribble(void* p, std::size_t bytes);

// --- Streams -------------------------------------------------------------------------------------

/// The calling thread's device.
int current_device();
/// The same, for what makes a context on it.
int device_with_context();
/// Whether the stream is one of the current device's.
cudaError_t check_stream(cudaStream_t stream);
/// Queues work, or records it; `also` is another device whose memory it touches.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, int also = -1);
/// Whether the calling thread may not do what could wait for a stream that records; the recording
/// is invalid then.
bool prohibited();
/// Keeps the error for cudaGetLastError() and returns it.
cudaError_t fail(cudaError_t error);

// --- Kernels -------------------------------------------------------------------------------------

struct Signature;

/// Null when nobody asked for that kernel's address.
const Signature* signature_of(const void* kernel);
/// Slow: for the text of a fault.
std::string name_of(const void* kernel);
/// Faults where a pointer is an address of this emulator's that is no live memory of the device.
void check_addresses(const void* kernel, const Signature& signature, void* const* arguments,
                     int device);
/// Of Count.
std::int64_t named_bytes(const Signature& signature, void* const* arguments);
/// Of each kernel launched since the last call, by name.
struct KernelCount {
  std::string name;
  Count launches;
};
std::vector<KernelCount> take_kernel_counts();
/// Counts the launch, too.
void run_kernel(const void* kernel, std::int64_t bytes, const Signature& signature, dim3 grid,
                dim3 block, void* const* arguments, int device);
/// What clock64() has counted so far, in all kernels.
std::int64_t device_cycles();
inline constexpr double kCyclesPerMs = 1e6;
/// For the text of a crash: "in kernel f, block (0,0), thread 3", or nothing.
void describe_running_thread(char* text, std::size_t size);

}  // namespace emulator
