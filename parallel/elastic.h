// Elastic: DistributedDataParallel that goes on in the same processes when a rank fails, and takes
// it back when it returns. docs/elastic.md shows a run.
//
//   parallel::Elastic elastic(model, sgd);
//   while (elastic.next_epoch(epochs)) {
//     ... // a DistributedSampler of elastic.shares() ranks, rank elastic.share()
//     std::int64_t batch = 0;  // counts steps: with more batches in a step, count those
//     for (auto& [x, label] : loader) {
//       if (batch++ < elastic.steps_in_epoch()) continue;  // a rank that has come back
//       elastic.step([&] {
//         sgd.zero_grad();
//         const Tensor loss = nn::cross_entropy(elastic(x), label);
//         loss.backward();
//         return loss;
//       });  // calls sgd.step()
//     }
//   }
//   elastic.finish([&] { save(model); });  // the lowest rank does it
//
// The protocol. A step ends with a vote, a tiny all_reduce that starts when this rank has the means
// of all buckets. Only then the optimiser updates the weights, so a step that fails before has
// changed nothing but buffers and generators, which are remembered. A vote can end on a rank only
// after all ranks have begun it. So if it ends on any rank, all ranks have the means; and no rank
// is ever more than one vote ahead of another.
//
//   a rank fails before or in the vote   its group fails on the others, each at some point. They go
//                                        to the next generation (comm/membership.h), and tell each
//                                        other how many votes they have passed. If one is ahead, it
//                                        has passed the vote of this step: the others update, too.
//                                        Else all put back what they remember, clear the gradients,
//                                        and run the closure again
//   ... in optimizer.step()              likewise: it has passed the vote, perhaps as the only one
//   ... while updated parameters are     with ZeroRedundancyOptimizer: the update itself needs no
//   sent to the other ranks              message, so all that are left have made theirs, as owners
//                                        or mirrors; the new group gets the values from these
//   ... while they regroup               that group does not form, or fails; they take the next
//                                        generation. What the votes said is still true
//   fewer than K would be left           the run ends with the error, as without Elastic
//   one finishes while others regroup    it leaves by a generation of its own, so nobody waits
//
// A rank that comes back waits to be invited: the lowest rank says in its vote that the group
// changes, so that all go to the next generation after the same step. The first rank that has the
// state sends it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/comm/init.h"
#include "weft/comm/membership.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/module.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/zero_mirror.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

struct ElasticOptions {
  /// broadcast_buffers must be set.
  DistributedDataParallelOptions ddp = {};
  /// Text with what a returning rank needs besides the model, the optimiser and Elastic's counters:
  /// a scheduler's counters, sums of losses. Another rank makes it at the end of a step(), so it
  /// does not contain what the program does after that step(), and the returning rank does not do
  /// that either. A checkpoint's counters contain it, too.
  std::function<std::string()> state = {};
  std::function<void(const std::string&)> load_state = {};
  /// Writes a checkpoint: called before each epoch except the very first, and not at the end, with
  /// the whole state of the optimiser and the counters, as a text; it takes the model's state
  /// itself. All ranks must set it. It runs on the lowest rank, in a BusyScope, and again on the
  /// next one if that rank fails or the function throws there. It must not communicate with other
  /// ranks.
  std::function<void(const optim::NamedTensors& optimizer, const std::string& counters)> save = {};
  /// The counters of a checkpoint: the run goes on from there, with the same or another number of
  /// ranks. All ranks must pass them, and load the model's and the optimiser's state before. The
  /// lowest rank's values are used; generators are seeded from (seed, rank, step).
  std::string resume = {};
  /// Called in each vote: if it returns true on one rank, stopped() is true on all after the same
  /// step.
  std::function<bool()> stop = {};
  /// A file that the lowest rank keeps up to date: which ranks have taken part from which step on,
  /// which ranks had shares of the epochs, and at the end the number of steps. Empty: no file.
  ///   {"ranks": [{"step": 0, "ranks": [0, 1, 2]}, {"step": 7, "ranks": [0, 1]}],
  ///    "epochs": [{"step": 0, "ranks": [0, 1, 2]}], "steps": 12}
  std::string record = {};
  /// How to find the other ranks; by default from the environment, with the defaults of
  /// InitOptions.
  std::optional<comm::ElasticRun> run = {};
};

