// A proof of a training that is no program: what weft prove does, as a call.
//
//   const auto verdict = train::prove(
//       {.ranks = 2}, [](comm::ProcessGroup& group, train::Trial& trial) {
//         nn::Linear net(4, 1);
//         net.to(Device(), trial.dtype());
//         parallel::DistributedDataParallel ddp(net, group);
//         optim::SGD sgd(net.parameters(), {.lr = 0.1});
//         ...
//         data::DataLoader loader(set, trial.loader({.batch_size = 8, .sampler = sampler}));
//         const auto step = [&](const Tensor& x, const Tensor& y) {
//           sgd.zero_grad();
//           const Tensor loss = nn::mse_loss(ddp(x), y);
//           loss.backward();
//           sgd.step();
//           return loss;
//         };
//         trial.train(net, loader, step, ddp, *sampler);
//       });
//   std::fputs(verdict.text().c_str(), stdout);
//
// docs/prove.md has the whole program, and says what is compared and what a step must not do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/data/loader_core.h"
#include "weft/optim/optimizer.h"
#include "weft/tensor/tree.h"
#include "weft/train/options.h"
#include "weft/train/proof.h"
#include "weft/train/proof/verdict.h"
#include "weft/train/proved_run.h"
#include "weft/train/ranks.h"
#include "weft/train/step.h"

namespace weft::train {

struct ProveOptions {
  int ranks = 2;
  std::int64_t steps = 20;
  /// The batches in a step of all ranks; 0: one per rank; 1 if all ranks share one, as in tensor
  /// parallelism. Divides the number of ranks.
  int batches = 0;
  /// With f32, if the sides differ and equal bits are not promised, both run again in f64, which
  /// decides.
  DType dtype = DType::f32;
  std::uint64_t seed = 0;      ///< each rank begins with manual_seed(seed)
  std::string name = "model";  ///< in the verdict's text
};

/// A rank of the training that is proved, or the one process that takes the steps of all ranks.
/// Kernels are deterministic, and the ranks share the caller's threads.
class Trial {
 public:
  Trial(const ProveOptions& options, const Ranks& ranks, std::shared_ptr<Proof> proof, int threads);

  /// The dtype that the model and its data must have.
  DType dtype() const { return options_.dtype; }
  /// Whether this is the one process. It must not use an engine that drives several devices; other
  /// engines find a group of one rank.
  bool alone() const { return proof_->replays(); }
  /// As train::Options::note_micro_batch().
  void note_micro_batch(std::int64_t number) const { proof_->on_micro_batch(number); }
  /// Options for the loader of the training data. The one process gets the batches of the ranks.
  data::DataLoaderOptions loader(const data::DataLoaderOptions& own) const {
    return proof_->loader(own);
  }

  /// Trains for the wanted number of steps, over as many epochs as they take. To be called once.
  /// model: a module, or what parallel::fully_shard has made of it. step(x, ...): the step of a
  /// batch's tensors, with all of its updates, as for train::Step; returns the loss, or a structure
  /// that begins with it. parts: the engine, if it copies buffers as DistributedDataParallel does,
  /// and samplers, whose set_epoch() is called. Throws InvalidArgument for what cannot be proved,
  /// and what the step throws.
  template <class Model, class Loader, class F, class... Parts>
  void train(Model& model, Loader& loader, F step, Parts&... parts) {
    begin(proved_run(model, parts...), loader.dataset().size(), loader.options());
    const optim::UpdateWatchScope watch(*proof_);
    Step body(step_options_, std::move(step));
    std::int64_t done = 0;
    for (std::int64_t epoch = 0; done < options_.steps; ++epoch) {
      (set_epoch(parts, epoch), ...);
      check_epoch(epoch, loader.size());
      for (auto& batch : loader) {
        proof_->on_batch(done, epoch, loader.indices(), tensors_in(batch));
        done += end_step(tensors_in(call(body, batch)));
        if (done == options_.steps) break;
      }
    }
    proof_->end(done);
  }

  /// Throws InvalidArgument if train() was not called.
  void check_trained() const;

 private:
  void begin(ProvedRun run, std::int64_t dataset_size, const data::DataLoaderOptions& loading);
  void check_epoch(std::int64_t epoch, std::int64_t batches) const;
  int end_step(const std::vector<Tensor>& result);

  template <class Body, class Batch>
  static auto call(Body& body, Batch& batch) {
    if constexpr (std::is_same_v<Batch, Tensor>) {
      return body(batch);
    } else if constexpr (requires { batch.tensors(); }) {
      return std::apply(body, batch.tensors());
    } else {
      return std::apply(body, batch);
    }
  }
  template <class Tree>
  static std::vector<Tensor> tensors_in(Tree&& tree) {
    std::vector<Tensor> tensors;
    for_each_tensor(tree, [&](const Tensor& x) { tensors.push_back(x); });
    return tensors;
  }
  template <class Part>
  static void set_epoch(Part& part, std::int64_t epoch) {
    if constexpr (requires { part.set_epoch(epoch); }) part.set_epoch(epoch);
  }

  const ProveOptions options_;
  const Ranks ranks_;
  const std::shared_ptr<Proof> proof_;
  Options step_options_;
  bool trained_ = false;
};

namespace detail {
/// Runs a function as each of n ranks; it gets the rank's number.
using RunTrials = std::function<void(int n, const std::function<Trial(int rank)>& make_trial)>;
proof::Verdict prove(const ProveOptions& options, const RunTrials& run);

template <class F>
struct FirstParameter;
template <class Result, class First, class... Others>
struct FirstParameter<std::function<Result(First, Others...)>>
    : std::type_identity<std::remove_cvref_t<First>> {};
}  // namespace detail

/// Proves that f(group, trial), run as ranks in threads of this process, trains as it does in one
/// process with the batches of these ranks one after the other. f makes model, optimiser, engine
/// and loader, and calls trial.train(); ranks run it at the same time, and both sides run twice or
/// more often where they differ. group: as of comm::run_ranks, of comm/group/process_group.h or
/// weft.h; it may be of another type, whose namespace has a run_ranks, too, so f names the type: it
/// is no lambda with auto. Records are in a temporary folder meanwhile. Throws InvalidArgument for
/// less than one rank or step, batches that do not divide the ranks and a training that cannot be
/// proved, Io, and what f throws.
template <class F>
proof::Verdict prove(const ProveOptions& options, F f) {
  using Group = typename detail::FirstParameter<decltype(std::function(f))>::type;
  return detail::prove(options, [&f](int n, const std::function<Trial(int rank)>& make_trial) {
    run_ranks(n, std::function<void(Group&)>([&](Group& group) {
                Trial trial = make_trial(group.rank());
                f(group, trial);
                trial.check_trained();
              }));
  });
}

}  // namespace weft::train
