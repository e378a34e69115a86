#include "weft/nn/embedding.h"

#include "weft/core/base/error.h"
#include "weft/nn/init.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

Embedding::Embedding(std::int64_t num, std::int64_t dim, const EmbeddingOptions& options) {
  WEFT_CHECK(num >= 0 && dim >= 0, InvalidArgument, "Embedding",
             "sizes must not be negative, got num ", num, ", dim ", dim);
  weight = parameter("weight", empty({num, dim}));
  init::normal_(weight);
  std::string description = weft::detail::concat(num, ", ", dim);
  if (const auto padding = options.padding_idx) {
    WEFT_CHECK(*padding >= -num && *padding < num, InvalidArgument, "Embedding", "padding_idx ",
               *padding, " is no row of ", num);
    padding_idx_ = *padding + (*padding < 0 ? num : 0);
    raw::zero_(raw::select(weight, 0, *padding_idx_));
    description += weft::detail::concat(", padding_idx=", *padding_idx_);
  }
  set_description(std::move(description));
}

}  // namespace weft::nn