/// The part of Elastic that does not depend on the type of the model.
class ElasticRanks {
 public:
  /// Puts the model on a new group, in place of the one before.
  using Wrap = std::function<void(const std::shared_ptr<comm::ProcessGroup>&)>;

  ElasticRanks(nn::ModuleBase module, optim::Optimizer& optimizer, ElasticOptions options,
               Wrap wrap);
  ElasticRanks(const ElasticRanks&) = delete;
  ElasticRanks& operator=(const ElasticRanks&) = delete;

  /// Meets the other ranks. A rank that has come back first waits for an invitation.
  void start();
  /// Runs body(), in a phase of this name, and a vote; again whenever a rank is lost in them. Then
  /// runs apply() once.
  void run(const char* phase, const std::function<void()>& body,
           const std::function<void()>& apply);
  bool next_epoch(std::int64_t epochs);
  void finish(const std::function<void()>& on_lowest);
  /// The optimiser's step; for a ZeroRedundancyOptimizer only the part without messages.
  void update();

  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return run_.membership ? run_.rank : place_; }
  bool stopped() const { return over_ || (flags_ & kStop) != 0; }
  std::int64_t steps() const { return steps_; }
  std::int64_t epoch() const { return epoch_; }
  std::int64_t steps_in_epoch() const { return steps_ - epoch_first_step_; }
  int shares() const { return static_cast<int>(dealt_.size()); }
  int share() const;

 private:
  using Ranks = comm::Membership::Ranks;
  /// The ranks that took part, from a step on.
  struct Span {
    std::int64_t step;
    Ranks ranks;
  };
  static constexpr int kGrow = 1, kStop = 2;  // flags of a vote

  void meet();
  void lack_state();
  void remember();
  void restore();
  int vote();
  int rates() const;
  void pass(int flags);
  void send_parameters();
  void save() const;
  bool survives(const Error& error);
  bool failed_first() const;
  bool has_lost_a_rank() const;
  std::optional<Ranks> next_ranks(bool own_error) const;
  bool regroup();
  const char* join(const Ranks& ranks);
  bool agree(comm::ProcessGroup& group);
  void copy_state(comm::ProcessGroup& group, int root);
  std::string books() const;
  void take_books(const std::string& text);
  void seed_generators();
  void take(const Ranks& ranks, int place);
  void write_record() const;

  nn::ModuleBase module_;
  optim::Optimizer& optimizer_;
  ZeroMirror* const zero_;  // null: every rank has the whole state of the optimiser
  const ElasticOptions options_;
  const Wrap wrap_;
  const comm::ElasticRun run_;
  std::shared_ptr<comm::ProcessGroup> group_;

  int generation_ = -1;
  Ranks ranks_;  // of the present group
  int place_ = 0;
  bool has_state_;
  std::int64_t asked_ = 0;  // when this rank looked for ranks that wait, by the steady clock, ns

  // Results of the votes: equal on all ranks that have passed the same votes.
  std::int64_t votes_ = 0, steps_ = 0, epoch_ = -1, epoch_first_step_ = 0;
  int flags_ = 0;  // of the last vote
  Ranks dealt_;    // the ranks that have shares of the epoch
  std::vector<Span> history_, epochs_;
  const std::function<void()>* pending_ = nullptr;  // to be called when the next vote has passed
  bool unsent_ = false;                             // the parameters that this rank has updated
  bool in_epoch_ = false, resumes_ = false, finishing_ = false, over_ = false;

  std::vector<Tensor> buffers_, kept_buffers_;
  std::vector<std::pair<Device, Generator>> kept_generators_;
};

