#include "weft/train/ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "weft/core/base/error.h"

namespace weft::train {
namespace {

std::string to_bytes(const std::vector<double>& values) {
  std::string bytes(values.size() * sizeof(double), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<double> from_bytes(const std::string& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

std::vector<double> Ranks::sum(std::vector<double> values) const {
  if (size == 1) return values;
  const std::vector<std::string> texts = gather(to_bytes(values));
  std::ranges::fill(values, 0);
  for (const std::string& text : texts) {
    const std::vector<double> others = from_bytes(text);
    WEFT_CHECK(others.size() == values.size(), Comm, "train", "a sum of ", values.size(),
               " numbers, of which another rank has ", others.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += others[i];
  }
  return values;
}

std::vector<double> Ranks::least(const std::vector<double>& values) const {
  if (size == 1) return values;
  std::vector<double> least;
  for (const std::string& text : gather(to_bytes(values))) take_least(least, from_bytes(text));
  return least;
}

void take_least(std::vector<double>& least, const std::vector<double>& other) {
  const std::size_t both = std::min(least.size(), other.size());
  for (std::size_t i = 0; i < both; ++i) least[i] = std::min(least[i], other[i]);
  least.insert(least.end(), other.begin() + static_cast<std::ptrdiff_t>(both), other.end());
}

}  // namespace weft::train
