#include "weft/data/sampler.h"

#include <charconv>
#include <numeric>

#include "weft/core/error.h"

namespace weft::data {

std::uint64_t draw_int64(Generator& generator) {
  return generator.random64() & ((std::uint64_t{1} << 63) - 1);
}

std::uint64_t seed_number(const std::string& seed) {
  std::uint64_t number = 0;
  const char* const end = seed.data() + seed.size();
  const auto [stop, error] = std::from_chars(seed.data(), end, number);
  WEFT_CHECK(error == std::errc() && stop == end, InvalidArgument, "sampler", '"',
             seed.substr(0, 80), "\" is no seed of an order");
  return number;
}

void SequentialSampler::order(const std::string&, std::vector<std::int64_t>& order) const {
  order.resize(static_cast<std::size_t>(size_));
  std::iota(order.begin(), order.end(), 0);
}

std::string RandomSampler::draw_seed(Generator& generator) const {
  return std::to_string(draw_int64(generator));
}

void RandomSampler::order(const std::string& seed, std::vector<std::int64_t>& order) const {
  Generator own(seed_number(seed));
  order = own.randperm(size_);
}

}  // namespace weft::data
