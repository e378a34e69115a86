// WeightedRandomSampler: draws samples with probabilities in proportion to weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/sampler.h"

namespace weft::data {

/// torch.utils.data.WeightedRandomSampler: draws num_samples indices, index i with probability
/// weights[i] / sum of weights. With replacement the draws are independent. Without replacement no
/// index is drawn twice: each draw uses the weights of the indices that are left. The indices, and
/// the numbers taken from the caller's generator, are those of torch.multinomial on the CPU
/// (tensor/multinomial.h), with one exception: without replacement, samples of weight 0 come last,
/// and PyTorch does not define their order.
///   auto sampler = std::make_shared<data::WeightedRandomSampler>(weights, set.size());
///   data::DataLoader train(set, {.batch_size = 32, .sampler = sampler});
/// The seed is the generator's state: about 7 kB of text in the loader's state. An index that is
/// drawn several times in an epoch gets the same random transforms each time, unlike in PyTorch:
/// they follow from the epoch's seed and the index, whatever workers and batches there are, and
/// wherever a run goes on.
class WeightedRandomSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for a weight that is negative or not finite, for weights that are all
  /// 0, for num_samples < 1, and without replacement for more samples than weights.
  WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                        bool replacement = true);

  std::int64_t size() const override { return num_samples_; }
  std::string draw_seed(Generator& generator) const override;
  void order(const std::string& seed, std::vector<std::int64_t>& order) const override;

 private:
  void draw(Generator& generator, std::vector<std::int64_t>& order) const;

  std::vector<double> weights_;
  std::int64_t num_samples_;
  bool replacement_;
};

}  // namespace weft::data
