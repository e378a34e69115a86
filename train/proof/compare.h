// How far the tensors of two runs are apart, by their digests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/train/proof/records.h"

namespace weft::train::proof {

/// A tensor that is not the same in both runs.
struct Difference {
  int rank = 0, other_rank = 0;  ///< of the first and the second run
  Item item;                     ///< of the first run
  Digest other;                  ///< of the second run
  double absolute = 0;  ///< an estimate of the L2 norm of their difference; inf for other shapes
  double relative = 0;  ///< absolute, by the larger of their norms
};

struct Comparison {
  std::int64_t steps = 0;
  std::map<std::string, std::int64_t> compared;  ///< tensors of each kind
  std::int64_t unlike = 0;                       ///< how many of them are not equal to the bit
  /// The first of them, in the order of the run, of the lowest rank that has it.
  std::optional<Difference> first;
  /// The first one that is further off than the bound.
  std::optional<Difference> beyond;
  double worst = 0;                              ///< the largest relative difference
  std::map<std::string, std::int64_t> left_out;  ///< why, and how many tensors
  std::int64_t unmatched = 0;                    ///< tensors that only one of the runs has
};

/// Compares each rank of the first run with the second run's, or with the one that had its batch.
/// `bound`: the relative difference that is allowed; 0: none, to the bit. A tensor below a
/// millionth (`floor`) of the largest tensor of its kind in the step is measured by that millionth:
/// it may be all rounding, like the gradient of a bias before a batch norm.
Comparison compare(const std::vector<Record>& first, const std::vector<Record>& second,
                   double bound, double floor = 1e-6);

}  // namespace weft::train::proof
