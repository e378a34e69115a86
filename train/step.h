// A program's training step: run as it is or, with --graph, captured once and replayed.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/phase.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"
#include "weft/train/options.h"

namespace weft::train {

/// One training step as a function of a batch's tensors that returns its loss, or its losses:
///
///   train::Step step(options, [&](const Tensor& x, const Tensor& label) {
///     sgd.zero_grad();
///     const Tensor loss = nn::cross_entropy(model(x), label);
///     loss.backward();
///     sgd.step();
///     return loss;
///   });
///   for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
///
/// With options.graph the body is captured (core/runtime/capture.h says what it must not do), and
/// each call copies the batch into the tensors that the body reads. The values are those of the
/// body, to the bit if options.deterministic is set. A call's result is then overwritten by the
/// next call: the Recorder copies losses, and reads them on the host many at a time. The step that
/// is captured is that of the largest batch so far, in dimension 0; a smaller one, an epoch's last,
/// runs as it is. Before it the captured step gives its memory back, and is captured again when it
/// is next called.
template <class Signature>
class Step;

template <class Result, class... Inputs>
class Step<Result(Inputs...)> {
 public:
  Step(const Options& options, std::function<Result(Inputs...)> body)
      : graph_(options.graph), device_(options.device), body_(std::move(body)) {}
  Step(const Step&) = delete;  // the captured step holds its address
  Step& operator=(const Step&) = delete;

  /// The tensors must be on options.device. Throws what the body and graph::Step throw.
  Result operator()(const std::remove_cvref_t<Inputs>&... batch) {
    const PhaseScope phase("forward");
    fault_point();
    if (!graph_) return body_(batch...);
    const Batch given{batch...};
    if (!fits(given)) {
      reset();
      if (step_ && given[0].shape(0) < inputs_[0].shape(0)) return body_(batch...);
      for (std::size_t i = 0; i < given.size(); ++i) inputs_[i] = empty_like(given[i]);
      step_.emplace(graph::capture(device_, [this] { result_ = std::apply(body_, inputs_); }));
    }
    for (std::size_t i = 0; i < given.size(); ++i) raw::copy_(inputs_[i], given[i]);
    (*step_)();
    return result_;
  }

  /// Frees the memory of a captured step (graph::Step::reset), for a test between the epochs.
  void reset() {
    result_ = {};
    if (step_) step_->reset();
  }

 private:
  using Batch = std::array<Tensor, sizeof...(Inputs)>;

  bool fits(const Batch& batch) const {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!step_ || batch[i].shape() != inputs_[i].shape()) return false;
    }
    return true;
  }

  const bool graph_;
  const Device device_;
  const std::function<Result(Inputs...)> body_;
  Batch inputs_;
  Result result_;
  std::optional<graph::Step> step_;
};

namespace detail {
template <class F>
struct SignatureOf;
template <class Signature>
struct SignatureOf<std::function<Signature>> : std::type_identity<Signature> {};
}  // namespace detail

template <class Body>
Step(const Options&, Body)
    -> Step<typename detail::SignatureOf<decltype(std::function(std::declval<Body>()))>::type>;

}  // namespace weft::train
