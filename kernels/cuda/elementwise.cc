#include "weft/kernels/cuda/elementwise.h"

#include "weft/kernels/cuda/families.h"

namespace weft::cuda {

template <int N>
void run_map(const Launch& from, const Stream& stream, const MapKernels& kernels,
             const std::array<const View*, N>& views, const void* f) {
  if (views[0]->numel() == 0) return;
  std::array<const Strides*, N> strides;
  for (int k = 0; k < N; ++k) strides[k] = &views[k]->strides;
  const IndexSpace<N> whole = index_space<N>(views[0]->shape, strides);
  for_each_part(whole, [&](const IndexSpace<N>& part, const typename IndexSpace<N>::Row& base) {
    MapArgs<N> args;
    args.n = static_cast<std::uint32_t>(part.numel());
    for (int k = 0; k < N; ++k) {
      args.dtype[k] = views[k]->dtype;
      args.data[k] = views[k]->template as<char>() +
                     base[k] * static_cast<std::int64_t>(size_of(args.dtype[k]));
    }
    void* arguments[] = {&args, const_cast<void*>(f)};
    if (kernels.packed && count_in_packs(part, args, kernels.pack)) {
      launch_untyped(from, stream, kernels.packed, grid_blocks(args.n / kernels.pack), kBlock,
                     arguments);
    } else {
      args.offsets = Offsets<N>(part);
      launch_untyped(from, stream, kernels.strided, grid_blocks(args.n), kBlock, arguments);
    }
  });
}

template void run_map<1>(const Launch&, const Stream&, const MapKernels&,
                         const std::array<const View*, 1>&, const void*);
template void run_map<2>(const Launch&, const Stream&, const MapKernels&,
                         const std::array<const View*, 2>&, const void*);
template void run_map<3>(const Launch&, const Stream&, const MapKernels&,
                         const std::array<const View*, 3>&, const void*);
template void run_map<4>(const Launch&, const Stream&, const MapKernels&,
                         const std::array<const View*, 4>&, const void*);

ElementwiseKernels elementwise_kernels() {
  return {.unary = unary,
          .unary_backward = unary_backward,
          .binary = binary,
          .binary_backward = binary_backward,
          .compare = compare,
          .where = where,
          .copy = copy,
          .copy_all = copy_all,
          .fill = fill,
          .add_scaled = add_scaled,
          .arange = arange};
}

}  // namespace weft::cuda
