// What a checkpoint keeps of a Reducer: the order of its buckets.
#include <algorithm>
#include <numeric>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/parallel/reducer.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "ddp";
// The name in engine_state().
constexpr const char* kOrder = "order";

}  // namespace

nn::NamedTensors Reducer::engine_state() const {
  if (!rebuilt_ || order_.empty()) return {};
  const std::vector<std::int64_t> order(order_.begin(), order_.end());
  return {{kOrder, from_vector(order, {std::ssize(order)}, Device())}};
}

void Reducer::load_engine_state(const nn::NamedTensors& state) {
  std::vector<std::size_t> order;
  if (!state.empty() && options_.order == BucketOrder::arrival) {
    const auto& [name, x] = state[0];
    WEFT_CHECK(state.size() == 1 && name == kOrder && x.dtype() == DType::i64 && x.dim() == 1,
               InvalidArgument, kOp, "this is not the state of a DistributedDataParallel: ", name,
               " is ", x.dtype(), ' ', x.shape(), ", expected one ", kOrder, ", i64 [parameters]");
    const auto numbers = x.to_vector<std::int64_t>();
    order.assign(numbers.begin(), numbers.end());
    std::vector<std::size_t> sorted = order, all(order.size());
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), std::size_t{0});
    WEFT_CHECK(sorted == all, InvalidArgument, kOp, "the state's ", kOrder,
               " does not have each parameter once");
    if (order.size() != buckets_.parameters().size()) {
      log_warning(detail::concat("ddp: the state is of a model that trained ", order.size(),
                                 " parameters, this one trains ", buckets_.parameters().size(),
                                 ": its order of gradients is dropped, and the first step finds "
                                 "out another one"));
      order.clear();
    }
  }
  rebuild_buckets(order);
}

}  // namespace weft::parallel
