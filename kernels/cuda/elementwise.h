// Host side of y[i] = f(x[i]...): one kernel for dense, aligned views, one for the rest.
#pragma once

#include <array>
#include <cstdint>

#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

/// N views of one shape; 0 is the output. In the dense kernel only n and data are read.
template <int N>
struct MapArgs {
  std::uint32_t n = 0;  // at most kMaxSmall
  DType dtype[N] = {};
  void* data[N] = {};
  Offsets<N> offsets;
};

/// The two kernels of one operation and type; both take (MapArgs<N>, F).
struct MapKernels {
  const void* dense = nullptr;  // null: there is none
  const void* strided = nullptr;
  int pack = 1;  // elements the dense one moves at a time: the alignment it needs
};

/// Runs an operation over views[0..N); `f` points to its functor. Kept out of the template that
/// names the kernels: there are some 400 of them.
template <int N>
void run_map(const Launch& from, const Stream& stream, const MapKernels& kernels,
             const std::array<const View*, N>& views, const void* f);

/// Whether the dense kernel may run: every view dense and aligned to `pack` of its elements.
template <int N>
bool can_run_dense(const IndexSpace<N>& space, const MapArgs<N>& args, int pack) {
  for (int k = 0; k < N; ++k) {
    const std::uintptr_t alignment = size_of(args.dtype[k]) * static_cast<std::uintptr_t>(pack);
    if (!space.dense(k) || reinterpret_cast<std::uintptr_t>(args.data[k]) % alignment != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace weft::cuda
