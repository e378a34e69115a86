// Exercise 4: the samples of a rank. README.md says what to write; ./weft learn 4 judges it.
#include "weft/learn/04_distributed_sampler/solution.h"

#include <algorithm>

namespace weft::learn {

std::vector<std::int64_t> samples_of(std::int64_t size, const Share& share) {
  if (size == 0) return {};
  std::vector<std::int64_t> all = Generator(share.seed).randperm(size);
  not_yet("another permutation in each epoch");

  const std::int64_t each = size / share.ranks;
  not_yet("how many samples each rank gets, and what is left out or visited twice for that");

  std::vector<std::int64_t> mine;
  for (std::int64_t i = 0; i < each; ++i) {
    not_yet("which samples of all are this rank's");
  }
  return mine;
}

}  // namespace weft::learn
