// What a Proof reads: its plan, and what a replay takes from the records of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weft/data/sampler.h"

namespace weft::train {

/// The file that WEFT_PROVE names (train/proof.h).
struct ProofPlan {
  std::string out = {};         ///< the folder to write to
  std::string from = {};        ///< that of the ranks' records; empty: there is nothing to replay
  std::int64_t keep_step = -1;  ///< the step of which all tensors are kept; -1: none
  bool save_inputs = false;     ///< the ranks' batches, which their loaders make at random
};
/// Part of the error's text if a replay's loader makes other samples than the ranks' loaders did.
constexpr const char* kRandomSamples = "the samples are drawn at random";
/// Throws Io if it cannot be read, InvalidArgument if it is not a plan.
ProofPlan read_plan(const std::string& path);

/// The rates of one group of an optimiser's parameters, in one update.
struct GroupRates {
  double lr = 0, momentum = 0;
};

struct RecordedStep {
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices = {};
  std::vector<std::string> inputs = {};  ///< hashes of the body's inputs
  std::set<std::size_t> saved = {};      ///< which of them are in a file
  std::string state = {};                ///< of the generator; empty: as the last step has left it
  std::vector<std::vector<GroupRates>> updates = {};
};

/// The rank, or the first of the ranks that share a batch.
struct RecordedRank {
  int number = 0;
  std::vector<RecordedStep> steps = {};
};

struct RecordedRun {
  std::string what = {};  ///< as what_ran() says it
  std::vector<RecordedRank> ranks = {};
};
/// Throws Io if files are missing, InvalidArgument for other files and for runs that cannot be
/// replayed: steps without a train::Step, ranks with unequal numbers of steps.
RecordedRun read_recorded_run(const std::string& folder);

/// "mlp_ddp in f32 on 60000 samples"
std::string what_ran(const std::string& program, const std::string& dtype, std::int64_t samples);

/// The batches of all ranks in turn, epoch by epoch: step 0 of rank 0, step 0 of rank 1, ..., step
/// 1 of rank 0, ...
std::shared_ptr<const data::BatchSampler> recorded_batches(const RecordedRun& run);

/// The file with those inputs of a rank's step that are not from the loader.
std::string inputs_file(const std::string& folder, int rank, std::int64_t step);

}  // namespace weft::train
