// cuDNN's backend API for convolutions, with or without bias and relu: descriptors are attributes
// by name; an operation graph becomes a Problem, the heuristics offer configurations for it, and a
// plan of one runs as plain loops over the tensors' sizes and strides, summed in f64.
#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/numbers.h"

using namespace emulator;

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
};

namespace {

// Whether a plan that was made refuses to run, by its engine, its workspace in bytes, and whether
// it ends in a relu; and the status then.
using Refuses = bool (*)(int engine, std::int64_t workspace, bool relu);
Refuses refuses = [](int, std::int64_t, bool) { return false; };
cudnnStatus_t refused_status = CUDNN_STATUS_NOT_SUPPORTED;

// --- What is computed

struct TensorSpec {
  std::int64_t id = 0, dim[4] = {}, stride[4] = {};
  int type = -1;
  bool is_virtual = false;

  Number number() const {
    return type == CUDNN_DATA_DOUBLE     ? Number::f64
           : type == CUDNN_DATA_FLOAT    ? Number::f32
           : type == CUDNN_DATA_BFLOAT16 ? Number::bf16
                                         : Number::none;
  }
  std::int64_t count() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
  std::int64_t bytes() const { return count() * size_of(number()); }
  /// Whether it is dense, in the order of dimensions that `order` gives from the outermost on.
  bool dense(std::initializer_list<int> order) const {
    std::int64_t expected = count();
    for (const int d : order) {
      expected /= dim[d];
      if (dim[d] > 1 && stride[d] != expected) return false;
    }
    return true;
  }
  bool nchw() const { return dense({0, 1, 2, 3}); }
  bool nhwc() const { return dense({0, 2, 3, 1}); }
};

enum Pass { forward, data, weights };

struct Problem {
  Pass pass = forward;
  TensorSpec x, w, y;              // y: the sums, if something is done to them
  std::optional<TensorSpec> bias;  // [1,K,1,1]
  bool relu = false;               // at the end; it leaves a NaN
  std::int64_t result_id = 0;      // of y, or of what becomes of it
  std::int64_t pad[2] = {}, stride[2] = {}, dilation[2] = {};
  int sum_type = -1;

  std::int64_t groups() const { return x.dim[1] / w.dim[1]; }
  int type() const { return x.type; }  // of all that lie in memory
  bool nchw() const { return x.nchw() && w.nchw() && y.nchw(); }
  bool nhwc() const { return x.nhwc() && w.nhwc() && y.nhwc(); }

  bool fits() const {
    bool good = x.dim[0] == y.dim[0] && x.dim[1] % w.dim[1] == 0 && y.dim[1] == w.dim[0] &&
                w.dim[0] % groups() == 0;
    for (int i = 0; i < 2; ++i) {
      const std::int64_t covered = (w.dim[2 + i] - 1) * dilation[i] + 1;
      good = good && y.dim[2 + i] == 1 + (x.dim[2 + i] + 2 * pad[i] - covered) / stride[i];
    }
    return good;
  }
};

// --- What cuDNN has for it

using Notes = std::vector<cudnnBackendNumericalNote_t>;

struct Knob {
  cudnnBackendKnobType_t type;
  std::int64_t value;
};

struct Config {
  Problem problem;
  int engine = 0;
  Notes notes;
  std::vector<Knob> knobs;

