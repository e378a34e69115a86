// cuDNN's legacy convolutions, as plain loops over the descriptors' sizes, summed in f64.
#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/numbers.h"

using namespace emulator;

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct {
  int type = -1, format = -1;
  int dim[4] = {};
};
struct cudnnFilterStruct {
  int type = -1, format = -1;
  int dim[4] = {};
};
struct cudnnConvolutionStruct {
  int pad[2] = {}, stride[2] = {}, dilation[2] = {}, groups = 1;
  int type = -1, math = CUDNN_DEFAULT_MATH;
  bool flips = false;
};
struct cudnnActivationStruct {
  int mode = -1;
};

namespace {

enum Pass { forward, data, weights };

bool refuses = false;  // to run an algorithm that it has offered

/// Everything a convolution depends on, by value: descriptors may die before it runs.
struct Problem {
  Pass pass;
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  cudnnConvolutionStruct conv;
  bool f64() const { return x.type == CUDNN_DATA_DOUBLE; }
};

Number number_of(int type) {
  return type == CUDNN_DATA_DOUBLE     ? Number::f64
         : type == CUDNN_DATA_FLOAT    ? Number::f32
         : type == CUDNN_DATA_BFLOAT16 ? Number::bf16
                                       : Number::none;
}
int size_of(int type) { return emulator::size_of(number_of(type)); }

template <class D>
std::int64_t bytes_of(const D& d) {
  return std::int64_t{d.dim[0]} * d.dim[1] * d.dim[2] * d.dim[3] * size_of(d.type);
}

int extent(const Problem& p, int axis) {  // of the small image
  return 1 + (p.x.dim[2 + axis] + 2 * p.conv.pad[axis] -
              ((p.w.dim[2 + axis] - 1) * p.conv.dilation[axis] + 1)) /
                 p.conv.stride[axis];
}

cudnnStatus_t check(const Problem& p) {
  if (p.x.type < 0 || p.y.type < 0 || p.w.type < 0 || p.conv.type < 0) {
    fault("cudnn: a descriptor was never set");
  }
  bool fits = p.x.dim[0] == p.y.dim[0] && p.x.dim[1] == p.w.dim[1] * p.conv.groups &&
              p.y.dim[1] == p.w.dim[0] && p.w.dim[0] % p.conv.groups == 0;
  for (int axis = 0; axis < 2; ++axis) fits = fits && p.y.dim[2 + axis] == extent(p, axis);
  if (!fits) {
    fault("cudnn: x [%d,%d,%d,%d], w [%d,%d,%d,%d], y [%d,%d,%d,%d] do not fit", p.x.dim[0],
          p.x.dim[1], p.x.dim[2], p.x.dim[3], p.w.dim[0], p.w.dim[1], p.w.dim[2], p.w.dim[3],
          p.y.dim[0], p.y.dim[1], p.y.dim[2], p.y.dim[3]);
  }
  if (p.x.type != p.y.type || p.x.type != p.w.type) return CUDNN_STATUS_NOT_SUPPORTED;
  if (p.conv.type != (p.f64() ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (p.x.format != p.y.format || p.x.format != p.w.format) return CUDNN_STATUS_NOT_SUPPORTED;
  return CUDNN_STATUS_SUCCESS;
}

/// Roughly as in NVIDIA's tables of supported combinations: channels last has only the implicit
/// products, and none in f64; the other algorithms need stride 1, or 3x3 filters and the like.
bool supports(const Problem& p, int algorithm) {
  if (!options().convolutions) return false;
  const auto& c = p.conv;
  const bool plain = c.dilation[0] == 1 && c.dilation[1] == 1;
  const bool unit = plain && c.stride[0] == 1 && c.stride[1] == 1;
  const bool three = p.w.dim[2] == 3 && p.w.dim[3] == 3;
  const bool nhwc = p.x.format == CUDNN_TENSOR_NHWC;
  const bool bf16 = p.x.type == CUDNN_DATA_BFLOAT16;
  if (nhwc && p.f64()) return false;
  if (bf16 && options().capabilities[current_device()][0] < 8) return false;
  const bool transformable = unit && !nhwc && !bf16 && !p.f64() && c.groups == 1;
  switch (p.pass) {
    case forward:
      switch (algorithm) {
        case CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM: return true;
        case CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM: return true;
        case CUDNN_CONVOLUTION_FWD_ALGO_GEMM: return plain && !nhwc && !bf16;
        case CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING: return transformable;
        case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD: return transformable && three;
        case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED: return transformable && three;
        default: return false;
      }
    case data:
      switch (algorithm) {
        case CUDNN_CONVOLUTION_BWD_DATA_ALGO_0: return !nhwc;
        case CUDNN_CONVOLUTION_BWD_DATA_ALGO_1: return true;
        case CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING: return transformable;
        case CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD: return transformable && three;
        default: return false;
      }
    case weights:
      switch (algorithm) {
        case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0: return true;
        case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1: return true;
        case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3: return !nhwc && plain;
        case CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED: return transformable && three;
        default: return false;
      }
  }
  return false;
}

bool deterministic(Pass pass, int algorithm) {
  if (pass == data) return algorithm != CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
  if (pass == weights) {
    return algorithm != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 &&
           algorithm != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
  }
  return true;
}

std::size_t workspace_of(const Problem& p, int algorithm) {
  return algorithm == 0 ? 0 : 1000 * static_cast<std::size_t>(algorithm) + p.x.dim[2] % 7;
}

double load(int type, const void* p, std::int64_t i) {
  return emulator::load(number_of(type), p, i);
}
void store(int type, void* p, std::int64_t i, double value) {
  emulator::store(number_of(type), p, i, value);
}

/// Calls f(i) with the index in memory of each element, in the order n, c, h, w.
template <class D, class F>
void for_each_place(const D& d, F&& f) {
  const std::int64_t C = d.dim[1], H = d.dim[2], W = d.dim[3];
  for (std::int64_t n = 0; n < d.dim[0]; ++n) {
    for (std::int64_t c = 0; c < C; ++c) {
      for (std::int64_t h = 0; h < H; ++h) {
        for (std::int64_t w = 0; w < W; ++w) {
          f(d.format == CUDNN_TENSOR_NCHW ? ((n * C + c) * H + h) * W + w
                                          : ((n * H + h) * W + w) * C + c);
        }
      }
    }
  }
}

template <class D>
std::vector<double> read(const D& d, const void* p, bool fast) {
  std::vector<double> out;
  out.reserve(bytes_of(d) / size_of(d.type));
  for_each_place(d, [&](std::int64_t i) {
    const double v = load(d.type, p, i);
    out.push_back(fast ? tf32(static_cast<float>(v)) : v);
  });
  return out;
}

template <class D>
void write(const D& d, void* p, const std::vector<double>& values, double alpha, double beta) {
  std::size_t at = 0;
  for_each_place(d, [&](std::int64_t i) {
    double v = alpha * values[at++];
    if (beta != 0) v += beta * load(d.type, p, i);
    store(d.type, p, i, v);
  });
}

/// Adds the result of p.pass to its output, which is one of the three; the other two are its
/// inputs. All are in the order n, c, h, w.
void convolve(const Problem& p, std::vector<double>& x, std::vector<double>& w,
              std::vector<double>& y) {
  const auto& c = p.conv;
  const int groups = c.groups, K = p.w.dim[0], Cg = p.w.dim[1], R = p.w.dim[2], S = p.w.dim[3];
  const int H = p.x.dim[2], W = p.x.dim[3], Ho = p.y.dim[2], Wo = p.y.dim[3];
  for (int n = 0; n < p.x.dim[0]; ++n) {
    for (int k = 0; k < K; ++k) {
      const int first = k / (K / groups) * Cg;
      for (int i = 0; i < Cg; ++i) {
        for (int r = 0; r < R; ++r) {
          const int r_from = c.flips ? R - 1 - r : r;
          for (int s = 0; s < S; ++s) {
            const int s_from = c.flips ? S - 1 - s : s;
            double& weight = w[((std::int64_t{k} * Cg + i) * R + r_from) * S + s_from];
            double sum = 0;
            for (int ho = 0; ho < Ho; ++ho) {
              const int h = ho * c.stride[0] - c.pad[0] + r * c.dilation[0];
              if (h < 0 || h >= H) continue;
              double* const yr = &y[((std::int64_t{n} * K + k) * Ho + ho) * Wo];
              double* const xr = &x[((std::int64_t{n} * p.x.dim[1] + first + i) * H + h) * W];
              for (int wo = 0; wo < Wo; ++wo) {
                const int at = wo * c.stride[1] - c.pad[1] + s * c.dilation[1];
                if (at < 0 || at >= W) continue;
                switch (p.pass) {
                  case forward: yr[wo] += xr[at] * weight; break;
                  case data: xr[at] += yr[wo] * weight; break;
                  case weights: sum += xr[at] * yr[wo]; break;
                }
              }
            }
            if (p.pass == weights) weight += sum;
          }
        }
      }
    }
  }
}

struct Bias {
  cudnnTensorStruct desc;
  const void* data = nullptr;
};

void compute(const Problem& p, void* x, void* w, void* y, double alpha, double beta, Bias bias) {
  const bool fast = p.x.type == CUDNN_DATA_FLOAT && p.conv.math != CUDNN_FMA_MATH;
  std::vector<double> vx(bytes_of(p.x) / size_of(p.x.type)), vw(bytes_of(p.w) / size_of(p.w.type)),
      vy(bytes_of(p.y) / size_of(p.y.type));
  if (p.pass != data) vx = read(p.x, x, fast);
  if (p.pass != weights) vw = read(p.w, w, fast);
  if (p.pass != forward) vy = read(p.y, y, fast);
  convolve(p, vx, vw, vy);
  if (bias.data) {
    const std::int64_t area = std::int64_t{p.y.dim[2]} * p.y.dim[3];
    for (std::size_t i = 0; i < vy.size(); ++i) {
      vy[i] += load(bias.desc.type, bias.data, static_cast<std::int64_t>(i) / area % p.y.dim[1]);
    }
  }
  if (p.pass == forward) write(p.y, y, vy, alpha, beta);
  if (p.pass == data) write(p.x, x, vx, alpha, beta);
  if (p.pass == weights) write(p.w, w, vw, alpha, beta);
}

double scalar(const Problem& p, const void* v) {
  return p.f64() ? *static_cast<const double*>(v) : *static_cast<const float*>(v);
}

cudnnStatus_t run(cudnnHandle_t handle, const Problem& p, int algorithm, const void* x,
                  const void* w, const void* y, void* workspace, std::size_t bytes,
                  const void* alpha, const void* beta, Bias bias = {}) {
  const Guard guard;
  int device = -1;
  cudaGetDevice(&device);
  if (handle->device != device || check_stream(handle->stream) != cudaSuccess) {
    fault("cudnn: handle, stream and current device are not one device's");
  }
  if (const auto status = check(p); status != CUDNN_STATUS_SUCCESS) return status;
  if (refuses || !supports(p, algorithm)) return CUDNN_STATUS_NOT_SUPPORTED;
  const std::size_t needed = workspace_of(p, algorithm);
  if (bytes < needed ||
      (needed && (!is_device_memory(workspace, needed, device) || !aligned(workspace, 16)))) {
    fault("cudnn: workspace %p of %zu bytes, %zu needed", workspace, bytes, needed);
  }
  for (const void* v : {x, w, y}) {
    if (!aligned(v, 16)) fault("cudnn: an operand at %p", v);
  }
  if (bias.data && !aligned(bias.data, 16)) fault("cudnn: a bias at %p", bias.data);
  if (!is_device_memory(x, bytes_of(p.x), device) || !is_device_memory(w, bytes_of(p.w), device) ||
      !is_device_memory(y, bytes_of(p.y), device) ||
      (bias.data && !is_device_memory(bias.data, bytes_of(bias.desc), device))) {
    fault("cudnn: an operand reaches out of its memory");
  }
  const double a = scalar(p, alpha), b = scalar(p, beta);
  const std::int64_t written = p.pass == forward ? bytes_of(p.y)
                               : p.pass == data  ? bytes_of(p.x)
                                                 : bytes_of(p.w);
  const std::int64_t named = bytes_of(p.x) + bytes_of(p.w) + bytes_of(p.y) +
                             (b != 0 ? written : 0) + (bias.data ? bytes_of(bias.desc) : 0);
  const auto status = enqueue(handle->stream, [=] {
    statistics().add(statistics().convolutions, named);
    if (options().counts) return;
    if (needed) scribble(workspace, needed);
    compute(p, const_cast<void*>(x), const_cast<void*>(w), const_cast<void*>(y), a, b, bias);
  });
  return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// The handle's device must be current for queries, too.
void check_asked(cudnnHandle_t handle) {
  if (handle->device != current_device()) {
    fault("cudnn: a handle of cuda:%d is asked on cuda:%d", handle->device, current_device());
  }
}

template <class Perf>
cudnnStatus_t rank(cudnnHandle_t handle, const Problem& p, int count, int requested, int* returned,
                   Perf* perfs) {
  const Guard guard;
  check_asked(handle);
  *returned = 0;
  if (const auto status = check(p); status != CUDNN_STATUS_SUCCESS) return status;
  std::vector<int> works, others;
  for (int a = 0; a < count; ++a) (supports(p, a) ? works : others).push_back(a);
  std::rotate(works.begin(), works.begin() + (works.empty() ? 0 : p.x.dim[1] % works.size()),
              works.end());
  for (const bool good : {true, false}) {
    for (const int a : good ? works : others) {
      if (*returned == requested) return CUDNN_STATUS_SUCCESS;
      Perf& perf = perfs[(*returned)++];
      perf = {};
      perf.algo = static_cast<decltype(perf.algo)>(a);
      perf.status = good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
      perf.time = good ? 1 : -1;
      perf.memory = good ? workspace_of(p, a) : 0;
      perf.determinism = deterministic(p.pass, a) ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
      // More generous than FMA_MATH if that was asked for, like the library.
      perf.mathType =
          p.conv.math == CUDNN_TENSOR_OP_MATH ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t query(cudnnHandle_t handle, const Problem& p, int algorithm, std::size_t* bytes) {
  check_asked(handle);
  *bytes = 0;
  if (const auto status = check(p); status != CUDNN_STATUS_SUCCESS) return status;
  if (!supports(p, algorithm)) return CUDNN_STATUS_NOT_SUPPORTED;
  *bytes = workspace_of(p, algorithm);
  return CUDNN_STATUS_SUCCESS;
}

template <class D>
cudnnStatus_t set(D* d, int format, int type, int a, int b, int c, int e) {
  if (a <= 0 || b <= 0 || c <= 0 || e <= 0) return CUDNN_STATUS_BAD_PARAM;
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_BAD_PARAM;
  *d = D{type, format, {a, b, c, e}};
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// For tests.
void weft_emulated_refuse_convolutions(bool on) {
  const Guard guard;
  refuses = on;
}

std::size_t cudnnGetVersion() { return 91400; }
const char* cudnnGetErrorString(cudnnStatus_t s) {
  switch (s) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_OTHER";
  }
}
void cudnnGetLastErrorString(char* text, std::size_t n) {
  if (n) *text = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* h) {
  if (prohibited()) return CUDNN_STATUS_NOT_INITIALIZED;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  *h = new cudnnContext{device_with_context()};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
  delete h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) {
  if (check_stream(stream) != cudaSuccess) fault("cudnnSetStream: a stream of another device");
  h->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTOR(Name)                                                      \
  cudnnStatus_t cudnnCreate##Name##Descriptor(cudnn##Name##Descriptor_t* d) { \
    *d = new std::remove_pointer_t<cudnn##Name##Descriptor_t>();              \
    return CUDNN_STATUS_SUCCESS;                                              \
  }                                                                           \
  cudnnStatus_t cudnnDestroy##Name##Descriptor(cudnn##Name##Descriptor_t d) { \
    delete d;                                                                 \
    return CUDNN_STATUS_SUCCESS;                                              \
  }
DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return set(d, format, type, n, c, h, w);
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return set(d, format, type, k, c, h, w);
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t,
                                           double) {
  d->mode = mode;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
                                              int u, int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t type) {
  if (pad_h < 0 || pad_w < 0 || u <= 0 || v <= 0 || dilation_h <= 0 || dilation_w <= 0) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  d->pad[0] = pad_h, d->pad[1] = pad_w, d->stride[0] = u, d->stride[1] = v;
  d->dilation[0] = dilation_h, d->dilation[1] = dilation_w;
  d->flips = mode == CUDNN_CONVOLUTION;
  d->type = type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  if (groups <= 0) return CUDNN_STATUS_BAD_PARAM;
  d->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  d->math = math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t c,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t w, int* n, int* k,
                                                    int* h, int* width) {
  const Problem p{forward, *x, {}, *w, *c};
  if (x->dim[1] != w->dim[1] * c->groups) return CUDNN_STATUS_BAD_PARAM;
  *n = x->dim[0], *k = w->dim[0], *h = extent(p, 0), *width = extent(p, 1);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y, const int requested,
    int* returned, cudnnConvolutionFwdAlgoPerf_t* perfs) {
  return rank(handle, {forward, *x, *y, *w, *c}, CUDNN_CONVOLUTION_FWD_ALGO_COUNT, requested,
              returned, perfs);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx, const int requested,
    int* returned, cudnnConvolutionBwdDataAlgoPerf_t* perfs) {
  return rank(handle, {data, *dx, *dy, *w, *c}, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, requested,
              returned, perfs);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw, const int requested,
    int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* perfs) {
  return rank(handle, {weights, *x, *dy, *dw, *c}, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT,
              requested, returned, perfs);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, std::size_t* bytes) {
  return query(handle, {forward, *x, *y, *w, *c}, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, std::size_t* bytes) {
  return query(handle, {data, *dx, *dy, *w, *c}, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes) {
  return query(handle, {weights, *x, *dy, *dw, *c}, algorithm, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t xd, const void* x,
                                      const cudnnFilterDescriptor_t wd, const void* w,
                                      const cudnnConvolutionDescriptor_t c,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace,
                                      std::size_t bytes, const void* beta,
                                      const cudnnTensorDescriptor_t yd, void* y) {
  return run(handle, {forward, *xd, *yd, *wd, *c}, algorithm, x, w, y, workspace, bytes, alpha,
             beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t wd, const void* w,
                                           const cudnnTensorDescriptor_t yd, const void* y,
                                           const cudnnConvolutionDescriptor_t c,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                           std::size_t bytes, const void* beta,
                                           const cudnnTensorDescriptor_t xd, void* x) {
  return run(handle, {data, *xd, *yd, *wd, *c}, algorithm, x, w, y, workspace, bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t xd, const void* x,
                                             const cudnnTensorDescriptor_t yd, const void* y,
                                             const cudnnConvolutionDescriptor_t c,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void* workspace, std::size_t bytes, const void* beta,
                                             const cudnnFilterDescriptor_t wd, void* w) {
  return run(handle, {weights, *xd, *yd, *wd, *c}, algorithm, x, w, y, workspace, bytes, alpha,
             beta);
}
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha1, const cudnnTensorDescriptor_t xd, const void* x,
    const cudnnFilterDescriptor_t wd, const void* w, const cudnnConvolutionDescriptor_t c,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, std::size_t bytes, const void* alpha2,
    const cudnnTensorDescriptor_t zd, const void* z, const cudnnTensorDescriptor_t bd,
    const void* bias, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t yd, void* y) {
  // NVIDIA: CUDNN_ACTIVATION_IDENTITY works only with this algorithm; z and y have the same shape;
  // the bias is not empty.
  if (activation->mode != CUDNN_ACTIVATION_IDENTITY ||
      algorithm != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  const Problem p{forward, *xd, *yd, *wd, *c};
  if (!bias || bd->dim[0] != 1 || bd->dim[1] != yd->dim[1] || bd->dim[2] != 1 || bd->dim[3] != 1 ||
      bd->type != yd->type || std::memcmp(zd->dim, yd->dim, sizeof zd->dim) ||
      scalar(p, alpha2) != 0 || z != y) {
    fault("cudnnConvolutionBiasActivationForward: operands that weft has no use for");
  }
  return run(handle, p, algorithm, x, w, y, workspace, bytes, alpha1, alpha2, {*bd, bias});
}

}  // extern "C"
