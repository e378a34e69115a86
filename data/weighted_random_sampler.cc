#include "weft/data/weighted_random_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/core/base/error.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "weighted_random_sampler";

double uniform(Generator& generator) {
  double u = 0;
  generator.uniform({&u, 1}, 0, 1);
  return u;
}

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
  const auto count = static_cast<std::size_t>(num_samples_);
  std::vector<double> keys(weights_.size());
  // As in PyTorch: a single sample is drawn without replacement.
  if (replacement_ && count > 1) {
    std::partial_sum(weights_.begin(), weights_.end(), keys.begin());
    const double sum = keys.back();
    for (double& key : keys) key /= sum;
    keys.back() = 1;
    resize_order(order, num_samples_);
    for (std::int64_t& index : order) {
      index = std::ranges::lower_bound(keys, uniform(generator)) - keys.begin();
    }
    return;
  }
  // The largest values of weight / Exp(1): the Gumbel trick (pytorch/pytorch#11931).
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double exponential = -std::log1p(-uniform(generator));
    keys[i] = weights_[i] > 0 ? weights_[i] / exponential : 0;
  }
  order.resize(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int64_t i, std::int64_t j) {
    const double a = keys[static_cast<std::size_t>(i)], b = keys[static_cast<std::size_t>(j)];
    return a != b ? a > b : i < j;
  });
  order.resize(count);
}

}  // namespace weft::data
