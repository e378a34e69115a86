// What a checkpoint keeps of a Reducer: the order of its buckets.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/parallel/reducer.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "ddp";
// The name in engine_state().
constexpr const char* kOrder = "order";

// The order of `trained` parameters that the state has; empty if it is of another number of them.
std::vector<std::size_t> order_in(const nn::NamedTensors& state, std::size_t trained) {
  if (state.empty()) return {};
  const auto& [name, x] = state[0];
  WEFT_CHECK(state.size() == 1 && name == kOrder && x.dtype() == DType::i64 && x.dim() == 1,
             InvalidArgument, kOp, "this is not the state of a DistributedDataParallel: ", name,
             " is ", x.dtype(), ' ', x.shape(), ", expected one ", kOrder, ", i64 [parameters]");
  const auto numbers = x.to_vector<std::int64_t>();
  std::vector<std::size_t> order(numbers.begin(), numbers.end());
  std::vector<std::size_t> sorted = order, all(order.size());
  std::ranges::sort(sorted);
  std::iota(all.begin(), all.end(), std::size_t{0});
  WEFT_CHECK(sorted == all, InvalidArgument, kOp, "the state's ", kOrder,
             " does not have each parameter once");
  if (order.size() == trained) return order;
  log_warning(detail::concat("ddp: the state is of a model that trained ", order.size(),
                             " parameters, this one trains ", trained,
                             ": its order of gradients is dropped, and the first step finds out "
                             "another one"));
  return {};
}

}  // namespace

nn::NamedTensors Reducer::engine_state() const {
  if (!rebuilt_ || order_.empty()) return {};
  const std::vector<std::int64_t> order(order_.begin(), order_.end());
  return {{kOrder, from_vector(order, {std::ssize(order)}, Device())}};
}

void Reducer::load_engine_state(const nn::NamedTensors& state) {
  std::vector<std::size_t> order;
  std::optional<Error> mistake;  // thrown only when the other ranks, which would wait, know of it
  try {
    if (options_.order == BucketOrder::arrival)
      order = order_in(state, buckets_.parameters().size());
  } catch (const Error& error) {
    mistake = error;
  }
  const std::vector<std::string> mistakes =
      group_->all_gather_object(mistake ? mistake->what() : "");
  if (mistake) throw Error(*mistake);
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::string& text = mistakes[static_cast<std::size_t>(rank)];
    WEFT_CHECK(text.empty(), InvalidArgument, kOp, "rank ", group_->number_in_run(rank), ": ",
               text);
  }
  rebuild_buckets(order);
}

}  // namespace weft::parallel
