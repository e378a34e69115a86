// A graph of operations in cuDNN's backend API: what cuDNN offers for it, and a plan that runs.
//
//   OperationGraph graph(operations, {.handle = handle});
//   for (const EngineConfig& config : graph.offered(CUDNN_HEUR_MODE_A)) {
//     if (!admissible(config, ...)) continue;
//     if (auto plan = EnginePlan::make(config, {.handle = handle})) ... plan->run(...)
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/conv_problem.h"

namespace weft::cuda {

/// A descriptor of the backend API: set() what it consists of, then finalize(). Others that it was
/// given may end before it.
class BackendDescriptor {
 public:
  explicit BackendDescriptor(cudnnBackendDescriptorType_t type);
  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

  /// Throws Library.
  BackendDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::int64_t count, const void* values);
  BackendDescriptor& set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  BackendDescriptor& set(cudnnBackendAttributeName_t name, std::int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  BackendDescriptor& set(cudnnBackendAttributeName_t name, double value) {
    return set(name, CUDNN_TYPE_DOUBLE, 1, &value);
  }
  BackendDescriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  BackendDescriptor& set(cudnnBackendAttributeName_t name, const BackendDescriptor& value) {
    const cudnnBackendDescriptor_t given = value.get();
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &given);
  }
  /// False if cuDNN refuses what was set, or fails at it.
  bool try_finalize();
  /// Throws Library.
  BackendDescriptor& finalize();

  /// The numbers of an attribute, at most `most` of them. Throws Library.
  template <class T>
  std::vector<T> numbers(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::int64_t most) const {
    std::vector<T> values(static_cast<std::size_t>(most));
    values.resize(get_into(name, type, most, values.data()));
    return values;
  }
  /// The descriptors of an attribute, all of one type. Throws Library.
  std::vector<BackendDescriptor> descriptors(cudnnBackendAttributeName_t name,
                                             cudnnBackendDescriptorType_t type,
                                             std::int64_t most) const;

 private:
  std::size_t get_into(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       std::int64_t most, void* values) const;

  struct Destroy {
    void operator()(cudnnBackendDescriptor_t d) const { cudnnBackendDestroyDescriptor(d); }
  };
  std::unique_ptr<void, Destroy> descriptor_;
};

/// stored: in memory. virtual_: within the plan alone. by_value: one number, at an address of the
/// host's, which is read when the plan is run.
enum class TensorKind { stored, virtual_, by_value };

/// Aligned to kCudnnAlignment bytes if it is stored.
BackendDescriptor tensor_descriptor(std::int64_t id, cudnnDataType_t type,
                                    std::span<const std::int64_t> dimensions,
                                    std::span<const std::int64_t> strides,
                                    TensorKind kind = TensorKind::stored);

/// What is computed of each element, or of its index along `axis`. relu leaves a NaN.
struct Pointwise {
  cudnnPointwiseMode_t mode;
  cudnnDataType_t computed_in = CUDNN_DATA_FLOAT;
  std::optional<std::int64_t> axis = {};
};

/// y of x, of x and b, or of both and the condition that chooses x where it is true.
BackendDescriptor pointwise_operation(const Pointwise& function, const BackendDescriptor& x,
                                      const BackendDescriptor* b, const BackendDescriptor& y,
                                      const BackendDescriptor* condition = nullptr);

/// The GPU that a plan is for: the handle's, or one that need not be there, by its properties
/// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). Such a plan cannot run.
struct PlanDevice {
  cudnnHandle_t handle = nullptr;
  const BackendDescriptor* properties = nullptr;
};

/// A way to compute a graph: an engine of cuDNN and the choices of its knobs.
struct EngineConfig {
  BackendDescriptor descriptor;
  /// "e65.2=1.13=4": the engine's number, then type and value of each knob.
  std::string name;
  std::vector<cudnnBackendNumericalNote_t> notes;

  bool has(cudnnBackendNumericalNote_t note) const;
};

/// Whether the rules allow it. None may shorten its inputs or its sums (TF32 does not count as
/// that), and f32 without TF32 takes none that computes with tensor cores. A deterministic one
/// takes no engine whose results vary, and none that transforms the images (Winograd, Fourier):
/// these repeat, but their rounding errors grow with the tile or the image, not with the number of
/// terms of one sum.
bool admissible(const EngineConfig& config, DType dtype, bool tf32, bool deterministic);

/// Operations that run as one.
class OperationGraph {
 public:
  OperationGraph(std::span<const BackendDescriptor> operations, const PlanDevice& device);
  /// cuDNN's configurations, best first by its estimate; none if it refuses the graph as a whole.
  std::vector<EngineConfig> offered(cudnnBackendHeurMode_t mode) const;

 private:
  PlanDevice device_;
  std::optional<BackendDescriptor> graph_;
};

/// A configuration, ready to run on its device.
class EnginePlan {
 public:
  /// Nothing if cuDNN cannot run the configuration after all.
  static std::optional<EnginePlan> make(const EngineConfig& config, const PlanDevice& device);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  /// Queues it on the handle's stream, with the tensors of these ids at these addresses. Returns
  /// cuDNN's status: it may refuse even here.
  cudnnStatus_t run(cudnnHandle_t handle, std::span<const std::int64_t> ids,
                    std::span<void* const> addresses, void* workspace) const;

 private:
  EnginePlan(BackendDescriptor plan, std::size_t workspace_bytes)
      : plan_(std::move(plan)), workspace_bytes_(workspace_bytes) {}

  BackendDescriptor plan_;
  std::size_t workspace_bytes_;
};

}  // namespace weft::cuda
