// cuDNN's attention in front of weft's own. Only programs of `./weft gpu-pack` have it, and they
// use it only with WEFT_CUDNN_ATTENTION=1: no GPU has run it yet.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "weft/kernels/attention.h"
#include "weft/kernels/cuda/cudnn_graph.h"

namespace weft::cuda {

/// Backward of older ones needs more operations where 128 does not divide the number of keys.
inline constexpr std::size_t kOldestCudnn = 91600;

enum class AttentionPass { forward, backward };

/// Whether the problem has the form that cuDNN is asked about: bf16; E = Ev, a multiple of 16, at
/// most 128; no mask but causal, no dropout; no size 0, and more than one query or key (its
/// frontend refuses the backward of a single weight); strides that kCudnnAlignment divides.
bool fits_cudnn(const AttentionArgs& args);

/// cuDNN's first choice for a pass of a problem that fits.
class AttentionPlan {
 public:
  /// None if cuDNN has none. Throws Library if it cannot even describe the problem.
  static std::optional<AttentionPlan> make(const AttentionArgs& args, AttentionPass pass,
                                           const PlanDevice& device);
  std::size_t workspace_bytes() const { return library_ + engine_.workspace_bytes(); }

  /// Queue the pass on the handle's stream, for views as those that the plan was made with and
  /// results that are all there, at addresses that kCudnnAlignment divides. Return cuDNN's status:
  /// it may refuse even here.
  cudnnStatus_t forward(cudnnHandle_t handle, const AttentionArgs& args, const View& y,
                        const View& log_sums, void* workspace) const;
  cudnnStatus_t backward(cudnnHandle_t handle, const AttentionArgs& args,
                         const AttentionGradArgs& grads, void* workspace) const;

 private:
  explicit AttentionPlan(EnginePlan engine) : engine_(std::move(engine)) {}

  EnginePlan engine_;
  // backward's workspace: [y_i grad_y_i][f32 gradient of q][cuDNN's own]. Where the last two begin.
  std::size_t sums_ = 0, library_ = 0;
};

/// Whether cuDNN would run the pass on the GPU that holds q, where all addresses are such that
/// kCudnnAlignment divides them: the problem fits, cuDNN is kOldestCudnn or newer and has a plan
/// that it has not refused to run, and not `deterministic`, since backward adds to the gradient of
/// q in any order.
bool cudnn_takes(const AttentionArgs& args, AttentionPass pass);

/// Kernels that give what cuDNN takes to cuDNN, and all else to `own`. To be called once.
AttentionKernels with_cudnn_attention(const AttentionKernels& own);

}  // namespace weft::cuda
