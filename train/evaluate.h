// How good a classifier is on a test set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/tensor/ops.h"

namespace weft::train {

/// For each k the share of the loader's samples whose label is among the k highest logits; a NaN
/// among the logits counts as higher than the label's. model: x [N,...] -> logits [N,C], run in
/// evaluation mode without recording, and then put back into the mode it was in. The loader's
/// batches are {x, label [N] i64}. An empty loader gives zeros.
template <class Model, class Loader>
std::vector<double> top_accuracy(Model& model, Loader& loader, std::initializer_list<int> ks) {
  const NoGrad no_grad;
  const bool training = model.is_training();
  model.eval();
  std::vector<double> correct(ks.size());
  std::int64_t count = 0;
  for (auto& [x, label] : loader) {
    const Tensor logits = model(x);
    const Tensor own = raw::gather(logits, 1, raw::reshape(label, {-1, 1}));
    // How many logits of each row are not above the label's.
    for (const auto below : raw::sum(raw::le(logits, own), {1}).to_vector<std::int64_t>()) {
      for (std::size_t i = 0; i < ks.size(); ++i)
        correct[i] += logits.shape(1) - below < ks.begin()[i];
    }
    count += x.shape(0);
  }
  model.train(training);
  for (double& share : correct) share /= static_cast<double>(std::max<std::int64_t>(count, 1));
  return correct;
}

/// top_accuracy for k = 1.
template <class Model, class Loader>
double accuracy(Model& model, Loader& loader) {
  return top_accuracy(model, loader, {1})[0];
}

}  // namespace weft::train
