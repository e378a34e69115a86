// What a Proof has written of a run, read again: one file of JSON lines for each rank
// (docs/prove.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::train::proof {

/// What is known of a tensor that was not kept.
struct Digest {
  std::vector<std::int64_t> shape;
  std::string dtype;
  std::string hash;        ///< of its elements' bits
  std::string not_finite;  ///< a hash of which elements are NaN or infinite; empty: none
  double l2 = 0;           ///< of the finite ones, as are the signs
  /// Four sums of the elements, each with pseudo-random signs of its own. The mean of the squared
  /// differences of two tensors' sums estimates the squared L2 norm of the tensors' difference
  /// (Alon, Matias, Szegedy, "The space complexity of approximating the frequency moments", 1996).
  std::array<double, 4> signs{};
  bool part = false;     ///< a rank's part of a tensor
  bool missing = false;  ///< a gradient that the parameter does not have
};

/// A tensor of a step. Its name is that of a module ("": the model) for an output, of a parameter
/// or buffer, or of a loss.
struct Item {
  std::string kind;  ///< output, gradient, weight, buffer or loss
  std::int64_t step = 0;
  int event = 0;  ///< which update of the step a gradient is for
  std::string name;
  std::string type;  ///< of an output: its module's
  int call = 0, index = 0;
  bool training = false;
  Digest digest;

  /// A text that is the same for the same tensor of another run.
  std::string key() const;
  /// Its name in the file of tensors that a run with "keep" writes.
  std::string kept_as() const;
  /// "the output of 2 (Dropout), call 0"
  std::string text() const;
};

/// Values by name, as texts of JSON.
using Settings = std::map<std::string, std::string>;

struct Update {
  std::int64_t step = 0;
  int event = 0, optimizer = 0;
  std::vector<Settings> groups;  ///< the options of each: "lr", "momentum" ...
};

struct OptimizerRecord {
  std::string type;
  std::vector<std::string> parameters;
};

struct Batch {
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices;
  std::string generator;            ///< a hash of its state before the step
  std::vector<std::string> inputs;  ///< hashes of the step's inputs, if they are known
  bool saved = false;               ///< all of them are in a file: indices do not identify them
};

/// The record of one rank. Lists are in the order of the run.
struct Record {
  Settings run;  ///< the first line: program, dtype, threads, simd ...
  std::string program, dtype;
  std::int64_t dataset_size = 0;
  int rank = 0, ranks = 1, batches = 1;
  std::int64_t steps = 0;
  std::vector<Item> items;
  /// The gradients after each micro-batch; `call` is its number.
  std::vector<Item> micro_batches;
  std::vector<Update> updates;
  std::vector<OptimizerRecord> optimizers;
  std::map<std::int64_t, Batch> batch_of;
};

/// The records of the ranks in a folder, by rank. Throws Io if there are none, if one is missing or
/// is not a record, or if a run did not reach its end.
std::vector<Record> read_records(const std::string& folder);

}  // namespace weft::train::proof