  bool has(cudnnBackendNumericalNote_t note) const {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  }
  std::int64_t workspace() const {
    return engine % 4 == 0 ? 0 : 100 * engine + problem.x.dim[2] % 7;
  }
  /// Some of what the heuristics offer turns out to be impossible: the third variant of an engine.
  bool finalises() const { return knobs.empty() || knobs[0].value != 2; }
};

/// Modelled on the real library's lists for an H100, but with numbers, knobs and an order that are
/// made up: most of mode A's list computes with tensor cores, those without come late; FALLBACK has
/// some that are slow and always there. Transformed images only with 3x3 filters, stride 1 and no
/// groups.
std::vector<Config> offered(const Problem& p, cudnnBackendHeurMode_t mode) {
  const int type = p.type();
  const bool new_gpu = options().capabilities[current_device()][0] >= 8;
  if (type == CUDNN_DATA_BFLOAT16 && !new_gpu) return {};
  if (!p.nchw() && !p.nhwc()) return {};
  std::vector<Config> out;
  const auto add = [&](int engine, const Notes& notes, int variants = 0) {
    if (variants == 0) out.push_back({p, engine, notes, {}});
    for (int i = 0; i < variants; ++i) {
      out.push_back(
          {p, engine, notes, {{CUDNN_KNOB_TYPE_TILE_SIZE, i}, {CUDNN_KNOB_TYPE_EDGE, 1}}});
    }
  };
  const int varying = p.pass == data ? 25 : p.pass == weights ? 20 : 28;
  const Notes varies = p.pass == forward ? Notes{} : Notes{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  if (mode == CUDNN_HEUR_MODE_FALLBACK) {
    add(p.bias ? 11 : 1, {});
    if (!p.bias) add(varying, varies);
    add(0, {});
    return out;
  }
  const bool transformable = p.w.dim[2] == 3 && p.w.dim[3] == 3 && p.stride[0] == 1 &&
                             p.stride[1] == 1 && p.dilation[0] == 1 && p.dilation[1] == 1 &&
                             p.groups() == 1;
  if (type == CUDNN_DATA_BFLOAT16) {
    add(62, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 20);
    add(22, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 6);
    return out;
  }
  if (type == CUDNN_DATA_FLOAT && new_gpu) {
    add(67, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 18);
    add(38, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}, 4);
    add(39, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS});
  }
  if (type == CUDNN_DATA_FLOAT && transformable) {
    add(6, {CUDNN_NUMERICAL_NOTE_WINOGRAD});
    add(7, {CUDNN_NUMERICAL_NOTE_FFT});
  }
  const auto plain = static_cast<std::ptrdiff_t>(out.size());
  add(varying, varies);
  add(70, {}, 4);
  add(0, {});
  // Not for every problem in the same order.
  std::rotate(out.begin() + plain, out.begin() + plain + p.x.dim[1] % 3, out.end());
  return out;
}

// --- Descriptors

struct Descriptor;
using DescriptorRef = std::shared_ptr<Descriptor>;

struct Value {
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  std::vector<char> bytes;
  std::vector<DescriptorRef> descriptors;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Value> attributes;
  // What it was finalized to: a tensor, a graph's or an operation's problem, the heuristics' list,
  // a configuration.
  TensorSpec tensor;
  Problem problem;
  std::vector<Config> configs;
  Knob knob{};

  const Value& at(int name, cudnnBackendAttributeType_t value_type) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) fault("cudnn: descriptor %d lacks attribute %d", type, name);
    if (found->second.type != value_type) {
      fault("cudnn: attribute %d has type %d, not %d", name, found->second.type, value_type);
    }
    return found->second;
  }
  const DescriptorRef& ref(int name) const {
    return at(name, CUDNN_TYPE_BACKEND_DESCRIPTOR).descriptors.at(0);
  }
  template <class T>
  std::vector<T> values(int name, cudnnBackendAttributeType_t value_type) const {
    const Value& v = at(name, value_type);
    std::vector<T> out(static_cast<std::size_t>(v.count));
    if (v.bytes.size() != out.size() * sizeof(T)) fault("cudnn: attribute %d: sizes", name);
    std::memcpy(out.data(), v.bytes.data(), v.bytes.size());
    return out;
  }
  template <class T>
  T value(int name, cudnnBackendAttributeType_t value_type) const {
    return values<T>(name, value_type).at(0);
  }
  int data_type(int name) const { return value<cudnnDataType_t>(name, CUDNN_TYPE_DATA_TYPE); }
};

DescriptorRef& ref_of(cudnnBackendDescriptor_t d) {
  if (!d) fault("cudnn: a null descriptor");
  return *static_cast<DescriptorRef*>(d);
}

std::size_t size_of_values(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64: return sizeof(std::int64_t);
    case CUDNN_TYPE_DOUBLE: return sizeof(double);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE: return sizeof(void*);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NAN_PROPOGATION:
    case CUDNN_TYPE_POINTWISE_MODE: return sizeof(int);
    default: fault("cudnn: values of type %d", type);
  }
}

/// Reads the two sizes of a convolution's attribute.
void read_pair(const Descriptor& conv, int name, std::int64_t (&to)[2]) {
  const auto values = conv.values<std::int64_t>(name, CUDNN_TYPE_INT64);
  if (values.size() != 2) fault("cudnn: attribute %d has %zu values", name, values.size());
  std::copy(values.begin(), values.end(), to);
}

