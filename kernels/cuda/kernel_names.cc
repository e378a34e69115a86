// Nothing here throws, and no error stays behind: names are only for messages.
#include "weft/kernels/cuda/kernel_names.h"

#include <cuda.h>

#include <algorithm>

#include "weft/core/runtime/thread_state.h"

namespace weft::cuda {
namespace {

bool succeeds(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();  // check_launched() would find it
  return status == cudaSuccess;
}

/// A function of the driver, as it has been since this version of CUDA; null if there is none.
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (!succeeds(
          cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result))) {
    return nullptr;
  }
  return reinterpret_cast<Function*>(found);
}

/// The name of a node's kernel; empty if it has none. The runtime knows only the program's own
/// kernels, the driver all of them.
std::string name_of(cudaGraphNode_t node) {
  static auto* const params_of =
      driver_function<decltype(cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams", 12000);
  static auto* const of_function = driver_function<decltype(cuFuncGetName)>("cuFuncGetName", 12030);
  static auto* const of_kernel =
      driver_function<decltype(cuKernelGetName)>("cuKernelGetName", 12030);
  CUDA_KERNEL_NODE_PARAMS params{};
  if (!params_of || !of_function || !of_kernel || params_of(node, &params) != CUDA_SUCCESS) {
    return {};
  }
  const char* name = nullptr;
  const CUresult status =
      params.func ? of_function(&name, params.func) : of_kernel(&name, params.kern);
  return status == CUDA_SUCCESS && name ? name : "";
}

/// The graph that the stream records into; null if it does not record.
cudaGraph_t graph_of(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const bool known = succeeds(cudaStreamGetCaptureInfo(handle(stream), &status, &id, &graph));
  return known && status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  if (!succeeds(cudaGraphGetNodes(graph, nullptr, &count))) return {};
  std::vector<cudaGraphNode_t> nodes(count);
  if (!succeeds(cudaGraphGetNodes(graph, nodes.data(), &count))) return {};
  return nodes;
}

}  // namespace

RecordedKernels::RecordedKernels(const Stream& stream) {
  if (!thread_state().log_perf) return;
  graph_ = graph_of(stream);
  if (graph_) before_ = nodes_of(graph_);
  std::ranges::sort(before_);
}

std::string RecordedKernels::of_libraries() const {
  std::string names;
  if (!graph_) return names;
  for (const cudaGraphNode_t node : nodes_of(graph_)) {
    if (std::ranges::binary_search(before_, node)) continue;
    const std::string name = name_of(node);
    const bool own = name.find("weft") != std::string::npos;  // by its namespace
    if (!name.empty() && !own) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace weft::cuda
