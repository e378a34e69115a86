// The graph: convolution [-> + bias] [-> relu] -> small image.
#include "weft/kernels/cuda/conv_graph.h"

#include <array>
#include <utility>
#include <vector>

namespace weft::cuda {
namespace {

// What a plan calls its tensors. kSums: the first of those between two operations.
enum Id : std::int64_t { kBig = 1, kSmall, kWeights, kBias, kSums };

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

BackendDescriptor tensor(std::int64_t id, cudnnDataType_t type, const Shape& shape,
                         MemoryFormat format, TensorKind kind = TensorKind::stored) {
  const Strides strides = format_strides(shape, format);
  return tensor_descriptor(id, type, std::span(shape.begin(), shape.end()),
                           std::span(strides.begin(), strides.end()), kind);
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

std::vector<BackendDescriptor> operations_of(const CudnnProblem& p, MemoryFormat format,
                                             const ConvEpilogue& epilogue) {
  const cudnnDataType_t type = library_type(p.dtype), sums = sum_type(p.dtype);
  // The last operation writes the small image, the others what only the plan sees.
  int left = int(epilogue.bias) + int(epilogue.relu);
  const auto next_result = [&] {
    if (left-- == 0) return tensor(kSmall, type, p.library_small(), format);
    return tensor(kSums + left, sums, p.library_small(), format, TensorKind::virtual_);
  };
  const BackendDescriptor big = tensor(kBig, type, p.big(), format);
  const BackendDescriptor weights = tensor(kWeights, type, p.weights(), format);
  BackendDescriptor result = next_result();
  std::vector<BackendDescriptor> operations;
  operations.push_back(convolution(p, big, result, weights));
  if (epilogue.bias) {
    const BackendDescriptor bias = tensor(kBias, type, Shape{1, p.k, 1, 1}, format);
    const BackendDescriptor unbiased = std::exchange(result, next_result());
    operations.push_back(pointwise_operation({CUDNN_POINTWISE_ADD, sums}, unbiased, &bias, result));
  }
  if (epilogue.relu) {
    const BackendDescriptor before = std::exchange(result, next_result());
    operations.push_back(
        pointwise_operation({CUDNN_POINTWISE_RELU_FWD, sums}, before, nullptr, result));
  }
  return operations;
}

}  // namespace

ConvGraph::ConvGraph(const CudnnProblem& p, MemoryFormat format, const ConvEpilogue& epilogue,
                     const PlanDevice& device)
    : OperationGraph(operations_of(p, format, epilogue), device) {}

cudnnStatus_t run_convolution(const EnginePlan& plan, cudnnHandle_t handle,
                              const ConvPointers& tensors, void* workspace) {
  const std::array<std::int64_t, 4> ids = {kBig, kSmall, kWeights, kBias};
  const std::array<void*, 4> addresses = {tensors.big, tensors.small, tensors.weights,
                                          tensors.bias};
  const std::size_t count = tensors.bias ? 4 : 3;
  return plan.run(handle, std::span(ids).first(count), std::span(addresses).first(count),
                  workspace);
}

}  // namespace weft::cuda
