// Automatic mixed precision: parameters, gradients and optimiser state stay f32, the costly
// operations compute in bf16.
#pragma once

#include <array>
#include <initializer_list>

#include "weft/core/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

struct AutocastOptions {
  DType dtype = DType::bf16;  ///< the only one; InvalidArgument else
  bool enabled = true;
  bool cache_enabled = true;
};

/// torch.autocast, for a scope of this thread and the workers it starts:
///
///   {
///     const autograd::Autocast autocast(DeviceType::cuda);
///     loss = nn::cross_entropy(model(x), label);
///   }
///   loss.backward();
///
/// Operations convert their f32 and bf16 operands on that kind of device, as PyTorch's do; f64 and
/// integers stay as they are:
///
///   to bf16  linear, matmul, conv2d, conv_transpose2d, scaled_dot_product_attention
///   to f32   cross_entropy, mse_loss, prod and nn's nll_loss, bce_with_logits, bce_loss,
///            l1_loss, smooth_l1_loss, kl_div
///   to f32 on CUDA alone
///            softmax, log_softmax, layer_norm, group_norm, sum, norm, exp, expm1, log, log1p, tan,
///            pow, square, rsqrt, reciprocal, softplus, interpolate, a double divided by
///            a tensor
///
/// All others take what comes; where bf16 and f32 meet, the result is f32, that of a bf16 image in
/// batch_norm and layer_norm bf16. In-place operations do not convert.
///
/// The conversions are on the tape, so gradients of f32 tensors are f32. Backward itself runs
/// outside of autocast, also where backward() is called within; what autograd::checkpoint
/// recomputes, under the setting of its forward. bf16 has f32's range: losses need no scaling.
///
/// Scopes nest, and enabled = false switches autocast off inside another. A leaf that requires a
/// gradient, a weight, is converted once per outermost scope, version and stream, by whichever of
/// the scope's threads comes first, unless cache_enabled is false, the tape is off (NoGrad), or
/// graph::capture records a step that the scope is outside of.
class Autocast {
 public:
  explicit Autocast(DeviceType device_type, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  Scoped<ThreadState::AutocastTypes> types_;
  ThreadState::AutocastCache own_;  // of an outermost scope
  Scoped<ThreadState::AutocastCache> cache_;
};

/// Whether a scope is in force for that kind of device.
inline bool is_autocast_enabled(DeviceType device_type) {
  return thread_state().autocast[static_cast<int>(device_type)] != DType::f32;
}

/// What an operation does with its operands under autocast.
enum class CastPolicy { none, lower_precision, f32, f32_on_cuda };

/// The dtype the policy wants x in: x's own where autocast leaves it alone.
DType autocast_dtype(CastPolicy policy, const Tensor& x);
/// x in that dtype, converted on the tape. An undefined x stays so.
Tensor autocast(CastPolicy policy, const Tensor& x);

/// Whether an operation has to convert operands: it then calls itself with autocast(policy, x) in
/// place of each.
template <class... Operands>
bool autocasts(CastPolicy policy, const Operands&... operands) {
  if (policy == CastPolicy::none) return false;
  const auto& types = thread_state().autocast;
  if (types[0] == DType::f32 && types[1] == DType::f32) [[likely]]
    return false;
  return ((operands.defined() && autocast_dtype(policy, operands) != operands.dtype()) || ...);
}

}  // namespace weft::autograd
