#include "weft/train/prove.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/shard.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "prove";
namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(temporary_folder() + "/weft-prove-XXXXXX") {
    WEFT_CHECK(mkdtemp(path_.data()), Io, kOp, "cannot make ", path_, ": ", std::strerror(errno));
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TrialSides final : public proof::Sides {
 public:
  TrialSides(const ProveOptions& options, const detail::RunTrials& run)
      : options_(options), run_(run) {}

  std::string name() const override { return options_.name; }
  std::string text() const override {
    return weft::detail::concat(options_.ranks, options_.ranks == 1 ? " rank" : " ranks");
  }
  bool has_f64() const override { return true; }
  std::string path(const std::string& name) const override { return folder_.path() + '/' + name; }

  std::vector<proof::Record> run_side(const Run& run, bool alone) const override {
    ProveOptions options = options_;
    if (run.f64) options.dtype = DType::f64;
    if (run.steps) options.steps = *run.steps;
    const std::string ranks = path(run.kind + "ranks");
    const ProofPlan plan{.out = alone ? path(run.kind + "one") : ranks,
                         .from = alone ? ranks : "",
                         .keep_step = run.kept_step.value_or(-1),
                         .save_inputs = run.save_inputs};
    const int n = alone ? 1 : options.ranks;
    try {
      run_(n, [&](int rank) {
        return Trial(
            options,
            {.rank = rank, .size = n, .backend = "threads", .batches = alone ? 0 : options.batches},
            std::make_shared<Proof>(plan), threads_);
      });
    } catch (const Error& error) {
      if (std::string(error.what()).find(kRandomSamples) == std::string::npos) throw;
      throw RandomSamples();
    }
    return proof::read_records(plan.out);
  }

 private:
  const ProveOptions options_;
  const detail::RunTrials& run_;
  const int threads_ = std::max(1, num_threads() / options_.ranks);
  const TemporaryFolder folder_;
};

}  // namespace

Trial::Trial(const ProveOptions& options, const Ranks& ranks, std::shared_ptr<Proof> proof,
             int threads)
    : options_(options), ranks_(ranks), proof_(std::move(proof)) {
  thread_state().deterministic = true;
  set_num_threads(threads);
  manual_seed(options_.seed);
  step_options_.findings->proof = proof_;
}

void Trial::begin(ProvedRun run, std::int64_t dataset_size,
                  const data::DataLoaderOptions& loading) {
  if (run.module) {
    WEFT_CHECK(run.state || nn::shards_of(*run.module).empty(), InvalidArgument, kOp,
               "the model is cut into parts, one on each rank: Trial::train() needs what "
               "fully_shard or parallelize has returned");
    const std::vector<Tensor> params = run.module->parameters();
    WEFT_CHECK(std::ranges::any_of(params, [&](const Tensor& p) { return p.dtype() == dtype(); }),
               InvalidArgument, kOp, "no parameter is ", to_string(dtype()),
               ": make the model and its data with trial.dtype(), which is f64 where f32 cannot "
               "decide");
  }
  run.program = options_.name;
  run.dtype = options_.dtype;
  run.dataset_size = dataset_size;
  run.batch_size = loading.batch_size;
  run.shuffle = loading.shuffle;
  trained_ = true;
  proof_->begin(ranks_, std::move(run));
}

void Trial::check_epoch(std::int64_t epoch, std::int64_t batches) const {
  WEFT_CHECK(batches > 0, InvalidArgument, kOp, "the loader has no batch in epoch ", epoch,
             ", and ", options_.steps, " steps are wanted");
}

int Trial::end_step(const std::vector<Tensor>& result) {
  WEFT_CHECK(!result.empty(), InvalidArgument, kOp, "the step returns no loss");
  return proof_->end_step({{"", result[0]}});
}

void Trial::check_trained() const {
  WEFT_CHECK(trained_, InvalidArgument, kOp, "the function has not called Trial::train()");
}

proof::Verdict detail::prove(const ProveOptions& options, const RunTrials& run) {
  WEFT_CHECK(options.ranks >= 1 && options.steps >= 1, InvalidArgument, kOp, "got ", options.ranks,
             " ranks and ", options.steps, " steps, needs at least one of each");
  WEFT_CHECK(options.batches == 0 || (options.batches > 0 && options.ranks % options.batches == 0),
             InvalidArgument, kOp, "got ", options.ranks, " ranks with ", options.batches,
             " batches in a step, needs 0 (one per rank) or a number that divides the ranks");
  return proof::verdict_of(TrialSides(options, run));
}

}  // namespace weft::train
