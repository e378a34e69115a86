// The accuracy of a classifier on a test set.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/data/dataloader.h"
#include "weft/data/subset.h"
#include "weft/nn/evaluation.h"
#include "weft/nn/module.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/train/interrupt.h"
#include "weft/train/options.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// The loader of a test set. With options.limit_steps it has only the first batches, as many as
/// that number of steps of all ranks takes; the log then says so. Throws InvalidArgument for a
/// batch size below 1, and what the loader throws.
template <data::Dataset Set>
data::DataLoader<data::Subset<Set>> test_loader(Set set, const Options& options,
                                                const data::DataLoaderOptions& loader,
                                                const Ranks& ranks = {}) {
  WEFT_CHECK(loader.batch_size >= 1, InvalidArgument, "test_loader", "batch_size is ",
             loader.batch_size, ", needs at least 1");
  const std::int64_t size = set.size(), batches = ceil_div(size, loader.batch_size);
  const std::int64_t limit = options.limit_steps * ranks.batches_per_step();
  const bool limited = limit > 0 && limit < batches;
  std::vector<std::int64_t> first(
      static_cast<std::size_t>(limited ? limit * loader.batch_size : size));
  std::iota(first.begin(), first.end(), 0);
  if (limited && ranks.rank == 0) {
    log_info(weft::detail::concat("tests take ", first.size(), " of the ", size, " ", options.unit,
                                  " (--limit-steps ", options.limit_steps, ")"));
  }
  return data::DataLoader(data::Subset(std::move(set), std::move(first)), loader);
}

/// For each k the share of the loader's samples whose label is among the k highest logits. Of equal
/// logits the first counts as higher, as for argmax; a NaN counts as higher than the label's logit.
/// model: x [N,...] -> logits [N,C], a module or a parallel::Pipeline; it runs in evaluation mode
/// without recording, and then each module below it, or in its stages, gets its own mode back. The
/// loader's batches are {x, label [N] i64}. An empty loader gives zeros.
/// With several ranks, whose loaders must give the same batches, each tests every size-th batch:
/// all ranks get the share of all samples, and no sample counts twice. If a signal comes to any
/// rank within an InterruptScope (train/interrupt.h), all ranks throw Interrupted; those without
/// the signal first test their batches.
template <class Model, class Loader>
std::vector<double> top_accuracy(Model& model, Loader& loader, std::initializer_list<int> ks,
                                 const Ranks& ranks = {}) {
  const PhaseScope phase("evaluation");
  const NoGrad no_grad;
  const auto evaluation = [&] {
    if constexpr (std::derived_from<Model, nn::ModuleBase>) {
      return nn::EvaluationScope(model);
    } else {  // a Pipeline, of which other ranks may have other stages
      std::vector<nn::ModuleBase> here;
      for (std::size_t s = 0; s < model.stages().size(); ++s) {
        if (model.is_here(s)) here.push_back(model.stages()[s]);
      }
      return nn::EvaluationScope(std::move(here));
    }
  }();
  std::vector<double> correct(ks.size() + 1);  // and at the end the number of samples
  int batch = 0;
  std::optional<BusyScope> alone("evaluation");
  for (auto& [x, label] : loader) {
    if (interrupted()) break;
    if (batch++ % ranks.size != ranks.rank) continue;
    const Tensor logits = model(x);
    const Device device = logits.device();  // for a model in parts, the last part's device
    const Tensor target = raw::to(raw::reshape(label, {-1, 1}), device);
    const Tensor own = raw::gather(logits, 1, target);
    const Tensor classes = raw::to(arange(logits.shape(1)), device);
    const Tensor before = raw::lt(classes, target);
    // The number of logits in each row that do not rank above the label's, itself included.
    const Tensor rest = raw::where(before, raw::lt(logits, own), raw::le(logits, own));
    for (const auto below : raw::sum(rest, {1}).to_vector<std::int64_t>()) {
      for (std::size_t i = 0; i < ks.size(); ++i)
        correct[i] += logits.shape(1) - below < ks.begin()[i];
    }
    correct.back() += static_cast<double>(x.shape(0));
  }
  alone.reset();
  // Other ranks may already wait in the sum, which would fail if this rank did not take part.
  correct.push_back(interrupted() ? 1 : 0);
  correct = ranks.sum(std::move(correct));
  if (correct.back() > 0) throw Interrupted();
  correct.pop_back();
  const double count = std::max(correct.back(), 1.0);
  correct.pop_back();
  for (double& share : correct) share /= count;
  return correct;
}

/// top_accuracy for k = 1.
template <class Model, class Loader>
double accuracy(Model& model, Loader& loader, const Ranks& ranks = {}) {
  return top_accuracy(model, loader, {1}, ranks)[0];
}

}  // namespace weft::train
