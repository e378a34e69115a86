// Reading and adding at computed positions. No atomics: one thread computes each sum, in a fixed
// order.
#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch.h"

namespace weft::cuda {
namespace {

/// One block, so that no second pass is needed: there are few indices compared to the data.
constexpr int kBoundsBlock = 1024;

/// The first index out of bounds. All zero when there is none, which is what a read of device
/// memory gives where it is only counted (emulator/README.md).
struct BadIndex {
  std::int64_t left;  // number of indices from it to the end
  std::int64_t value;
};

__global__ void __launch_bounds__(kBoundsBlock)
    check_bounds_kernel(const std::int64_t* index, const __grid_constant__ Offsets<1> offsets,
                        std::int64_t n, std::int64_t bound, BadIndex* result) {
  __shared__ std::int64_t first[kBoundsBlock];
  std::int64_t found = n;
  for (std::int64_t i = threadIdx.x; i < n; i += kBoundsBlock) {
    const std::int64_t value = index[offsets.at_any(i).at[0]];
    if (value < 0 || value >= bound) {
      found = i;
      break;  // a thread's indices ascend, so its first one is its lowest
    }
  }
  first[threadIdx.x] = found;
  __syncthreads();
  for (int half = kBoundsBlock / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      first[threadIdx.x] = min(first[threadIdx.x], first[threadIdx.x + half]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    result->left = n - first[0];
    result->value = first[0] < n ? index[offsets.at_any(first[0]).at[0]] : 0;
  }
}

/// The strides of a view, with 0 for dimension `dim`.
Strides without(const Strides& strides, int dim) {
  Strides out = strides;
  out[dim] = 0;
  return out;
}

/// The strides of a 1-D view along dimension `dim` of a shape of `ndim` dimensions; 0 for the
/// others.
Strides along(int ndim, int dim, std::int64_t stride) {
  Strides out = Strides::filled(ndim, 0);
  out[dim] = stride;
  return out;
}

/// y[i] = x[i, but with index[i] in the dimension]; for index_select and gather.
template <class T>
__global__ void __launch_bounds__(kBlock)
    take_kernel(std::int64_t n, const __grid_constant__ Offsets<3> offsets, T* y, const T* x,
                std::int64_t x_stride, const std::int64_t* index) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const OffsetArray<3> o = offsets.at_any(i);
    y[o.at[0]] = x[o.at[1] + index[o.at[2]] * x_stride];
  }
}

void take(const char* name, const Stream& stream, const View& x, int dim, const View& index,
          const Strides& index_strides, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const Strides x_strides = without(x.strides, dim);
  const Offsets<3> offsets(index_space<3>(y.shape, {&y.strides, &x_strides, &index_strides}));
  const auto run = [&]<class T>() {
    launch(name, stream, take_kernel<T>, grid_blocks(n), kBlock, n, offsets, y.as<T>(), x.as<T>(),
           x.strides[dim], index.as<std::int64_t>());
  };
  switch (size_of(y.dtype)) {
    case 1: return run.operator()<std::uint8_t>();
    case 2: return run.operator()<std::uint16_t>();
    case 4: return run.operator()<std::uint32_t>();
    default: return run.operator()<std::uint64_t>();
  }
}

/// A fibre: the elements that differ only in `dim`. Different fibres add to different elements.
struct AddArgs {
  void* y;
  void* x;
  DType dtype;
  const std::int64_t* index;
  Offsets<3> fibres;  // where a fibre begins in y, x and index
  std::int64_t fibre_count;
  std::int64_t y_length, y_stride;
  std::int64_t x_length, x_stride, index_stride;
};

/// One thread per fibre adds its elements in order. For many fibres: each element is read once.
template <class Elements>
__global__ void __launch_bounds__(kBlock)
    add_by_fibre_kernel(const __grid_constant__ AddArgs args) {
  const Elements y(args.y, args.dtype), x(args.x, args.dtype);
  for (std::int64_t f = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; f < args.fibre_count;
       f += std::int64_t{gridDim.x} * kBlock) {
    const OffsetArray<3> o = args.fibres.at_any(f);
    for (std::int64_t j = 0; j < args.x_length; ++j) {
      const std::int64_t at = o.at[0] + args.index[o.at[2] + j * args.index_stride] * args.y_stride;
      y.store(at, y.load(at) + x.load(o.at[1] + j * args.x_stride));
    }
  }
}

/// One thread per element of y searches the indices of its fibre for its own. For few fibres, where
/// one thread per fibre would leave the GPU idle; the threads of a fibre share the reads of
/// indices.
template <class Elements>
__global__ void __launch_bounds__(kBlock)
    add_by_output_kernel(const __grid_constant__ AddArgs args) {
  const Elements y(args.y, args.dtype), x(args.x, args.dtype);
  const std::int64_t outputs = args.fibre_count * args.y_length;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < outputs;
       i += std::int64_t{gridDim.x} * kBlock) {
    const std::int64_t fibre = i / args.y_length, position = i % args.y_length;
    const OffsetArray<3> o = args.fibres.at_any(fibre);
    const std::int64_t at = o.at[0] + position * args.y_stride;
    auto sum = y.load(at);
    for (std::int64_t j = 0; j < args.x_length; ++j) {
      if (args.index[o.at[2] + j * args.index_stride] == position) {
        sum += x.load(o.at[1] + j * args.x_stride);
      }
    }
    y.store(at, sum);
  }
}

