// DistributedOptimizer: an optimiser whose step() uses the gradients of all ranks, as Horovod's.
//
//   const parallel::Horovod hvd = parallel::horovod_init();
//   Net model;
//   hvd.broadcast_parameters(model.state_dict());
//   parallel::DistributedOptimizer sgd(hvd, optim::SGD(model.parameters(), {.lr = 0.01}),
//                                      model.named_parameters());
//   ...
//   sgd.zero_grad();
//   loss.backward();  // gradients are sent as soon as they are complete
//   sgd.step();       // waits for them: all ranks make the same update
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/optim/optimizer.h"
#include "weft/parallel/gradient_exchange.h"

namespace weft::parallel {

/// An optimiser of type O in every respect: schedulers, checkpoints and functions that take an O
/// accept it. Make schedulers for this one, not for the optimiser from which it was made.
///
/// horovod/torch/optimizer.py's DistributedOptimizer, with these differences:
///  - A step may leave out any part of the model. A gradient that some ranks lack counts as zeros
///    there; a parameter whose gradient all ranks lack is skipped by the optimiser, where Horovod
///    gives it zeros.
///  - Several optimisers can exist side by side. If a backward for one passes through the
///    parameters of another, it leaves gradients there, on this rank; the other's zero_grad()
///    drops them. Horovod sends them, and throws "Gradients were computed more than
///    backward_passes_per_step times".
///  - zero_grad() before step() drops the gradients, where Horovod throws.
///  - Gradients are sent during backward only after a zero_grad() of this optimiser; after one of
///    the module's instead, step() sends them.
///  - After synchronize(), for clipping, step() does not reduce again: there is no
///    skip_synchronize().
///  - Which gradients go together is decided once, not by the clock in each step.
///  - There is no gradient_predivide_factor, no Adasum and no sparse gradient; compression is to
///    bf16.
///
/// All ranks must call zero_grad(), synchronize() and step() in the same order. A backward that
/// fails while gradients are sent ends the exchange: the other ranks get PeerFailed. From one
/// thread at a time. Unsupported in graph::capture.
template <std::derived_from<optim::Optimizer> O>
class DistributedOptimizer : public O {
 public:
  using StandsFor = O;  ///< the class to be named in metrics.json
  /// `named_parameters` name all parameters of `optimizer`, and may name more: usually the model's.
  /// All ranks call it. Throws InvalidArgument for a name given twice, a parameter without a name,
  /// options out of range, or if no parameter requires a gradient; and on every rank, naming the
  /// first difference, when one has other names, shapes or options. The ranks' values are not
  /// compared: see Horovod::broadcast_parameters().
  DistributedOptimizer(const Horovod& hvd, O optimizer, const optim::NamedTensors& named_parameters,
                       const DistributedOptimizerOptions& options = {})
      : O(std::move(optimizer)),
        exchange_(std::make_unique<GradientExchange>(hvd, this->parameters(), named_parameters,
                                                     options)) {}

  /// Drops the gradients; those of the next backward_passes_per_step backwards are sent as soon as
  /// they are complete. If there was no step() since the last zero_grad(), the ranks first finish a
  /// reduction that some of them may have begun; this costs as much as a whole reduction.
  void zero_grad() override {
    exchange_->zero_grad();
    O::zero_grad();
  }
  /// Reduces the gradients over all ranks, to look at them or to clip them before step().
  void synchronize() { exchange_->synchronize(); }
  /// synchronize(), then the optimiser's step. Throws InvalidArgument on every rank when none has
  /// computed a gradient, and Device or Dtype when the model was moved or converted since.
  void step() override {
    exchange_->before_step();
    O::step();
    exchange_->after_step();
  }

  /// The parameters whose gradients go together, in the order in which they are sent.
  std::vector<std::vector<std::string>> message_names() const { return exchange_->message_names(); }
  /// The number of messages sent so far.
  std::int64_t messages_sent() const { return exchange_->messages_sent(); }
  /// What has been reduced so far, counted as in DistributedDataParallel. A bucket is a message
  /// here, and what zero_grad() dropped counts, too.
  const ReducerStats& stats() const { return exchange_->stats(); }
  /// The traffic of this optimiser, which has its own group.
  comm::Traffic traffic() const { return exchange_->traffic(); }

 private:
  std::unique_ptr<GradientExchange> exchange_;
};

}  // namespace weft::parallel
