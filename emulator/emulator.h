// CUDA devices on the host, as far as weft asks for them: cudart.cc, cublaslt.cc and cudnn.cc
// define the functions of NVIDIA's libraries. emulator/README.md says what that proves and what
// not.
//
// One lock guards everything. A stream is a queue. It runs as late as its order allows, on the host
// thread that has to wait for it, so that a missing wait, or host memory that is changed too early,
// becomes visible. Environment variables set:
//
//   WEFT_EMULATED_DEVICES=2      number of devices
//   WEFT_EMULATED_MEMORY=4096    MiB per device
//   WEFT_EMULATED_PEERS=1        0: devices do not reach each other's memory
//   WEFT_EMULATED_ORDER=lazy     eager: streams run at once; random: at random times
//   WEFT_EMULATED_SEED=1         seed of everything random
//   WEFT_EMULATED_RACES=1        how many launches of each kernel are tried in two orders
//   WEFT_EMULATED_STATS=0        1: print at exit what ran
//   WEFT_EMULATED_HMM=0          1: devices read pageable host memory when a copy runs
//   WEFT_EMULATED_DRIVER=13000   the newest CUDA version that the driver accepts, here 13.0
//   WEFT_EMULATED_NCCL=22809     NCCL's version, here 2.28.9
//   WEFT_EMULATED_CAPABILITIES=9.0  of each device, as 9.0,7.5; the last counts for the rest
//   WEFT_EMULATED_CODE=80+ptx    what the kernels claim to be compiled for
//   WEFT_EMULATED_COUNT=0        1: kernels, libraries and copies are counted but not run, and
//                                device memory has only addresses
//   WEFT_EMULATED_TRAFFIC=0      1: with COUNT, what each kernel reads and writes is found out, and
//                                all nodes are listed
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
  bool peers, statistics, reaches_pageable, counts, traffic;
  int driver, nccl;
  std::array<std::array<int, 2>, kMostDevices> capabilities;  // major, minor
  std::string code;
  Order order;
  std::mt19937_64 random;
};
Options& options();
std::uint64_t random_word();

/// Every function that reads or changes the state holds one.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

/// Releases the guards of this thread for a moment, so that other threads can run.
void pause();

/// Reports a fault of the program for which a GPU might do anything, and ends the program with a
/// stack trace.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...);

/// Bytes of memory, each counted once.
struct Traffic {
  std::int64_t read = 0, written = 0;
};
/// What a kernel, a library call, a copy or a fill asks of a GPU. The traffic of a library call is
/// that of the tensors in its descriptors; that of a copy counts its sides on a device.
struct Node {
  Traffic traffic;
  std::string name = {};         ///< empty for a kernel
  const void* kernel = nullptr;  ///< null for others
  std::int64_t operations = 0;   ///< of a product or convolution: two per element and term
  const char* type = "";         ///< what it multiplies: f64, f32, tf32 or bf16
  bool in_graph = false;
};
struct Count {
  std::int64_t calls = 0;
  Traffic traffic;
};
/// What ran so far. The traffic of kernels and the nodes are only there with
/// WEFT_EMULATED_TRAFFIC.
struct Statistics {
  Count kernels, products, convolutions, copies, fills;
  std::int64_t blocks = 0, barriers = 0, graphs = 0;
  std::int64_t replayed = 0;    // calls that graphs replayed
  std::int64_t most_bytes = 0;  // most memory of one device at a time
  bool in_graph = false;
  std::vector<Node> nodes;
  void add(Count& to, Node node);
};
Statistics& statistics();

// --- Memory --------------------------------------------------------------------------------------

/// Where memory is: a device's number, or
enum : int { kPinned = -1, kOther = -2, kNowhere = -3 };

/// Poisoned memory that ends at an inaccessible page. Null if there is no room.
void* allocate(std::size_t bytes, int device);
/// The place of memory of allocate(); kNowhere for other memory.
int allocated_on(const void* p);
/// Frees memory of allocate(). Reports a fault if something was written beyond the block.
void release(void* p);
/// Reports a fault if the kernel wrote next to the block that p points into, if it can reach that.
void check_border(const void* p, const void* kernel);
/// The place of all of [p, p + bytes); kNowhere if it is in no block or in more than one.
int place_of(const void* p, std::size_t bytes);
bool is_device_memory(const void* p, std::size_t bytes, int device);
/// Whether the address is in this emulator's address range, allocated or not.
bool in_arena(std::uintptr_t address);
/// Makes the memory of these devices accessible, and of no others.
void open_memory(const std::set<int>& devices);
inline void close_memory() { open_memory({}); }
/// Calls f(data, bytes) for each block of the device.
void for_each_block(int device, const std::function<void(const char*, std::size_t)>& f);
/// The beginning of the block that p points into, and the number of bytes from p to its end; null
/// for other addresses.
struct Rest {
  const void* block = nullptr;
  std::int64_t bytes = 0;
};
Rest rest_of(const void* p);
/// Fills a workspace with arbitrary bytes, as libraries do. Called by queued work.
void scribble(void* p, std::size_t bytes);

// --- Streams -------------------------------------------------------------------------------------

/// The calling thread's device.
int current_device();
/// The same, for calls that make a context on it.
int device_with_context();
/// Whether the stream belongs to the current device.
cudaError_t check_stream(cudaStream_t stream);
/// Queues work, or records it; `also` is another device whose memory it touches.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, int also = -1);
/// Whether the calling thread may not make calls that could wait for a recording stream; the
/// recording becomes invalid then.
bool prohibited();
/// Keeps the error for cudaGetLastError() and returns it.
cudaError_t fail(cudaError_t error);

// --- Kernels -------------------------------------------------------------------------------------

struct Signature;

/// Null if nobody has asked for that kernel's address.
const Signature* signature_of(const void* kernel);
/// Slow: only for the text of a fault.
std::string name_of(const void* kernel);
/// Reports a fault if a pointer parameter is in this emulator's address range but not in live
/// memory of the device.
void check_addresses(const void* kernel, const Signature& signature, void* const* arguments,
                     int device);
/// Also counts the launch.
void run_kernel(const void* kernel, const Traffic& traffic, const Signature& signature, dim3 grid,
                dim3 block, void* const* arguments, int device);
/// Runs its blocks once.
void run_blocks_of(const void* kernel, const Signature& signature, dim3 grid, dim3 block,
                   void* const* arguments);
/// What the kernel would read and write, if all memory held zeros: whole blocks if they are smaller
/// than a page (4096 bytes), else those pieces of them that it touches, of a page or of a 256th.
/// What it writes first and then reads does not count as read.
Traffic traffic_of(const void* kernel, const Signature& signature, dim3 grid, dim3 block,
                   void* const* arguments);
/// Called at an invalid access. Whether it was the first of its kind to memory that traffic_of()
/// watches, so that it can go on.
bool note_access(const void* p, bool is_write);
/// The value of clock64() so far, over all kernels.
std::int64_t device_cycles();
inline constexpr double kCyclesPerMs = 1e6;
/// For the text of a crash: "in kernel f, block (0,0), thread 3", or nothing.
void describe_running_thread(char* text, std::size_t size);

}  // namespace emulator