/// Keeps `module`, which is a handle; the optimiser must outlive this, and is called by step(). One
/// thread calls it. Without weftrun --min-nproc or --nnodes MIN:MAX this is DistributedDataParallel
/// on the ranks of init_process_group(), with the same errors.
///
/// Within an epoch each rank keeps the share of the samples that it had. The remaining samples of a
/// rank that has failed are not used, unless it comes back in that epoch. A rank without a share of
/// the epoch waits for the next one, which is dealt to the ranks present then. Gradients are means
/// over the ranks that take part. All ranks need the same number of steps in an epoch.
///
/// If the learning rate changes with each step, set it from steps() in the closure, or step the
/// scheduler directly before step(): a rank that comes back after a step never runs what the
/// program does after that step(). In the vote the ranks compare the groups' lr and momentum, to 6
/// digits, and throw InvalidArgument if they differ. Freeze parameters before Elastic is made, not
/// later: ranks that regroup may be one step apart, and throw InvalidArgument if they have frozen
/// different parameters.
///
/// An error of the closure or of the optimiser is thrown on the rank where it occurs, and the
/// others go on without that rank. The same holds for PeerFailed or Comm of another group or a
/// store, if no rank has ended within a second, and for mismatched calls, on the rank that reports
/// them first. A rank that hangs ends the run: those that wait for it get Timeout.
template <std::derived_from<nn::ModuleBase> M>
class Elastic {
 public:
  /// All ranks of the run call it; rank 0's parameters and buffers are copied to all. A rank that
  /// has come back gets parameters, buffers, the optimiser's state and all counters here, and seeds
  /// its generators from (seed, rank, step). If the run ends before that, it is stopped(), and
  /// finish() returns at once. Throws as init_process_group() and DistributedDataParallel,
  /// Unsupported without broadcast_buffers, and for a ZeroRedundancyOptimizer without a mirror, and
  /// InvalidArgument if only some ranks go on from a checkpoint.
  Elastic(M module, optim::Optimizer& optimizer, const ElasticOptions& options = {})
      : module_(module),
        ranks_(std::move(module), optimizer, options, [this, ddp = options.ddp](const auto& group) {
          if (ddp_) order_ = ddp_->engine_state();
          ddp_.reset();  // its hooks are on the same parameters
          ddp_.emplace(module_, group, ddp);
          ddp_->load_engine_state(order_);
        }) {
    ranks_.start();
  }

  /// The wrapper's forward.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return (*ddp_)(std::forward<Args>(args)...);
  }
  /// The present wrapper; each change of the group makes a new one.
  DistributedDataParallel<M>& ddp() { return *ddp_; }

  /// Makes a step: closure() computes gradients with operator(); the program clears them, in it or
  /// before. It may be run again: before that, all gradients are cleared here. Then the optimiser
  /// updates. Returns the last result of the closure. no_sync() belongs inside the closure, around
  /// all backwards but the last; throws InvalidArgument if none has averaged gradients.
  template <class F>
  auto step(F&& closure) {
    std::invoke_result_t<F&> result;
    ranks_.run(
        "forward",
        [&] {
          const std::int64_t before = ddp_->stats().reductions;
          result = closure();
          WEFT_CHECK(ddp_->stats().reductions > before, InvalidArgument, "elastic",
                     "the closure of step ", steps(),
                     " has averaged no gradients; it has to call backward() of a loss by "
                     "operator(), outside of no_sync()");
        },
        [&] { ranks_.update(); });
    return result;
  }

  /// Moves on to the next epoch, which is dealt to the ranks that are there; false if all are done,
  /// or stopped(). On a rank that comes back within an epoch, the first call enters that epoch.
  bool next_epoch(std::int64_t epochs) { return ranks_.next_epoch(epochs); }
  /// All ranks call it when they are done: on_lowest() runs on the lowest rank, in a BusyScope, and
  /// again on another one if that rank fails. It must not communicate with other ranks.
  void finish(const std::function<void()>& on_lowest = {}) { ranks_.finish(on_lowest); }

  /// The numbers in the run of the ranks that take part, and this rank's number.
  const std::vector<int>& ranks() const { return ranks_.ranks(); }
  int rank() const { return ranks_.rank(); }
  bool stopped() const { return ranks_.stopped(); }
  std::int64_t steps() const { return ranks_.steps(); }  ///< updates so far
  std::int64_t epoch() const { return ranks_.epoch(); }
  std::int64_t steps_in_epoch() const { return ranks_.steps_in_epoch(); }
  /// The parts into which the epoch was dealt, and which of them is this rank's.
  int shares() const { return ranks_.shares(); }
  int share() const { return ranks_.share(); }

 private:
  M module_;
  nn::NamedTensors order_;  // from the wrapper before this one
  std::optional<DistributedDataParallel<M>> ddp_;
  ElasticRanks ranks_;
};

}  // namespace weft::parallel
