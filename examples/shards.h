// One process that takes the steps of several ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tree.h"
#include "weft/weft.h"

namespace weft::examples {

/// The images of `ranks` ranks for a loader whose batches are `ranks` times as large as theirs: in
/// each step first those of rank 0, then those of rank 1, ... Each rank's order is that of a
/// data::DistributedSampler. The sampler counts the epochs 0, 1, ... by itself.
class ShardsSampler final : public data::Sampler {
 public:
  /// batch_size: of one rank.
  ShardsSampler(std::int64_t size, int ranks, std::int64_t batch_size, bool shuffle)
      : size_(size), ranks_(ranks), batch_size_(batch_size), shuffle_(shuffle) {}

  std::int64_t size() const override { return of_rank(0).size() * ranks_; }
  std::string draw_seed(Generator&) const override { return std::to_string(next_epoch_++); }
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override {
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

 private:
  data::DistributedSampler of_rank(int rank) const {
    return {size_, {.num_replicas = ranks_, .rank = rank, .shuffle = shuffle_}};
  }

  std::int64_t size_;
  int ranks_;
  std::int64_t batch_size_;
  bool shuffle_;
  mutable std::uint64_t next_epoch_ = 0;
};

/// model of each of `ranks` equal parts of x, joined. With a loss that is a mean over all rows, the
/// gradients are then the sum of the parts' gradients divided by `ranks`: those of
/// DistributedDataParallel, to the bit for 2 ranks.
template <class Model>
auto in_shards(Model& model, const Tensor& x, int ranks) {
  std::vector<std::vector<Tensor>> outputs;  // by tensor in the result, then by part
  auto result = model(x.narrow(0, 0, x.shape(0) / ranks));
  for_each_tensor(result, [&](const Tensor& y) { outputs.push_back({y}); });
  for (int rank = 1; rank < ranks; ++rank) {
    auto place = outputs.begin();
    const std::int64_t rows = x.shape(0) / ranks;
    for_each_tensor(model(x.narrow(0, rank * rows, rows)),
                    [&](const Tensor& y) { place++->push_back(y); });
  }
  auto place = outputs.begin();
  for_each_tensor(result, [&](Tensor& y) { y = cat(*place++, 0); });
  return result;
}

}  // namespace weft::examples
