// A convolution as a graph of cuDNN's backend API (cudnn_graph.h).
#pragma once

#include <cstddef>

#include "weft/kernels/cuda/conv_problem.h"
#include "weft/kernels/cuda/cudnn_graph.h"

namespace weft::cuda {

/// How many plans are timed in each format: the first by cuDNN's estimate, and the first of those
/// that it falls back to. Without timing the first of all runs that can be made.
inline constexpr std::size_t kTimed = 4;
inline constexpr std::size_t kTimedOfFallback = 2;
/// Those that add the bias, too, before the others; none of what cuDNN falls back to.
inline constexpr std::size_t kTimedWithBias = 2;

/// What the forward pass does to its sums before they are rounded.
struct ConvEpilogue {
  bool bias = false;  ///< adds the bias [k]
  bool relu = false;  ///< then relu, which leaves a NaN
};

/// A pass of a problem in one memory format.
struct ConvGraph : OperationGraph {
  /// Throws Library if cuDNN cannot even describe it.
  ConvGraph(const CudnnProblem& p, MemoryFormat format, const ConvEpilogue& epilogue,
            const PlanDevice& device);
};

/// Pointers to the elements of a convolution's tensors; bias: null if the graph adds none.
struct ConvPointers {
  void* big;
  void* small;
  void* weights;
  void* bias = nullptr;
};

/// EnginePlan::run() for a plan of a ConvGraph.
cudnnStatus_t run_convolution(const EnginePlan& plan, cudnnHandle_t handle,
                              const ConvPointers& tensors, void* workspace);

}  // namespace weft::cuda
