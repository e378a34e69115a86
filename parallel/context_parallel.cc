#include "weft/parallel/context_parallel.h"

#include <any>
#include <string>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/attention.h"
#include "weft/parallel/collectives.h"
#include "weft/parallel/layer_plan.h"
#include "weft/parallel/same_model.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "context_parallel";

// [N,n h,l,E] of this rank's l elements -> [N,h,n l,E] of all elements.
Tensor all_elements(const Collectives& ranks, const Tensor& x) {
  const std::int64_t n = ranks.size();
  const Tensor by_heads = x.unflatten(1, {n, x.shape(1) / n}).permute({1, 0, 2, 3, 4});
  return ranks.all_to_all(by_heads).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}
// The inverse of all_elements().
Tensor all_heads(const Collectives& ranks, const Tensor& x) {
  const std::int64_t n = ranks.size();
  const Tensor by_elements = x.unflatten(2, {n, x.shape(2) / n}).permute({2, 0, 1, 3, 4});
  return ranks.all_to_all(by_elements).permute({1, 0, 2, 3, 4}).flatten(1, 2);
}

}  // namespace

void context_parallel(const nn::ModuleBase& module, comm::ProcessGroup& group,
                      std::int64_t sequence_dim) {
  const int rank = group.rank(), n = group.size();
  std::vector<nn::ModuleBase> attentions, dropouts;
  for (const auto& [path, part] : module.named_modules()) {
    const std::string name = path.empty() ? part.type_name() : path;
    if (part.type_name() == "Dropout") {
      check_draws_all(kOp, part, name);
      dropouts.push_back(part);
    }
    const auto* const heads = std::any_cast<nn::AttentionHeads>(&part.shared_state());
    WEFT_CHECK(heads || !mixes_elements(part.type_name()), InvalidArgument, kOp, name, " is a ",
               part.type_name(), ", which cannot compute with a part of a sequence");
    if (!heads) continue;
    WEFT_CHECK(heads->all % n == 0, InvalidArgument, kOp, name, " has ", heads->all,
               " heads, which do not divide by ", n, " ranks");
    WEFT_CHECK(heads->part.count == 1 && !heads->exchange, InvalidArgument, kOp, name,
               " shares its heads or sequences with other ranks already");
    attentions.push_back(part);
  }
  WEFT_CHECK(!attentions.empty(), InvalidArgument, kOp, module.type_name(),
             " has no nn::MultiheadAttention");
  share_generator(group, module);
  const Collectives ranks(group.duplicate());
  for (const nn::ModuleBase& attention : attentions) {
    auto& heads = std::any_cast<nn::AttentionHeads&>(attention.shared_state());
    heads.part = {.dim = -3, .index = rank, .count = n};
    heads.exchange = [ranks](const Tensor& x, bool before) {
      return before ? all_elements(ranks, x) : all_heads(ranks, x);
    };
  }
  for (const nn::ModuleBase& one : dropouts) one.shared_state() = DrawnPart{sequence_dim, rank, n};
}

Tensor part_of_sequence(const Tensor& x, const comm::ProcessGroup& group, std::int64_t dim) {
  const std::int64_t d = normalize_dim(dim, x.dim(), kOp), n = group.size();
  WEFT_CHECK(x.shape(d) % n == 0, Shape, kOp, "dimension ", d, " of ", x.shape(),
             " does not divide into ", n, " parts, one for each rank");
  return x.narrow(d, group.rank() * (x.shape(d) / n), x.shape(d) / n);
}

}  // namespace weft::parallel
