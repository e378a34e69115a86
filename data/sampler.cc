#include "weft/data/sampler.h"

#include <numeric>

namespace weft::data {

std::uint64_t draw_int64(Generator& generator) {
  return generator.random64() & ((std::uint64_t{1} << 63) - 1);
}

void SequentialSampler::order(std::uint64_t, std::vector<std::int64_t>& order) const {
  order.resize(static_cast<std::size_t>(size_));
  std::iota(order.begin(), order.end(), 0);
}

std::uint64_t RandomSampler::draw_seed(Generator& generator) const { return draw_int64(generator); }

void RandomSampler::order(std::uint64_t seed, std::vector<std::int64_t>& order) const {
  Generator own(seed);
  order = own.randperm(size_);
}

}  // namespace weft::data
