// The host side of y[i] = f(x[i]...), with one kernel for dense, aligned views and one for all
// others.
#pragma once

#include <array>
#include <cstdint>

#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

/// N views of one shape; view 0 is the output. The dense kernel reads only n and data.
template <int N>
struct MapArgs {
  std::uint32_t n = 0;  // at most kMaxSmall
  DType dtype[N] = {};
  void* data[N] = {};
  Offsets<N> offsets;
};

/// The two kernels of one operation and type; both take (MapArgs<N>, F).
struct MapKernels {
  const void* dense = nullptr;  // null: no dense kernel
  const void* strided = nullptr;
  int pack = 1;  // elements per load or store of the dense kernel, and its alignment
};

/// Runs an operation over views[0..N); `f` points to its functor. It is separate from the template
/// that names the kernels, so that it is not compiled for each of about 400 kernels.
template <int N>
void run_map(const Launch& from, const Stream& stream, const MapKernels& kernels,
             const std::array<const View*, N>& views, const void* f);

/// Whether the dense kernel may run: every view is dense and aligned to `pack` of its elements.
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
