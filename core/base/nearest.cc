#include "weft/core/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace weft {

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  // A word with half of its letters different is another word.
  std::size_t best_distance = word.size() / 2;
  for (const std::string& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i + 1);
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replace = diagonal + (word[i] != candidate[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({replace, diagonal + 1, row[j] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  const std::size_t letters = word.find_first_not_of('-');
  if (!best.empty() || letters == std::string::npos) return best;
  // For a user who types --steps for --limit-steps, or --nproc for --nproc-per-node.
  const std::string end = word.substr(letters - std::min<std::size_t>(letters, 1)),
                    begin = word + '-';
  const auto longer = std::ranges::find_if(
      known, [&](const auto& k) { return k.ends_with(end) || k.starts_with(begin); });
  return longer == known.end() ? best : *longer;
}

}  // namespace weft
