// Whether the two sides of a proof are one training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/train/proof/causes.h"
#include "weft/train/proof/compare.h"
#include "weft/train/proof/elements.h"
#include "weft/train/proof/records.h"

namespace weft::train::proof {

/// A training, and how to run it: as ranks, and in one process that takes their steps.
class Sides {
 public:
  /// How both sides run.
  struct Run {
    std::string kind = {};  ///< begins the names of their folders
    bool f64 = false;       ///< false: in the dtype of the program
    std::optional<std::int64_t> steps = {}, kept_step = {};
    bool save_inputs = false;  ///< also those from the loader
  };
  /// The one process has other inputs than the ranks, since the samples are drawn at random.
  struct RandomSamples {};

  virtual ~Sides() = default;
  virtual std::string name() const = 0;
  /// "2 ranks"
  virtual std::string text() const = 0;
  virtual bool has_f64() const = 0;
  /// The folder of a side, in the folder of the proof.
  virtual std::string path(const std::string& name) const = 0;
  /// Runs a side, which writes into path(run.kind + "ranks") or path(run.kind + "one"), and returns
  /// its records. The one process throws RandomSamples, unless its inputs are saved.
  virtual std::vector<Record> run_side(const Run& run, bool alone) const = 0;
};

struct Verdict {
  std::string program;
  std::string sides;  ///< "2 ranks"
  std::string word;   ///< "equal to the bit", "equal to rounding", "differs", "not comparable"
  Comparison comparison;
  std::vector<Cause> causes;
  std::optional<Difference> first;  ///< the one to show
  std::optional<Elements> elements;
  std::string records;  ///< the folder, if it is kept

  bool equal() const { return word.starts_with("equal"); }
  /// The exit status of a program: 0 equal, 1 different, 2 not comparable.
  int status() const { return equal() ? 0 : word == "differs" ? 1 : 2; }
  /// Lines for a reader: what was compared, the first difference with its elements, causes, notes.
  std::string text() const;
};

/// Runs both sides. If their samples are random, it runs them with saved inputs; if f32 differs and
/// equal bits are not promised, again in f64; and again to keep the first step that differs. Throws
/// what the sides throw, and InvalidArgument if nothing could be compared.
Verdict verdict_of(const Sides& sides);
/// The verdict on the records of two runs, rank by rank. Throws InvalidArgument for different
/// numbers of ranks and if nothing could be compared.
Verdict against(const std::string& first, const std::string& second);

}  // namespace weft::train::proof
