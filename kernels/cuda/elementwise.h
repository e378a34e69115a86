// The host side of y[i] = f(x[i]...), with one kernel for views whose innermost dimension is dense
// and aligned, or broadcast, and one for all others. Each makes one pass over its operands.
#pragma once

#include <array>
#include <cstdint>

#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/view.h"

namespace weft::cuda {

/// N views of one shape; view 0 is the output. For the kernel of packs the offsets count packs, of
/// which a view that `repeats` has one element for each.
template <int N>
struct MapArgs {
  std::uint32_t n = 0;  // elements, at most kMaxSmall
  DType dtype[N] = {};
  bool repeats[N] = {};
  void* data[N] = {};
  Offsets<N> offsets;
};

/// The two kernels of one operation and type; both take (MapArgs<N>, F).
struct MapKernels {
  const void* packed = nullptr;  // null: there is none
  const void* strided = nullptr;
  int pack = 1;  // elements per load or store of the kernel of packs
};

/// Runs an operation over views[0..N); `f` points to its functor. It is separate from the template
/// that names the kernels, so that it is not compiled for each of about 400 kernels.
template <int N>
void run_map(const Launch& from, const Stream& stream, const MapKernels& kernels,
             const std::array<const View*, N>& views, const void* f);

/// Whether the kernel of packs may run, for which this counts the offsets: along the innermost
/// dimension each view is dense and aligned, or repeats one element. Only a single row may have a
/// length that is not a multiple of `pack`.
template <int N>
bool count_in_packs(IndexSpace<N> space, MapArgs<N>& args, int pack) {
  bool fits = space.ndim <= 1 || space.size[0] % pack == 0;
  for (int k = 0; k < N; ++k) {
    args.repeats[k] = space.ndim > 0 && space.stride[0][k] == 0;
    if (args.repeats[k]) {
      fits &= k > 0;
      continue;
    }
    const std::uintptr_t alignment = size_of(args.dtype[k]) * static_cast<std::uintptr_t>(pack);
    fits &= reinterpret_cast<std::uintptr_t>(args.data[k]) % alignment == 0;
    fits &= space.ndim == 0 || space.stride[0][k] == 1;
    for (int d = 1; d < space.ndim; ++d) {
      fits &= space.stride[d][k] % pack == 0;
      space.stride[d][k] /= pack;
    }
  }
  space.size[0] /= pack;
  if (fits) args.offsets = Offsets<N>(space);
  return fits;
}

}  // namespace weft::cuda
