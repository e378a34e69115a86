// A program's training step: captured once and replayed on CUDA where that is possible, else run
// as it is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/tree.h"
#include "weft/train/options.h"
#include "weft/train/proof.h"

namespace weft::train {

/// Whether a step is captured.
class CaptureChoice {
 public:
  explicit CaptureChoice(const Options& options);

  /// Whether it is not decided yet.
  bool is_open() const { return !captures_; }
  bool captures() const { return *captures_; }
  /// Runs the body. The second batch of the largest size decides: the first one has chosen the
  /// kernels.
  void try_out(std::int64_t batch_size, const std::function<void()>& body);

  /// Must be called by a step that may be captured.
  void note_run() const { findings_->graph |= thread_state().capture != nullptr; }

 private:
  std::optional<bool> captures_;
  std::shared_ptr<Findings> findings_;
  std::int64_t largest_ = -1;
};

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
/// If the body is captured (core/runtime/capture.h says what it must not do), each call copies the
/// batch into the tensors that the body reads. The values are those of the body, to the bit if
/// options.deterministic is set. A call's result is then overwritten by the next call: the Recorder
/// copies losses, and reads them on the host many at a time. The step that is captured is that of
/// the largest batch so far, in dimension 0; a smaller one, an epoch's last, runs as it is. Before
/// it the captured step gives its memory back, and is captured again when it is next called, as
/// it is for a batch of other dtypes.
///
/// options.graph says whether to capture. Where it is empty, a step on CUDA is captured if it can
/// be, unless options.trace asks for its spans. Then the first two calls with the largest batch run
/// the body as it is. If the second one meets something that cannot be captured, a line says what,
/// and no call is captured.
template <class Signature>
class Step;

template <class Result, class... Inputs>
class Step<Result(Inputs...)> {
 public:
  Step(const Options& options, std::function<Result(Inputs...)> body)
      : choice_(options),
        device_(options.device),
        proof_(options.findings->proof),
        body_(std::move(body)) {}
  Step(const Step&) = delete;  // the captured step holds its address
  Step& operator=(const Step&) = delete;

  /// The tensors must be on options.device. Throws what the body throws and, if the step is to be
  /// captured, what graph::Step throws.
  Result operator()(const std::remove_cvref_t<Inputs>&... batch) {
    const PhaseScope phase("forward");
    fault_point();
    const Batch given{batch...};
    if (proof_) return prove(given);
    if (choice_.is_open()) {
      Result result;
      choice_.try_out(given[0].shape(0), [&] { result = body_(batch...); });
      return result;
    }
    if (!choice_.captures()) return body_(batch...);
    if (!fits(given)) {
      reset();
      if (step_ && given[0].shape(0) < inputs_[0].shape(0)) return body_(batch...);
      for (std::size_t i = 0; i < given.size(); ++i) inputs_[i] = empty_like(given[i]);
      step_.emplace(graph::capture(device_, [this] {
        result_ = std::apply(body_, inputs_);
        choice_.note_run();
      }));
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
      if (!step_ || batch[i].shape() != inputs_[i].shape() ||
          batch[i].dtype() != inputs_[i].dtype()) {
        return false;
      }
    }
    return true;
  }

  /// Under WEFT_PROVE: the proof runs the body, or keeps the batch and returns undefined tensors.
  Result prove(const Batch& given) {
    Result result{};
    proof_->run(given, [&](std::span<const Tensor> inputs) {
      Batch batch;
      std::ranges::copy(inputs, batch.begin());
      result = std::apply(body_, batch);
      std::vector<Tensor> tensors;
      for_each_tensor(result, [&](const Tensor& x) { tensors.push_back(x); });
      return tensors;
    });
    return result;
  }

  CaptureChoice choice_;
  const Device device_;
  const std::shared_ptr<Proof> proof_;
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
