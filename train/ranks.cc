#include "weft/train/ranks.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "weft/core/base/error.h"

namespace weft::train {

std::vector<double> Ranks::sum(std::vector<double> values) const {
  if (size == 1) return values;
  std::string text(values.size() * sizeof(double), '\0');
  if (!values.empty()) std::memcpy(text.data(), values.data(), text.size());
  std::ranges::fill(values, 0);
  for (const std::string& other : gather(text)) {
    WEFT_CHECK(other.size() == text.size(), Comm, "train", "a sum of ", values.size(),
               " numbers, of which another rank has ", other.size() / sizeof(double));
    for (std::size_t i = 0; i < values.size(); ++i) {
      double value;
      std::memcpy(&value, other.data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
  return values;
}

}  // namespace weft::train
