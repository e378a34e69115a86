#include "weft/train/shards.h"

#include <algorithm>

namespace weft::train {

std::string ShardsSampler::draw_seed(Generator&) const { return std::to_string(next_epoch_++); }

void ShardsSampler::order(const std::string& seed, std::vector<std::int64_t>& order) const {
  std::vector<std::vector<std::int64_t>> own(static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank)
    of_rank(rank).order(seed, own[static_cast<std::size_t>(rank)]);
  order.clear();
  const auto count = static_cast<std::int64_t>(own[0].size());
  for (std::int64_t first = 0; first < count; first += batch_size_) {
    const std::int64_t end = std::min(first + batch_size_, count);
    for (const auto& of_rank : own)
      order.insert(order.end(), of_rank.begin() + first, of_rank.begin() + end);
  }
}

}  // namespace weft::train
