// WeightedRandomSampler: samples drawn as often as their weights say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/sampler.h"

namespace weft::data {

/// torch.utils.data.WeightedRandomSampler: num_samples indices, i with probability weights[i] over
/// the sum of all; with replacement each draw by itself, without it none twice (the weights of the
/// rest count then). The indices, and the numbers taken from the caller's generator, are those of
/// torch.multinomial on the CPU (aten/src/ATen/native/Distributions.cpp); only the order among
/// samples of weight 0, which without replacement come last, is left open there.
///   auto sampler = std::make_shared<data::WeightedRandomSampler>(weights, set.size());
///   data::DataLoader train(set, {.batch_size = 32, .sampler = sampler});
/// A seed is the generator's state, some 7 kB of text in the loader's.
class WeightedRandomSampler final : public Sampler {
 public:
  /// Throws InvalidArgument for weights that are negative, not finite, or all 0, for no sample, and
  /// without replacement for more samples than weights.
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
