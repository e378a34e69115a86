// Automatic mixed precision: parameters, gradients and optimiser state stay f32, and the costly
// operations compute in bf16.
#pragma once

#include <array>
#include <initializer_list>

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::autograd {

struct AutocastOptions {
  DType dtype = DType::bf16;  ///< any other throws InvalidArgument
  bool enabled = true;
  bool cache_enabled = true;
};

/// As torch.autocast: holds for a scope, in this thread and in the workers that it starts.
///
///   {
///     const autograd::Autocast autocast(DeviceType::cuda);
///     loss = nn::cross_entropy(model(x), label);
///   }
///   loss.backward();
///
/// On that kind of device, these operations convert f32 and bf16 operands, as PyTorch's do. f64 and
/// integer operands stay as they are.
///
///   to bf16  linear, matmul, conv2d, conv_transpose2d, scaled_dot_product_attention
///   to f32   cross_entropy, mse_loss, prod and nn's nll_loss, bce_with_logits, bce_loss,
///            l1_loss, smooth_l1_loss, kl_div
///   to f32 on CUDA alone
///            softmax, log_softmax, layer_norm, group_norm, sum, norm, exp, expm1, log, log1p, tan,
///            pow, square, rsqrt, reciprocal, softplus, interpolate, a double divided by
///            a tensor
///
/// All other operations take their operands as they are. Where bf16 and f32 meet, the result is
/// f32; but batch_norm and layer_norm of a bf16 x with f32 parameters give bf16. In-place
/// operations do not convert.
///
/// The conversions are on the tape, so gradients of f32 tensors are f32. Backward runs without
/// autocast, even if backward() is called inside a scope. The recomputation of an
/// autograd::checkpoint uses the setting of its forward. bf16 has the range of f32, so losses need
/// no scaling.
///
/// Scopes nest. enabled = false switches autocast off inside another scope.
///
/// Conversions of weights to bf16 are cached. A weight is a leaf that requires a gradient. The
/// first thread that needs it converts it, once per outermost scope, version and stream. Inside
/// graph::capture, a cached conversion holds for one run of the captured step. Nothing is cached
/// with cache_enabled = false, without a tape (NoGrad), or in a checkpoint's recomputation.
///
/// In a scope around the whole loop, as the programs have it, the first weight that a step needs
/// takes the others along that the thread needed after it the last time: on CUDA one launch in
/// place of one for each. So by then, writes to them in other threads and streams must be done.
class Autocast {
 public:
  explicit Autocast(DeviceType device_type, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  Scoped<ThreadState::AutocastTypes> types_;
  ThreadState::AutocastCache own_;  // opened by an outermost scope
  Scoped<ThreadState::AutocastCache> cache_;
};

/// Whether autocast is on in this thread for that kind of device.
inline bool is_autocast_enabled(DeviceType device_type) {
  return thread_state().autocast[static_cast<std::size_t>(device_type)] != DType::f32;
}

/// What an operation does with its operands under autocast.
enum class CastPolicy { none, lower_precision, f32, f32_on_cuda };

/// The dtype that x gets under the policy: its own dtype where autocast does not convert.
DType autocast_dtype(CastPolicy policy, const Tensor& x);
/// x converted to that dtype, on the tape. An undefined x is returned as it is.
Tensor autocast(CastPolicy policy, const Tensor& x);

/// Whether the operation must convert an operand. If so, the operation calls itself with
/// autocast(policy, x) in place of each operand x.
template <class... Operands>
bool autocasts(CastPolicy policy, const Operands&... operands) {
  if (policy == CastPolicy::none) return false;
  const auto& types = thread_state().autocast;
  if (types[0] == DType::f32 && types[1] == DType::f32) [[likely]]
    return false;
  return ((operands.defined() && autocast_dtype(policy, operands) != operands.dtype()) || ...);
}

}  // namespace weft::autograd