cudnnStatus_t finalize_tensor(Descriptor& d) {
  const auto dims = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64);
  const auto strides = d.values<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64);
  if (dims.size() != 4 || strides.size() != 4) fault("cudnn: a tensor without 4 dimensions");
  if (std::min({dims[0], dims[1], dims[2], dims[3]}) <= 0) return CUDNN_STATUS_BAD_PARAM;
  std::copy(dims.begin(), dims.end(), d.tensor.dim);
  std::copy(strides.begin(), strides.end(), d.tensor.stride);
  d.tensor.id = d.value<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64);
  d.tensor.type = d.data_type(CUDNN_ATTR_TENSOR_DATA_TYPE);
  d.tensor.is_virtual = d.value<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN) != 0;
  if (d.value<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64) != 16) {
    fault("cudnn: an alignment that this file does not check");
  }
  return d.tensor.number() == Number::none ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_convolution(Descriptor& d) {
  Problem& p = d.problem;
  std::int64_t post[2];
  read_pair(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p.pad);
  read_pair(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, post);
  read_pair(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, p.dilation);
  read_pair(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p.stride);
  p.sum_type = d.data_type(CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  const auto mode = d.value<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                                                    CUDNN_TYPE_CONVOLUTION_MODE);
  const auto axes = d.value<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64);
  if (mode != CUDNN_CROSS_CORRELATION || axes != 2 || post[0] != p.pad[0] || post[1] != p.pad[1]) {
    fault("cudnn: a convolution that weft has no use for");
  }
  for (int i = 0; i < 2; ++i) {
    if (p.pad[i] < 0 || p.stride[i] <= 0 || p.dilation[i] <= 0) return CUDNN_STATUS_BAD_PARAM;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_operation(Descriptor& d, Pass pass, int conv, int x, int w, int y, int alpha,
                                 int beta) {
  d.problem = d.ref(conv)->problem;
  Problem& p = d.problem;
  p.pass = pass;
  p.x = d.ref(x)->tensor, p.w = d.ref(w)->tensor, p.y = d.ref(y)->tensor;
  p.result_id = p.y.id;
  if (d.value<double>(alpha, CUDNN_TYPE_DOUBLE) != 1 ||
      d.value<double>(beta, CUDNN_TYPE_DOUBLE) != 0) {
    fault("cudnn: factors that weft has no use for");
  }
  return p.fits() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/// y = x + b, or relu(x) that leaves a NaN.
cudnnStatus_t finalize_pointwise(const Descriptor& d) {
  const auto mode =
      d.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
  const bool keeps_nan =
      mode == CUDNN_POINTWISE_RELU_FWD &&
      d.value<cudnnNanPropagation_t>(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION,
                                     CUDNN_TYPE_NAN_PROPOGATION) == CUDNN_PROPAGATE_NAN;
  if (mode != CUDNN_POINTWISE_ADD && !keeps_nan) {
    fault("cudnn: a pointwise operation that weft has no use for");
  }
  return CUDNN_STATUS_SUCCESS;
}

/// Adds a pointwise operation behind those of p, whose result so far is `sums`. Returns its result.
TensorSpec append(Problem& p, const Descriptor& operation, const TensorSpec& sums) {
  const TensorSpec& x = operation.ref(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)->tensor;
  const TensorSpec y = operation.ref(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)->tensor;
  bool good = !p.relu && x.id == sums.id && sums.is_virtual && sums.type == p.sum_type &&
              std::equal(y.dim, y.dim + 4, p.y.dim) &&
              std::equal(y.stride, y.stride + 4, p.y.stride);
  if (operation.attributes.contains(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)) {
    const TensorSpec& b = operation.ref(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)->tensor;
    good = good && !p.bias && b.dim[0] == 1 && b.dim[1] == p.y.dim[1] && b.dim[2] == 1 &&
           b.dim[3] == 1;
    p.bias = b;
  } else {
    p.relu = true;
  }
  if (!good) fault("cudnn: a graph that weft has no use for");
  return y;
}

/// A convolution, or one whose sums are virtual, with a bias that is added to them and a relu, or
/// one of the two.
cudnnStatus_t finalize_graph(Descriptor& d) {
  const auto& operations =
      d.at(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR).descriptors;
  const auto handle = d.value<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE);
  if (handle->device != current_device()) {
    fault("cudnn: a handle of cuda:%d is asked on cuda:%d", handle->device, current_device());
  }
  d.problem = operations.at(0)->problem;
  Problem& p = d.problem;
  TensorSpec result = p.y;
  for (std::size_t i = 1; i < operations.size(); ++i) result = append(p, *operations[i], result);
  p.y.type = result.type;
  p.result_id = result.id;
  if (p.x.is_virtual || p.w.is_virtual || result.is_virtual) {
    fault("cudnn: a graph that weft has no use for");
  }
  // "for a transposed convolution, which is a dgrad, the library has no plan with a bias".
  if (operations.size() > 1 && p.pass != forward) return CUDNN_STATUS_NOT_SUPPORTED;
  const int sums = p.type() == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  if (p.x.type != p.w.type || p.x.type != p.y.type || (p.bias && p.bias->type != p.x.type) ||
      p.sum_type != sums) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return finalize_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return finalize_convolution(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return finalize_operation(d, forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return finalize_operation(d, data, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return finalize_operation(d, weights, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR: return finalize_pointwise(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      d.ref(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      d.configs = offered(
          d.ref(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->problem,
          d.value<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE));
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      d.value<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE);
      d.configs = d.ref(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->configs;
      return d.configs.at(0).finalises() ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return CUDNN_STATUS_SUCCESS;
    default: fault("cudnn: a descriptor of type %d is finalized", d.type);
  }
}

// --- Running a plan

/// How an engine reads f32: as it is, or rounded as its notes allow.
double rounded(const Config& config, double value) {
  if (config.problem.type() != CUDNN_DATA_FLOAT) return value;
  if (config.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) {
    std::uint16_t half;
    store(Number::bf16, &half, 0, value);
    return load(Number::bf16, &half, 0);
  }
  return config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ? tf32(static_cast<float>(value)) : value;
}

/// Calls f(i) with the index in memory of each element, in the order n, c, h, w.
template <class F>
void for_each_place(const TensorSpec& t, F&& f) {
  for (std::int64_t n = 0; n < t.dim[0]; ++n) {
    for (std::int64_t c = 0; c < t.dim[1]; ++c) {
      for (std::int64_t h = 0; h < t.dim[2]; ++h) {
        for (std::int64_t w = 0; w < t.dim[3]; ++w) {
          f(n * t.stride[0] + c * t.stride[1] + h * t.stride[2] + w * t.stride[3]);
        }
      }
    }
  }
}

std::vector<double> read(const Config& config, const TensorSpec& t, const void* p) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(t.count()));
  for_each_place(t,
                 [&](std::int64_t i) { out.push_back(rounded(config, load(t.number(), p, i))); });
  return out;
}

void write(const TensorSpec& t, void* p, const std::vector<double>& values) {
  std::size_t at = 0;
  for_each_place(t, [&](std::int64_t i) { store(t.number(), p, i, values[at++]); });
}

/// Adds the result of p.pass to its output, which is one of the three; the other two are its
/// inputs. All are in the order n, c, h, w.
void convolve(const Problem& p, std::vector<double>& x, std::vector<double>& w,
              std::vector<double>& y) {
  const std::int64_t K = p.w.dim[0], Cg = p.w.dim[1], R = p.w.dim[2], S = p.w.dim[3];
  const std::int64_t C = p.x.dim[1], H = p.x.dim[2], W = p.x.dim[3];
  const std::int64_t Ho = p.y.dim[2], Wo = p.y.dim[3];
  for (std::int64_t n = 0; n < p.x.dim[0]; ++n) {
    for (std::int64_t k = 0; k < K; ++k) {
      const std::int64_t first = k / (K / p.groups()) * Cg;
      for (std::int64_t i = 0; i < Cg; ++i) {
        for (std::int64_t r = 0; r < R; ++r) {
          for (std::int64_t s = 0; s < S; ++s) {
            double& weight = w[static_cast<std::size_t>(((k * Cg + i) * R + r) * S + s)];
            double sum = 0;
            for (std::int64_t ho = 0; ho < Ho; ++ho) {
              const std::int64_t h = ho * p.stride[0] - p.pad[0] + r * p.dilation[0];
              if (h < 0 || h >= H) continue;
              double* const yr = &y[static_cast<std::size_t>(((n * K + k) * Ho + ho) * Wo)];
              double* const xr = &x[static_cast<std::size_t>(((n * C + first + i) * H + h) * W)];
              for (std::int64_t wo = 0; wo < Wo; ++wo) {
                const std::int64_t at = wo * p.stride[1] - p.pad[1] + s * p.dilation[1];
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

struct Operands {
  void *x, *w, *y, *bias;
};

void compute(const Config& config, const Operands& at) {
  const Problem& p = config.problem;
  const auto values = [&](const TensorSpec& t, const void* memory, bool is_result) {
    return is_result ? std::vector<double>(static_cast<std::size_t>(t.count()))
                     : read(config, t, memory);
  };
  std::vector<double> x = values(p.x, at.x, p.pass == data);
  std::vector<double> w = values(p.w, at.w, p.pass == weights);
  std::vector<double> y = values(p.y, at.y, p.pass == forward);
  convolve(p, x, w, y);
  if (p.bias) {
    const std::int64_t area = p.y.dim[2] * p.y.dim[3];
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += load(p.bias->number(), at.bias, static_cast<std::int64_t>(i) / area % p.y.dim[1]);
    }
  }
  if (p.relu) {
    for (double& value : y) value = value <= 0 ? 0 : value;  // a NaN is not <= 0
  }
  if (p.pass == forward) write(p.y, at.y, y);
  if (p.pass == data) write(p.x, at.x, x);
  if (p.pass == weights) write(p.w, at.w, w);
}

/// The pointer that the pack gives a tensor, which must be all device memory.
void* pointer_of(const Descriptor& pack, const TensorSpec& t, std::int64_t id, int device) {
  const auto ids = pack.values<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64);
  const auto pointers =
      pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR);
  const auto found = std::find(ids.begin(), ids.end(), id);
  if (ids.size() != pointers.size() || found == ids.end()) {
    fault("cudnn: no pointer for tensor %ld", static_cast<long>(id));
  }
  void* const p = pointers[static_cast<std::size_t>(found - ids.begin())];
  if (!aligned(p, 16)) fault("cudnn: an operand at %p", p);
  if (!is_device_memory(p, static_cast<std::size_t>(t.bytes()), device)) {
    fault("cudnn: an operand reaches out of its memory");
  }
  return p;
}

/// What the convolution asks of a GPU. Terms of the padding count as operations.
Node node_of(const Config& config) {
  const Problem& p = config.problem;
  const auto text = [](const TensorSpec& t) {
    std::string sizes = std::to_string(t.dim[0]);
    for (int i = 1; i < 4; ++i) sizes += "x" + std::to_string(t.dim[i]);
    return sizes;
  };
  const TensorSpec& result = p.pass == data ? p.x : p.pass == weights ? p.w : p.y;
  const std::int64_t all = p.x.bytes() + p.w.bytes() + p.y.bytes() + (p.bias ? p.bias->bytes() : 0);
  Node node;
  node.traffic = {all - result.bytes(), result.bytes()};
  node.operations = 2 * p.y.count() * p.w.count() / p.w.dim[0];
  node.type = p.type() == CUDNN_DATA_DOUBLE                  ? "f64"
              : p.type() == CUDNN_DATA_BFLOAT16              ? "bf16"
              : config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ? "tf32"
                                                             : "f32";
  node.name = (p.pass == forward ? "convolution "
               : p.pass == data  ? "convolution, gradient of x "
                                 : "convolution, gradient of w ") +
              text(p.x) + " by " + text(p.w) + " to " + text(p.y);
  if (p.bias) node.name += ", with bias";
  return node;
}

cudnnStatus_t execute(cudnnHandle_t handle, const Config& config, const Descriptor& pack) {
  int device = -1;
  cudaGetDevice(&device);
  if (handle->device != device || check_stream(handle->stream) != cudaSuccess) {
    fault("cudnn: handle, stream and current device are not one device's");
  }
  const Problem& p = config.problem;
  if (refuses(config.engine, config.workspace(), p.relu)) return refused_status;
  const auto needed = static_cast<std::size_t>(config.workspace());
  void* const workspace = pack.value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR);
  if (needed && (!is_device_memory(workspace, needed, device) || !aligned(workspace, 16))) {
    fault("cudnn: workspace %p, %zu bytes needed", workspace, needed);
  }
  const Operands at{pointer_of(pack, p.x, p.x.id, device), pointer_of(pack, p.w, p.w.id, device),
                    pointer_of(pack, p.y, p.result_id, device),
                    p.bias ? pointer_of(pack, *p.bias, p.bias->id, device) : nullptr};
  const Node node = node_of(config);
  const auto status = enqueue(handle->stream, [=] {
    statistics().add(statistics().convolutions, node);
    if (options().counts) return;
    if (needed) scribble(workspace, needed);
    compute(config, at);
  });
  return status == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// --- Reading attributes

/// Writes as many values as there is room for.
template <class T>
cudnnStatus_t give(const std::vector<T>& values, std::int64_t room, std::int64_t* count, void* to) {
  *count = std::min<std::int64_t>(room, static_cast<std::int64_t>(values.size()));
  std::copy_n(values.begin(), *count, static_cast<T*>(to));
  return CUDNN_STATUS_SUCCESS;
}

/// The same for descriptors, which exist already and get their content.
cudnnStatus_t give_descriptors(const std::vector<Descriptor>& values, std::int64_t room,
                               std::int64_t* count, void* to) {
  *count = std::min<std::int64_t>(room, static_cast<std::int64_t>(values.size()));
  for (std::int64_t i = 0; i < *count; ++i) {
    Descriptor& given = *ref_of(static_cast<cudnnBackendDescriptor_t*>(to)[i]);
    const Descriptor& value = values[static_cast<std::size_t>(i)];
    if (given.type != value.type) fault("cudnn: a descriptor of type %d to fill", given.type);
    given = value;
  }
  return CUDNN_STATUS_SUCCESS;
}

Descriptor of_config(cudnnBackendDescriptorType_t type, const Config& config) {
  Descriptor d;
  d.type = type;
  d.finalized = true;
  d.configs = {config};
  return d;
}

cudnnStatus_t get(const Descriptor& d, cudnnBackendAttributeName_t name, std::int64_t room,
                  std::int64_t* count, void* to) {
  std::vector<Descriptor> found;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      for (const Config& c : d.configs) {
        found.push_back(of_config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, c));
      }
      return give_descriptors(found, room, count, to);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      found.push_back(of_config(CUDNN_BACKEND_ENGINE_DESCRIPTOR, d.configs.at(0)));
      return give_descriptors(found, room, count, to);
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      for (const Knob& knob : d.configs.at(0).knobs) {
        found.push_back(of_config(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, d.configs.at(0)));
        found.back().knob = knob;
      }
      return give_descriptors(found, room, count, to);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give<std::int64_t>({d.configs.at(0).engine}, room, count, to);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return give(d.configs.at(0).notes, room, count, to);
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
      return give<cudnnBackendKnobType_t>({d.knob.type}, room, count, to);
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      return give<std::int64_t>({d.knob.value}, room, count, to);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give<std::int64_t>({d.configs.at(0).workspace()}, room, count, to);
    default: fault("cudnn: attribute %d is asked for", name);
  }
}

}  // namespace

extern "C" {

// For tests: which plans refuse to run from now on.
void weft_emulated_refuse(Refuses which, cudnnStatus_t status) {
  const Guard guard;
  refuses = which;
  refused_status = status;
}

std::size_t cudnnGetVersion() { return 91900; }
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

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* d) {
  *d = new DescriptorRef(std::make_shared<Descriptor>());
  ref_of(*d)->type = type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete &ref_of(d);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  Descriptor& to = *ref_of(d);
  if (to.finalized) fault("cudnn: attribute %d is set after the descriptor was finalized", name);
  if (count <= 0 || !values) return CUDNN_STATUS_BAD_PARAM;
  Value v{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::int64_t i = 0; i < count; ++i) {
      v.descriptors.push_back(ref_of(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
      if (!v.descriptors.back()->finalized) {
        fault("cudnn: attribute %d is a descriptor that is not finalized", name);
      }
    }
  } else {
    const auto* const bytes = static_cast<const char*>(values);
    v.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * size_of_values(type));
  }
  to.attributes[name] = std::move(v);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  const Guard guard;
  Descriptor& made = *ref_of(d);
  if (made.finalized) fault("cudnn: a descriptor is finalized twice");
  const cudnnStatus_t status = finalize(made);
  made.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t room,
                                       std::int64_t* count, void* values) {
  const Descriptor& from = *ref_of(d);
  if (!from.finalized) return CUDNN_STATUS_BAD_PARAM;
  return get(from, name, room, count, values);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Guard guard;
  const Descriptor &p = *ref_of(plan), &tensors = *ref_of(pack);
  if (p.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !p.finalized || !tensors.finalized) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  return execute(handle, p.configs.at(0), tensors);
}

}  // extern "C"
