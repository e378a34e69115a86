// The two backends, CPU and CUDA, and the tables of their kernels.
#pragma once

#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/trace/trace.h"
#include "weft/kernels/attention.h"
#include "weft/kernels/conv.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/indexing.h"
#include "weft/kernels/loss.h"
#include "weft/kernels/matmul.h"
#include "weft/kernels/norm.h"
#include "weft/kernels/optim.h"
#include "weft/kernels/pooling.h"
#include "weft/kernels/random.h"
#include "weft/kernels/reduce.h"
#include "weft/kernels/scan.h"
#include "weft/kernels/softmax.h"
#include "weft/kernels/sorting.h"

namespace weft {

/// The families of kernels: the type of the table, and the name of the family's files on every
/// floor.
#define WEFT_FAMILIES(X)             \
  X(ElementwiseKernels, elementwise) \
  X(ReduceKernels, reduce)           \
  X(MatmulKernels, matmul)           \
  X(AttentionKernels, attention)     \
  X(Conv2dKernels, conv)             \
  X(PoolingKernels, pooling)         \
  X(NormKernels, norm)               \
  X(IndexingKernels, indexing)       \
  X(SortingKernels, sorting)         \
  X(ScanKernels, scan)               \
  X(SoftmaxKernels, softmax)         \
  X(LossKernels, loss)               \
  X(RandomKernels, random)           \
  X(OptimKernels, optim)

/// All kernels of a backend, by family. A null entry: the backend does not have this kernel.
struct KernelTable {
#define X(Table, name) Table name{};
  WEFT_FAMILIES(X)
#undef X
};

// Each backend makes the table of each family in that family's file.
#define X(Table, name)    \
  namespace reference {   \
  Table name##_kernels(); \
  }                       \
  namespace cpu {         \
  Table name##_kernels(); \
  }                       \
  namespace cuda {        \
  Table name##_kernels(); \
  }
WEFT_FAMILIES(X)
#undef X

struct Backend {
  Runtime* runtime = nullptr;
  KernelTable kernels;
};

/// The definition of every kernel (kernels/reference). With the environment variable
/// WEFT_SIMD=reference these are the kernels of the CPU.
const KernelTable& reference_kernels();

/// Never null. Always the fast kernels, whatever WEFT_SIMD is.
const Backend* cpu_backend();
/// Null if there is none: kernels/cuda_loader.cc.
const Backend* cuda_backend();

/// The backend of a device. Throws Device if the device does not exist.
const Backend& backend(Device device);

/// Throws Unsupported: "[conv2d] not available for bf16 on cuda:0".
[[noreturn]] void throw_unsupported(const char* op, Device device, DType dtype);

/// Returns an entry of the device's kernel table, for example
///   kernel(x.device(), &KernelTable::conv, &Conv2dKernels::plan, "conv2d", x.dtype())
/// Throws Unsupported if the backend does not have it, and Device. There is no silent fallback to
/// another device.
template <class Family, class Entry>
Entry kernel(Device device, Family KernelTable::* family, Entry Family::* entry, const char* op,
             DType dtype) {
  const ThreadState& state = thread_state();
  if (state.capture) [[unlikely]]
    state.capture->on_op(op, device);
  if (state.tracer) [[unlikely]]
    detail::work_begins(device);
  const Entry found = backend(device).kernels.*family.*entry;
  if (!found) throw_unsupported(op, device, dtype);
  return found;
}

}  // namespace weft
