// DistributedOptimizer: an optimiser whose step() takes the gradients of all ranks, as Horovod's.
//
//   const parallel::Horovod hvd = parallel::horovod_init();
//   Net model;
//   hvd.broadcast_parameters(model.state_dict());
//   parallel::DistributedOptimizer sgd(hvd, optim::SGD(model.parameters(), {.lr = 0.01}),
//                                      model.named_parameters());
//   ...
//   sgd.zero_grad();
//   loss.backward();  // gradients are on their way as soon as they are complete
//   sgd.step();       // waits for them: all ranks take the same step
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

/// An optimiser of type O in every respect, so that schedulers, checkpoints and functions that take
/// an O have it as it is. Make schedulers of this one, not of the optimiser it was made from.
///
/// horovod/torch/optimizer.py's DistributedOptimizer, with these differences:
///  - A step may leave out any part of the model: a parameter without a gradient on some ranks
///    counts as zeros there, one without on all ranks is passed over by the optimiser, where
///    Horovod hands it zeros.
///  - Several optimisers live side by side. A backward of one that passes through the parameters of
///    another leaves gradients there, on this rank; the other's zero_grad() drops them. Horovod
///    has them sent and throws "Gradients were computed more than backward_passes_per_step times".
///  - zero_grad() before step() drops the gradients, where Horovod throws.
///  - Gradients are sent during backward only behind a zero_grad() of this optimiser; where the
///    module's is called instead they are sent by step().
///  - After synchronize(), for clipping, step() does not reduce again: there is no
///    skip_synchronize().
///  - Which gradients go together is decided once, and not by the clock in each step.
///  - gradient_predivide_factor, Adasum and sparse gradients are not there; compression is to bf16.
///
/// All ranks must call zero_grad(), synchronize() and step() in the same order. A backward that
/// fails while gradients are sent ends the exchange: the other ranks get PeerFailed. From one
/// thread at a time. What is captured by graph::capture cannot reduce (Unsupported).
template <std::derived_from<optim::Optimizer> O>
class DistributedOptimizer : public O {
 public:
  /// `named_parameters` name all parameters of `optimizer` and may name more: usually the model's.
  /// All ranks call it. Throws InvalidArgument for a name given twice, a parameter without a name,
  /// options out of range, a model of which nothing requires a gradient; and on every rank, naming
  /// the first difference, when one has other names, shapes or options. The ranks' values are not
  /// compared: see Horovod::broadcast_parameters().
  DistributedOptimizer(const Horovod& hvd, O optimizer, const optim::NamedTensors& named_parameters,
                       const DistributedOptimizerOptions& options = {})
      : O(std::move(optimizer)),
        exchange_(std::make_unique<GradientExchange>(hvd, this->parameters(), named_parameters,
                                                     options)) {}

  /// Forgets the gradients; those of the next backward_passes_per_step backwards are sent as they
  /// come. Where nothing was stepped since the last zero_grad(), the ranks finish what some may
  /// have begun, at the cost of a whole reduction.
  void zero_grad() override {
    exchange_->zero_grad();
    O::zero_grad();
  }
  /// Makes the gradients those of all ranks: to look at them, or to clip them, before step().
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
  /// So far.
  std::int64_t messages_sent() const { return exchange_->messages_sent(); }

 private:
  std::unique_ptr<GradientExchange> exchange_;
};

}  // namespace weft::parallel
