#include "weft/data/weighted_random_sampler.h"

#include <algorithm>
#include <cmath>

#include "weft/core/base/error.h"
#include "weft/tensor/multinomial.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "weighted_random_sampler";

}  // namespace

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                                             bool replacement)
    : weights_(std::move(weights)), num_samples_(num_samples), replacement_(replacement) {
  const auto count = static_cast<std::int64_t>(weights_.size());
  WEFT_CHECK(num_samples >= 1, InvalidArgument, kOp, "num_samples is ", num_samples,
             ", needs at least 1");
  for (const double w : weights_) {
    WEFT_CHECK(w >= 0 && std::isfinite(w), InvalidArgument, kOp, "a weight is ", w);
  }
  WEFT_CHECK(std::ranges::any_of(weights_, [](double w) { return w > 0; }), InvalidArgument, kOp,
             "none of the ", count, " weights is above 0");
  WEFT_CHECK(replacement || num_samples <= count, InvalidArgument, kOp, num_samples,
             " samples without replacement of ", count);
}

std::string WeightedRandomSampler::draw_seed(Generator& generator) const {
  const std::string seed = generator.state();
  std::vector<std::int64_t> order;
  draw(generator, order);
  return seed;
}

void WeightedRandomSampler::order(const std::string& seed, std::vector<std::int64_t>& order) const {
  Generator own;
  own.set_state(seed);
  draw(own, order);
}

void WeightedRandomSampler::draw(Generator& generator, std::vector<std::int64_t>& order) const {
  resize_order(order, num_samples_);
  draw_by_weight<double>(weights_, replacement_, generator, order);
}

}  // namespace weft::data
