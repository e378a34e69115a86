// Proof: what weft prove records of a run of several ranks, and how it takes the same steps in
// one process.
//
// The environment variable WEFT_PROVE names a file, the plan:
//
//   {"out": FOLDER, "side": "ranks"}                 each rank writes OUT/rank-R.jsonl
//   {"out": FOLDER, "side": "one", "from": FOLDER}   one process takes the recorded steps of all
//                                                    ranks, and writes a file for each of them
//   with "keep": {"step": 3}                         also the tensors of that step, in
//                                                    OUT/rank-R-step-3.safetensors; one process
//                                                    adds the sums of its addends' magnitudes
//   with "save_inputs": true                         also the loader's batches, for the replay
//
// A step of the replay is n calls of a train::Step, with the batches of the n ranks in turn. At the
// last call its body runs for the batch of each rank, once for each update ("event") of an
// optimiser in the body:
//
//   pass 0   rank 0: forward, backward, add gradients    | skip event 1
//            rank 1: forward, backward, add gradients, update with the mean | skip event 1
//   pass 1   rank 0: forward, backward, take the weights of event 0 | forward, backward, add ...
//            rank 1: the same                                       | ..., update with the mean
//
// Each run of the body begins with the weights of before the step, and with its rank's buffers and
// random numbers. So it computes what its rank has computed, and each gradient is a mean over ranks
// of gradients of one and the same model: that of one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/data/loader_core.h"
#include "weft/io/named_tensors.h"
#include "weft/nn/module.h"
#include "weft/optim/optimizer.h"
#include "weft/train/losses.h"
#include "weft/train/proof_lines.h"
#include "weft/train/ranks.h"
#include "weft/train/recorded_run.h"

namespace weft::train {

/// The run of a Recorder that is proved.
struct ProvedRun {
  std::string program = {};
  DType dtype = DType::f32;
  std::int64_t dataset_size = 0, batch_size = 0;
  bool shuffle = false;
  std::optional<nn::ModuleBase> module = {};  ///< empty: only its weights are known
  /// Returns the whole state, with calls of all ranks; empty: it is the module's.
  std::function<io::NamedTensors()> state = {};
  /// Whether the engine copies rank 0's buffers to all ranks before each forward.
  bool shares_buffers = false;
};

/// All functions throw InvalidArgument, with the reason, for a training that cannot be replayed.
class Proof : public optim::UpdateWatch, public std::enable_shared_from_this<Proof> {
 public:
  /// Runs a step's body with these inputs; returns the tensors of its result.
  using Body = std::function<std::vector<Tensor>(std::span<const Tensor> inputs)>;

  /// The proof that WEFT_PROVE asks for; null without it.
  static std::shared_ptr<Proof> from_environment();
  /// Throws InvalidArgument for files that are no records, Io if they cannot be read.
  explicit Proof(ProofPlan plan);

  bool replays() const { return !plan_.from.empty(); }
  /// How many batches a step takes from the loader.
  std::int64_t batches_per_step() const { return static_cast<std::int64_t>(ranks_.size()); }
  /// Options for the loader of the training data.
  data::DataLoaderOptions loader(data::DataLoaderOptions options) const;

  // Called by the Recorder and the Step, in this order.
  void begin(const Ranks& ranks, ProvedRun run);
  /// A batch was handed out, which has these tensors.
  void on_batch(std::int64_t step, std::int64_t epoch, std::span<const std::int64_t> indices,
                std::vector<Tensor> tensors);
  void run(std::span<const Tensor> inputs, const Body& body);
  /// Returns whether the step is complete: false after all but the last batch of a replay's step.
  bool end_step(std::initializer_list<NamedLoss> losses);
  void end(std::int64_t steps);
  /// Called by the body: the gradients of this micro-batch have been added. Recorded only in the
  /// step of a replay that is kept.
  void on_micro_batch(std::int64_t number);

