// The losses of a run's steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "weft/tensor/tensor.h"
#include "weft/train/checkpoint.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// One of several losses of a step.
struct NamedLoss {
  std::string_view name;
  const Tensor& value;
};

/// Losses step by step: those of the first loss and, if there are more, of the others by name.
struct LossRecord {
  std::string name = {};  ///< empty if it is the only one
  std::vector<double> values = {};
  std::vector<NamedLosses> more = {};
  std::size_t averaged = 0;  ///< the first losses, of this many steps, are means over the ranks
};

class Losses {
 public:
  /// Continues after a record whose losses are all means. `ranks` must outlive this. Throws
  /// InvalidArgument if the other losses have not as many values as the first.
  explicit Losses(const Ranks& ranks, LossRecord record = {});

  std::int64_t steps() const { return static_cast<std::int64_t>(record_.values.size()) + pending_; }
  /// Reserves memory, so that this many further steps allocate nothing.
  void reserve(std::int64_t steps);
  /// Adds the losses of a step. On CUDA the values are read later, many at once. The first loss
  /// that is not finite gives a warning with its step and this epoch. Throws InvalidArgument
  /// without losses, and for other names than in earlier steps. If it throws, nothing was added.
  void add(std::initializer_list<NamedLoss> losses, std::int64_t epoch);
  /// The record with the values of all steps; from record.averaged on they are those of this rank.
  const LossRecord& of_rank();
  /// The record with means only. All ranks call it.
  const LossRecord& averaged();

 private:
  void check_names(std::initializer_list<NamedLoss> losses);
  void record(std::size_t which, double loss);

  const Ranks* ranks_;
  LossRecord record_;
  Tensor waiting_;            // losses still on the device
  std::int64_t pending_ = 0;  // how many of them
  std::int64_t epoch_ = 0;
  bool warned_ = false;
};

}  // namespace weft::train
