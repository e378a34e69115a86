#include "weft/kernels/cuda/cudnn_graph.h"

#include <algorithm>

namespace weft::cuda {
namespace {

// More than was seen of cuDNN 9.19: 34 configurations, and few notes and knobs of each.
constexpr std::int64_t kMostConfigs = 128;
constexpr std::int64_t kMostNotes = 32;
constexpr std::int64_t kMostKnobs = CUDNN_KNOB_TYPE_COUNTS;

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
  cudnnBackendDescriptor_t made = nullptr;
  WEFT_CUDNN(cudnnBackendCreateDescriptor(type, &made));
  descriptor_.reset(made);
}

BackendDescriptor& BackendDescriptor::set(cudnnBackendAttributeName_t name,
                                          cudnnBackendAttributeType_t type, std::int64_t count,
                                          const void* values) {
  WEFT_CUDNN(cudnnBackendSetAttribute(get(), name, type, count, values));
  return *this;
}

bool BackendDescriptor::try_finalize() {
  return cudnnBackendFinalize(get()) == CUDNN_STATUS_SUCCESS;
}

BackendDescriptor& BackendDescriptor::finalize() {
  WEFT_CUDNN(cudnnBackendFinalize(get()));
  return *this;
}

std::size_t BackendDescriptor::get_into(cudnnBackendAttributeName_t name,
                                        cudnnBackendAttributeType_t type, std::int64_t most,
                                        void* values) const {
  std::int64_t count = 0;
  WEFT_CUDNN(cudnnBackendGetAttribute(get(), name, type, most, &count, values));
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

BackendDescriptor tensor_descriptor(std::int64_t id, cudnnDataType_t type,
                                    std::span<const std::int64_t> dimensions,
                                    std::span<const std::int64_t> strides, TensorKind kind) {
  const bool is_virtual = kind == TensorKind::virtual_, by_value = kind == TensorKind::by_value;
  BackendDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, dimensions)
      .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{kCudnnAlignment})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  if (by_value) d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  d.finalize();
  return d;
}

BackendDescriptor pointwise_operation(const Pointwise& function, const BackendDescriptor& x,
                                      const BackendDescriptor* b, const BackendDescriptor& y,
                                      const BackendDescriptor* condition) {
  const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  BackendDescriptor computed(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  computed.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &function.mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, function.computed_in);
  if (function.mode == CUDNN_POINTWISE_RELU_FWD) {
    computed.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
  }
  if (function.axis) computed.set(CUDNN_ATTR_POINTWISE_AXIS, *function.axis);
  computed.finalize();
  BackendDescriptor d(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, computed)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  if (condition) d.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *condition);
  d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y).finalize();
  return d;
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

OperationGraph::OperationGraph(std::span<const BackendDescriptor> operations,
                               const PlanDevice& device)
    : device_(device), graph_(graph_of(operations, device)) {}

std::vector<EngineConfig> OperationGraph::offered(cudnnBackendHeurMode_t mode) const {
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

cudnnStatus_t EnginePlan::run(cudnnHandle_t handle, std::span<const std::int64_t> ids,
                              std::span<void* const> addresses, void* workspace) const {
  const auto count = static_cast<std::int64_t>(ids.size());
  BackendDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalize();
  return cudnnBackendExecute(handle, plan_.get(), pack.get());
}

}  // namespace weft::cuda
