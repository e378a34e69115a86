#include "weft/parallel/vocab_loss.h"

#include <limits>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/cut.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {

Tensor cross_entropy(const Collectives& ranks, const Tensor& logits, const Tensor& target,
                     std::int64_t classes, const VocabCrossEntropyOptions& options) {
  constexpr const char* kOp = "parallel::cross_entropy";
  WEFT_CHECK(classes > 0, InvalidArgument, kOp, "got ", classes, " classes");
  const nn::Cut cut{.whole = {classes}, .rank = ranks.rank(), .size = ranks.size()};
  const auto [first, count] = cut.rows_of(ranks.rank());
  WEFT_CHECK(logits.dim() == 2 && logits.shape(1) == count, Shape, kOp, "rank ", ranks.rank(),
             " of ", ranks.size(), " got logits ", logits.shape(), ", expected [N,", count,
             "], its part of ", classes, " classes");
  WEFT_CHECK(target.dim() == 1 && target.shape(0) == logits.shape(0), Shape, kOp, "target: got ",
             target.shape(), ", expected [", logits.shape(0),
             "], one class for each row of logits");
  WEFT_CHECK(target.dtype() == DType::i64, Dtype, kOp, "target: got ", target.dtype(),
             ", expected i64");
  const Tensor counts = target != static_cast<double>(options.ignore_index);
  const Tensor is_class = (target >= 0) & (target < static_cast<double>(classes));
  if (target.device().is_cpu()) {
    WEFT_CHECK((is_class | ~counts).all().item<bool>(), InvalidArgument, kOp,
               "a target is no class: expected 0 to ", classes - 1, " or ", options.ignore_index,
               " for those that do not count");
  }

  const Tensor x = logits.dtype() == DType::bf16 ? logits.to(DType::f32) : logits;
  const TensorOptions like(x.dtype(), x.device());
  Tensor largest = full({logits.shape(0)}, -std::numeric_limits<double>::infinity(), like);
  if (count > 0) largest = x.detach().amax({1});
  const Tensor shifted = x - ranks.max_of(largest).unsqueeze(1);
  // What this rank adds to the sums: 0 for the targets of other ranks.
  const Tensor own =
      (target >= static_cast<double>(first)) & (target < static_cast<double>(first + count));
  const Tensor exps = shifted.exp().sum({1});
  Tensor of_target = exps * 0;
  if (count > 0) {
    const Tensor column = where(own, target - static_cast<double>(first), 0);
    of_target = masked_fill(shifted.gather(1, column.unsqueeze(1)).squeeze(1), ~own, 0);
  }
  const Tensor sums = ranks.reduce_from(stack({exps, of_target}));
  Tensor losses = sums[0].log() - sums[1];
  losses = masked_fill(losses, ~is_class, std::numeric_limits<double>::quiet_NaN());
  losses = masked_fill(losses, ~counts, 0);
  if (options.reduction == weft::Reduction::none) return losses;
  const Tensor sum = losses.sum();
  return options.reduction == weft::Reduction::sum ? sum : sum / counts.to(sum.dtype()).sum();
}

}  // namespace weft::parallel
