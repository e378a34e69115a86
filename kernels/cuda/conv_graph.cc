// The graph: convolution [-> + bias] [-> relu] -> small image.
#include "weft/kernels/cuda/conv_graph.h"

#include <algorithm>
#include <array>

namespace weft::cuda {
namespace {

// What a plan calls its tensors. kSums: the first of those between two operations.
enum Id : std::int64_t { kBig = 1, kSmall, kWeights, kBias, kSums };

// More than was seen of cuDNN 9.19: 34 configurations, and few notes and knobs of each.
constexpr std::int64_t kMostConfigs = 128;
constexpr std::int64_t kMostNotes = 32;
constexpr std::int64_t kMostKnobs = CUDNN_KNOB_TYPE_COUNTS;

/// A pass in the backend API. dgrad and wgrad name their operands by the gradients they are.
struct PassNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t conv, weights, big, small, alpha, beta;
};

PassNames names_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPass::backward_weights:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
}

cudnnDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// What sums are computed in.
cudnnDataType_t sum_type(DType dtype) {
  return dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

/// is_virtual: it exists within the plan alone.
BackendDescriptor tensor(std::int64_t id, cudnnDataType_t type, const Shape& shape,
                         MemoryFormat format, bool is_virtual = false) {
  const Strides strides = format_strides(shape, format);
  BackendDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span(shape.begin(), shape.end()))
      .set(CUDNN_ATTR_TENSOR_STRIDES, std::span(strides.begin(), strides.end()))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{kConvAlignment})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual)
      .finalize();
  return d;
}

BackendDescriptor convolution(const CudnnProblem& p, const BackendDescriptor& big,
                              const BackendDescriptor& small, const BackendDescriptor& weights) {
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  BackendDescriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, sum_type(p.dtype))
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, p.padding)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, p.padding)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, p.dilation)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, p.stride)
      .finalize();
  const PassNames names = names_of(p.pass);
  BackendDescriptor d(names.type);
  d.set(names.conv, conv)
      .set(names.big, big)
      .set(names.small, small)
      .set(names.weights, weights)
      .set(names.alpha, 1.0)
      .set(names.beta, 0.0)
      .finalize();
  return d;
}

/// y = a + b, or relu(a) without b.
BackendDescriptor pointwise(const CudnnProblem& p, const BackendDescriptor& a,
                            const BackendDescriptor* b, const BackendDescriptor& y) {
  const cudnnPointwiseMode_t mode = b ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;
  const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  BackendDescriptor function(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, sum_type(p.dtype));
  if (!b) function.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
  function.finalize();
  BackendDescriptor d(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
  if (b) d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y).finalize();
  return d;
}

/// Nothing if cuDNN refuses the combination.
std::optional<BackendDescriptor> graph_of(std::span<const BackendDescriptor> of,
                                          const PlanDevice& device) {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const BackendDescriptor& operation : of) operations.push_back(operation.get());
  BackendDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(operations.size()), operations.data());
  if (device.handle) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &device.handle);
  }
  if (!graph.try_finalize()) return std::nullopt;
  return graph;
}

std::optional<BackendDescriptor> conv_graph(const CudnnProblem& p, MemoryFormat format,
                                            const ConvEpilogue& epilogue,
                                            const PlanDevice& device) {
  const cudnnDataType_t type = library_type(p.dtype);
  // The last operation writes the small image, the others what only the plan sees.
  int left = int(epilogue.bias) + int(epilogue.relu);
  const auto next_result = [&] {
    if (left-- == 0) return tensor(kSmall, type, p.library_small(), format);
    return tensor(kSums + left, sum_type(p.dtype), p.library_small(), format, true);
  };
  const BackendDescriptor big = tensor(kBig, type, p.big(), format);
  const BackendDescriptor weights = tensor(kWeights, type, p.weights(), format);
  BackendDescriptor result = next_result();
  std::vector<BackendDescriptor> operations;
  operations.push_back(convolution(p, big, result, weights));
  if (epilogue.bias) {
    const BackendDescriptor bias = tensor(kBias, type, Shape{1, p.k, 1, 1}, format);
    const BackendDescriptor sums = std::exchange(result, next_result());
    operations.push_back(pointwise(p, sums, &bias, result));
  }
  if (epilogue.relu) {
    const BackendDescriptor sums = std::exchange(result, next_result());
    operations.push_back(pointwise(p, sums, nullptr, result));
  }
  return graph_of(operations, device);
}

