// Batched matrix products.
#pragma once

#include <cstdint>

#include "weft/core/runtime/runtime.h"
#include "weft/kernels/activation.h"
#include "weft/kernels/plan/plan.h"
#include "weft/kernels/view.h"

namespace weft {

/// y = a b (+ bias). a [B,M,K], b [B,K,N], y [B,M,N] dense row-major, bias [N] or empty.
/// In a and b, one of the last two dimensions has stride 1 (or length 1), and the stride of the
/// other is at least a row's length; the batch stride may be 0. One dtype: f32, f64, bf16 (sums in
/// f32); but y may be f32 where a and b are bf16, without a bias. B, M, N > 0. K may be 0; then y
/// is the bias or zero.
struct MatmulArgs {
  View a, b, y, bias;
  bool accumulate = false;             ///< y += a b instead of y = a b; not together with bias
  Activation then = Activation::none;  ///< of all that; plan() does not read it

  // What a library may do in the same pass. plan() reads shapes alone; run() takes them only if the
  // plan fuses(*this). B = 1.
  View row_sums;  ///< [M] of y's dtype, or empty; written: the sums over each row of a
  /// u8 [M, mask_bytes(N)], or empty: the elements of y that a relu let pass, as bits in an order
  /// of the library's own. With a bias and `then` it is written, without them it is read, and y is
  /// 0 where that relu was.
  View mask;
};

/// The length of a row of MatmulArgs::mask: whole groups of 128 bits.
constexpr std::int64_t mask_bytes(std::int64_t n) { return (n + 127) / 128 * 16; }

class MatmulPlan : public Plan {
 public:
  /// Whether run() in the current stream may be given row_sums or mask, which `args` need not have
  /// yet. The first call for a relu may multiply, and wait for it.
  virtual bool fuses(const MatmulArgs& /*args*/) const { return false; }
};

struct MatmulKernels {
  /// Reads shapes, strides and dtypes of args, not the data. Returns the fastest of the candidates,
  /// which are timed at the first use of a shape; with thread_state().deterministic, a fixed one.
  PlanRef<MatmulPlan> (*plan)(const MatmulArgs& args);
  void (*run)(const Stream&, const MatmulPlan&, const MatmulArgs& args, void* workspace);
};

}  // namespace weft
