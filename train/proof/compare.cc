#include "weft/train/proof/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace weft::train::proof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same_bits(const Digest& a, const Digest& b) {
  return a.missing == b.missing && a.shape == b.shape && a.dtype == b.dtype && a.hash == b.hash;
}

double distance(const Digest& a, const Digest& b) {
  if (a.missing != b.missing || a.shape != b.shape || a.dtype != b.dtype ||
      a.not_finite != b.not_finite) {
    return kInfinity;
  }
  double sum = 0;
  for (std::size_t i = 0; i < a.signs.size(); ++i) {
    sum += (a.signs[i] - b.signs[i]) * (a.signs[i] - b.signs[i]);
  }
  return std::isnan(sum) ? kInfinity : std::sqrt(sum / static_cast<double>(a.signs.size()));
}

using Items = std::unordered_map<std::string, const Item*>;

Items by_key(const Record& record) {
  Items items;
  for (const Item& item : record.items) items.emplace(item.key(), &item);
  return items;
}

const Item* find(const Items& items, const std::string& key) {
  const auto found = items.find(key);
  return found == items.end() ? nullptr : found->second;
}

// Why it cannot be compared; empty if it can.
std::string obstacle(const Record& record, const Item& item, const Item* other) {
  const std::string& kind = item.kind;
  if (item.digest.part || (other && other->digest.part)) {
    return "the " + kind + " is cut, and a rank has a part of it";
  }
  if (kind == "buffer" && record.rank > 0) {
    return "buffers of another rank than the first, whose buffers may replace them";
  }
  if (!other) return "the other side has no such " + kind;
  if (kind == "output" && item.digest.shape != other->digest.shape &&
      (record.batches == 1 || record.batches < record.ranks)) {
    return "the output has another shape: a rank or a device has a part of it";
  }
  if (item.digest.missing && record.batches < record.ranks) {
    return "the gradient is with another rank, which has its module";
  }
  return {};
}

}  // namespace

Comparison compare(const std::vector<Record>& first, const std::vector<Record>& second,
                   double bound, double floor) {
  Comparison result;
  std::vector<Items> others;
  for (const Record& record : second) others.push_back(by_key(record));
  std::vector<std::set<const Item*>> found(second.size());
  using Place = std::tuple<std::int64_t, std::size_t>;  // step, number in the step
  Place first_place, beyond_place;
  for (std::size_t r = 0; r < first.size(); ++r) {
    const Record& record = first[r];
    result.steps = std::max(result.steps, record.steps);
    std::map<std::pair<std::int64_t, std::string_view>, double> largest;
    for (const Item& item : record.items) {
      double& norm = largest[{item.step, item.kind}];
      if (std::isfinite(item.digest.l2)) norm = std::max(norm, item.digest.l2);
    }
    // Ranks that share a batch are neighbours.
    const std::size_t peer = r * second.size() / first.size();
    Place place{-1, 0};
    for (const Item& item : record.items) {
      place = {item.step, std::get<0>(place) == item.step ? std::get<1>(place) + 1 : 0};
      const Item* other = find(others[peer], item.key());
      found[peer].insert(other);
      result.unmatched += !other;
      if (const std::string why = obstacle(record, item, other); !why.empty()) {
        ++result.left_out[why];
        continue;
      }
      ++result.compared[item.kind];
      if (item.kind == "gradient" && item.name.starts_with("optimizer ")) {
        ++result.left_out
              ["only the gradient of a parameter is compared, and not its weight: the "
               "model that Recorder::resume() or Trial::train() gets does not have it"];
      }
      if (same_bits(item.digest, other->digest)) continue;
      ++result.unlike;
      Difference difference{record.rank,
                            second[peer].rank,
                            item,
                            other->digest,
                            distance(item.digest, other->digest),
                            0};
      const double norm =
          std::max({item.digest.l2, other->digest.l2, floor * largest[{item.step, item.kind}]});
      difference.relative = difference.absolute > 0 ? difference.absolute / norm : 0;
      if (std::isnan(difference.relative)) difference.relative = kInfinity;
      result.worst = std::max(result.worst, difference.relative);
      if (!result.first || place < first_place) result.first = difference, first_place = place;
      if ((bound == 0 || difference.relative > bound) && (!result.beyond || place < beyond_place)) {
        result.beyond = difference, beyond_place = place;
      }
    }
  }
  for (std::size_t p = 0; p < second.size(); ++p) {
    for (const Item& item : second[p].items) {
      if (found[p].contains(&item)) continue;
      ++result.unmatched;
      ++result.left_out["only the second run has this " + item.kind];
    }
  }
  return result;
}

}  // namespace weft::train::proof