// Number of threads that keep a large GPU busy (some 140 SMs x 2048 threads, in a few waves).
constexpr std::int64_t kBusy = std::int64_t{1} << 20;

/// Adds x's elements to y's, at the index along dim. index_strides: strides of index over x's
/// shape.
void add(const char* name, const Stream& stream, const View& x, int dim, const View& index,
         const Strides& index_strides, const View& y) {
  if (x.numel() == 0 || y.numel() == 0) return;
  Shape fibre_shape = x.shape;
  fibre_shape[dim] = 1;
  const IndexSpace<3> fibres =
      index_space<3>(fibre_shape, {&y.strides, &x.strides, &index_strides});
  AddArgs args{y.data,
               x.data,
               y.dtype,
               index.as<std::int64_t>(),
               Offsets<3>(fibres),
               fibres.numel(),
               y.shape[dim],
               y.strides[dim],
               x.shape[dim],
               x.strides[dim],
               index_strides[dim]};
  const std::int64_t outputs = args.fibre_count * args.y_length;
  const bool by_output = args.x_length > 1 && args.fibre_count < kBusy / 64 && outputs <= kBusy;
  const auto run = [&]<class Elements>() {
    if (by_output) {
      launch(name, stream, add_by_output_kernel<Elements>, grid_blocks(outputs), kBlock, args);
    } else {
      launch(name, stream, add_by_fibre_kernel<Elements>, grid_blocks(args.fibre_count), kBlock,
             args);
    }
  };
  switch (y.dtype) {
    case DType::f32: return run.operator()<Typed<float>>();
    case DType::f64: return run.operator()<Typed<double>>();
    case DType::bf16: return run.operator()<Typed<bf16>>();
    default: return run.operator()<AnyInt>();
  }
}

/// An element of y is `one` if its class (the offset in the third view) equals the index, else 0
/// bits, which mean 0 in every dtype.
template <class T>
__global__ void __launch_bounds__(kBlock)
    one_hot_kernel(std::int64_t n, const __grid_constant__ Offsets<3> offsets, T* y,
                   const std::int64_t* index, T one) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * kBlock) {
    const OffsetArray<3> o = offsets.at_any(i);
    y[o.at[0]] = index[o.at[1]] == o.at[2] ? one : T{};
  }
}

void check_bounds(const Stream& stream, const char* op, const View& index, std::int64_t bound) {
  const std::int64_t n = index.numel();
  if (n == 0) return;
  // Not sorted as by index_space: the position in the message counts in row order.
  IndexSpace<1> space;
  for (int d = index.shape.size() - 1; d >= 0; --d) {
    space.add_outer(index.shape[d], {index.strides[d]});
  }
  BadIndex bad;
  {
    const Scratch scratch(stream);
    auto* const result = static_cast<BadIndex*>(scratch.data());
    launch("check_bounds", stream, check_bounds_kernel, 1, kBoundsBlock, index.as<std::int64_t>(),
           Offsets<1>(space), n, bound, result);
    WEFT_CUDA(cudaMemcpyAsync(&bad, result, sizeof bad, cudaMemcpyDeviceToHost, handle(stream)));
  }
  WEFT_CUDA(cudaStreamSynchronize(handle(stream)));
  if (bad.left == 0) return;
  std::int64_t position = n - bad.left;
  Dims at = Dims::filled(index.shape.size(), 0);
  for (int d = index.shape.size() - 1; d >= 0; --d) {
    at[d] = position % index.shape[d];
    position /= index.shape[d];
  }
  WEFT_THROW(InvalidArgument, op, "index ", bad.value, " at position ", to_string(at),
             " is out of range [0, ", bound, ")");
}

void index_select(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  take("index_select", stream, x, dim, index, along(y.shape.size(), dim, index.strides[0]), y);
}

void gather(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  take("gather", stream, x, dim, index, index.strides, y);
}

void index_add(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  add("index_add", stream, x, dim, index, along(x.shape.size(), dim, index.strides[0]), y);
}

void scatter_add(const Stream& stream, const View& x, int dim, const View& index, const View& y) {
  add("scatter_add", stream, x, dim, index, index.strides, y);
}

void one_hot(const Stream& stream, const View& index, const View& y) {
  const std::int64_t n = y.numel();
  if (n == 0) return;
  const int last = y.shape.size() - 1;
  Strides index_strides = index.strides;
  index_strides.push_back(0);
  const Strides classes = along(y.shape.size(), last, 1);
  const Offsets<3> offsets(index_space<3>(y.shape, {&y.strides, &index_strides, &classes}));
  dispatch_all(y.dtype, [&]<class T>() {
    launch("one_hot", stream, one_hot_kernel<T>, grid_blocks(n), kBlock, n, offsets, y.as<T>(),
           index.as<std::int64_t>(), static_cast<T>(1.0f));
  });
}

}  // namespace

IndexingKernels indexing_kernels() {
  return {.check_bounds = check_bounds,
          .index_select = index_select,
          .index_add = index_add,
          .gather = gather,
          .scatter_add = scatter_add,
          .one_hot = one_hot};
}

}  // namespace weft::cuda
