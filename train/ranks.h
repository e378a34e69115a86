// What a program of several processes tells train/ about its other processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::train {

/// One of several processes that train together; by default the only one. The program chooses the
/// library with which they communicate:
///   const train::Ranks ranks{
///       .rank = group->rank(), .size = group->size(), .backend = group->backend(),
///       .gather = [&](const std::string& text) { return group->all_gather_object(text); }};
struct Ranks {
  int rank = 0;
  int size = 1;
  std::string backend = {};  ///< its name in metrics.json
  /// Returns all ranks' texts, by rank. All ranks call it at the same points.
  std::function<std::vector<std::string>(const std::string& text)> gather = {};
  /// The batches in one step of all ranks; 0: one per rank. Ranks that share a batch are
  /// neighbours.
  int batches = 0;

  /// The batches in a step of all ranks together.
  int batches_per_step() const { return batches > 0 ? batches : size; }
  /// Sums over the ranks, added in the order of the ranks, so that all get the same bits.
  std::vector<double> sum(std::vector<double> values) const;
  /// take_least() of all ranks' values.
  std::vector<double> least(const std::vector<double>& values) const;
};

/// Makes each element of `least` the smaller of the two, and appends the elements that only `other`
/// has: a rank may take part in fewer steps.
void take_least(std::vector<double>& least, const std::vector<double>& other);

}  // namespace weft::train