EngineConfig described(BackendDescriptor descriptor) {
  EngineConfig config{std::move(descriptor), {}, {}};
  const auto engines = config.descriptor.descriptors(CUDNN_ATTR_ENGINECFG_ENGINE,
                                                     CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  const BackendDescriptor& engine = engines.at(0);
  config.notes = engine.numbers<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                             CUDNN_TYPE_NUMERICAL_NOTE, kMostNotes);
  const auto number =
      engine.numbers<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1);
  config.name = detail::concat("e", number.at(0));
  for (const BackendDescriptor& knob : config.descriptor.descriptors(
           CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMostKnobs)) {
    const auto type = knob.numbers<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                                           CUDNN_TYPE_KNOB_TYPE, 1);
    const auto value =
        knob.numbers<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1);
    config.name += detail::concat(".", int(type.at(0)), "=", value.at(0));
  }
  return config;
}

}  // namespace

BackendDescriptor::BackendDescriptor(cudnnBackendDescriptorType_t type) {
  WEFT_CUDNN(cudnnBackendCreateDescriptor(type, &descriptor_));
}

BackendDescriptor::~BackendDescriptor() {
  if (descriptor_) cudnnBackendDestroyDescriptor(descriptor_);
}

BackendDescriptor& BackendDescriptor::set(cudnnBackendAttributeName_t name,
                                          cudnnBackendAttributeType_t type, std::int64_t count,
                                          const void* values) {
  WEFT_CUDNN(cudnnBackendSetAttribute(descriptor_, name, type, count, values));
  return *this;
}

bool BackendDescriptor::try_finalize() {
  return cudnnBackendFinalize(descriptor_) == CUDNN_STATUS_SUCCESS;
}

BackendDescriptor& BackendDescriptor::finalize() {
  WEFT_CUDNN(cudnnBackendFinalize(descriptor_));
  return *this;
}

std::size_t BackendDescriptor::get_into(cudnnBackendAttributeName_t name,
                                        cudnnBackendAttributeType_t type, std::int64_t most,
                                        void* values) const {
  std::int64_t count = 0;
  WEFT_CUDNN(cudnnBackendGetAttribute(descriptor_, name, type, most, &count, values));
  return static_cast<std::size_t>(std::min(count, most));
}

std::vector<BackendDescriptor> BackendDescriptor::descriptors(cudnnBackendAttributeName_t name,
                                                              cudnnBackendDescriptorType_t type,
                                                              std::int64_t most) const {
  // The API writes into descriptors that exist. Not every attribute says before how many it has.
  std::vector<BackendDescriptor> out;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) raw.push_back(out.emplace_back(type).get());
  const std::size_t count = get_into(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, raw.data());
  out.erase(out.begin() + static_cast<std::ptrdiff_t>(count), out.end());
  return out;
}

bool EngineConfig::has(cudnnBackendNumericalNote_t note) const {
  return std::ranges::find(notes, note) != notes.end();
}

bool admissible(const EngineConfig& config, DType dtype, bool tf32, bool deterministic) {
  if (config.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) ||
      config.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) {
    return false;
  }
  if (dtype == DType::f32 && !tf32 && config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) return false;
  return !deterministic ||
         !(config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ||
           config.has(CUDNN_NUMERICAL_NOTE_WINOGRAD) || config.has(CUDNN_NUMERICAL_NOTE_FFT));
}

ConvGraph::ConvGraph(const CudnnProblem& p, MemoryFormat format, const ConvEpilogue& epilogue,
                     const PlanDevice& device)
    : device_(device), graph_(conv_graph(p, format, epilogue, device)) {}

std::vector<EngineConfig> ConvGraph::offered(cudnnBackendHeurMode_t mode) const {
  if (!graph_) return {};
  BackendDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph_)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (device_.properties) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *device_.properties);
  if (!heuristics.try_finalize()) return {};
  std::vector<EngineConfig> configs;
  for (BackendDescriptor& config : heuristics.descriptors(
           CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMostConfigs)) {
    configs.push_back(described(std::move(config)));
  }
  return configs;
}

std::optional<EnginePlan> EnginePlan::make(const EngineConfig& config, const PlanDevice& device) {
  BackendDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.descriptor);
  if (device.properties) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device.properties);
  if (device.handle) {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &device.handle);
  }
  if (!plan.try_finalize()) return std::nullopt;
  const auto bytes =
      plan.numbers<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1);
  return EnginePlan(std::move(plan), static_cast<std::size_t>(bytes.at(0)));
}

cudnnStatus_t EnginePlan::run(cudnnHandle_t handle, const ConvPointers& tensors,
                              void* workspace) const {
  const std::array<std::int64_t, 4> ids = {kBig, kSmall, kWeights, kBias};
  const std::array<void*, 4> pointers = {tensors.big, tensors.small, tensors.weights, tensors.bias};
  const std::int64_t count = tensors.bias ? 4 : 3;
  BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data())
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalize();
  return cudnnBackendExecute(handle, plan_.get(), pack.get());
}

}  // namespace weft::cuda
