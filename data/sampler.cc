#include "weft/data/sampler.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <numeric>

#include "weft/core/base/error.h"

namespace weft::data {
namespace {
constexpr const char* kOp = "sampler";
}  // namespace

std::uint64_t draw_int64(Generator& generator) {
  return generator.random64() & ((std::uint64_t{1} << 63) - 1);
}

std::uint64_t seed_number(const std::string& seed) {
  std::uint64_t number = 0;
  const char* const end = seed.data() + seed.size();
  const auto [stop, error] = std::from_chars(seed.data(), end, number);
  WEFT_CHECK(error == std::errc() && stop == end, InvalidArgument, kOp, '"', seed.substr(0, 80),
             "\" is no seed of an order");
  return number;
}

void resize_order(std::vector<std::int64_t>& order, std::int64_t count) {
  try {
    order.resize(static_cast<std::size_t>(count));
  } catch (const std::exception&) {  // bad_alloc or length_error
    WEFT_THROW(OutOfMemory, kOp, "no memory for an order of ", count, " indices");
  }
}

namespace {

std::int64_t checked(std::int64_t size) {
  WEFT_CHECK(size >= 0, InvalidArgument, kOp, "size is ", size, ", needs at least 0");
  return size;
}

}  // namespace

std::int64_t Sampler::size_after(std::int64_t done) const {
  return std::max<std::int64_t>(0, size() - done);
}

void Sampler::order_after(const std::string& seed, std::int64_t done,
                          std::vector<std::int64_t>& order) const {
  this->order(seed, order);
  order.erase(order.begin(), order.begin() + std::min<std::int64_t>(done, std::ssize(order)));
}

SequentialSampler::SequentialSampler(std::int64_t size) : size_(checked(size)) {}

void SequentialSampler::order(const std::string&, std::vector<std::int64_t>& order) const {
  resize_order(order, size_);
  std::iota(order.begin(), order.end(), 0);
}

RandomSampler::RandomSampler(std::int64_t size) : size_(checked(size)) {}

std::string RandomSampler::draw_seed(Generator& generator) const {
  return std::to_string(draw_int64(generator));
}

void RandomSampler::order(const std::string& seed, std::vector<std::int64_t>& order) const {
  Generator own(seed_number(seed));
  order = own.randperm(size_);
}

}  // namespace weft::data