  bool before_step(optim::Optimizer& optimizer) override;
  void after_step(optim::Optimizer& optimizer) override;
  void before_clipping(std::span<const Tensor> params) override;

 private:
  using Values = std::vector<std::pair<Tensor, Tensor>>;  // tensors, and values to write there
  using Means = std::map<const TensorImpl*, Tensor>;
  struct Rank {
    int number = 0;
    std::ofstream file = {};
    BatchLine batch = {};        // of the step
    std::string lines = {};      // of the step, after the batch
    io::NamedTensors kept = {};  // of the step
    std::string generator = {};  // its state before the step, as the steps before have left it
    // For the present step of a replay.
    std::vector<Tensor> inputs = {}, results = {};
    std::vector<Tensor> buffers = {}, new_buffers = {};  // before and after
    std::string new_generator = {};
  };
  struct Event {
    optim::Optimizer* optimizer;
    Means means;
    Values weights;  // of after it
  };
  struct Output {
    std::size_t module;
    std::int64_t call;
    std::size_t index;
    int device;
    bool training;
    Tensor tensor;
  };

  void write_head(const Ranks& ranks);
  void watch_modules();
  void listen(bool open);
  void on_output(std::size_t module, bool training, std::span<const Tensor> results);
  void write_outputs();
  void write_update(optim::Optimizer& optimizer);
  void write_weights();
  void put_line(Rank& rank, const std::string& line) const;
  void check_written(const Rank& rank) const;
  void keep(Rank& rank, const std::string& key, const Tensor& x) const;
  std::size_t number_of(optim::Optimizer& optimizer);
  std::vector<Tensor> as_recorded(Rank& rank, std::span<const Tensor> inputs) const;
  void note_inputs(Rank& rank, std::span<const Tensor> inputs) const;
  bool is_from_loader(const Tensor& x) const;

  // train/proof_replay.cc
  const RecordedStep& recorded_step(const Rank& rank) const;
  bool before_replayed_step(optim::Optimizer& optimizer);
  void replay(const Body& body);
  void run_as(Rank& rank, const Body& body);
  void use_gradients(std::span<const Tensor> params);
  void take_rates(optim::Optimizer& optimizer) const;

  const ProofPlan plan_;
  RecordedRun recorded_;                      // of a replay
  std::vector<std::unique_ptr<Rank>> ranks_;  // recording: this one
  Rank* now_ = nullptr;                       // whose body runs

  ProvedRun run_;
  bool begun_ = false;
  std::vector<std::pair<std::string, std::string>> modules_;  // names and types
  std::map<const TensorImpl*, std::string> names_;            // of parameters
  std::set<std::string> parts_;                               // names of those that are cut
  std::vector<optim::Optimizer*> optimizers_;                 // in the order of their first updates

  std::int64_t step_ = -1;
  bool in_step_ = false;  // between a batch and the step's end
  bool in_body_ = false;
  bool ran_ = false;           // the batch's train::Step was called
  std::vector<Tensor> batch_;  // that was handed out last
  std::size_t call_ = 0;       // of the replay's step
  bool complete_ = false;      // all ranks' bodies have run

  std::mutex mutex_;  // modules may be called on several threads
  bool open_ = false;
  std::map<std::pair<std::size_t, int>, std::int64_t> calls_;  // of each module, on each device
  std::vector<Output> outputs_;

  // For the step of a replay.
  std::size_t pass_ = 0, event_ = 0;      // the pass; the body's next update
  std::optional<std::size_t> last_call_;  // before or after which update a module was called last
  std::vector<Event> events_;             // that are done
  Values weights_;                        // before the step
  Values gradients_;                      // likewise, undefined ones too
  Means sums_;                            // for the next event
  Means magnitudes_;                      // in a step to keep: sums of the addends' magnitudes
  std::set<const TensorImpl*> used_;      // parameters whose gradients the event has counted
};

}  // namespace weft::train
