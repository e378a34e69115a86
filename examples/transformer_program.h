// What the programs that train a transformer have in common.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/examples/char_transformer.h"
#include "weft/examples/ranks.h"
#include "weft/examples/text.h"
#include "weft/train/train.h"

namespace weft::examples {

inline std::vector<train::Flag> transformer_flags(TransformerOptions& net) {
  return {{"--context", &net.context, "characters it looks back at"},
          {"--width", &net.width, "numbers for each character, a multiple of --heads"},
          {"--heads", &net.heads, "of each layer's attention"},
          {"--layers", &net.layers, "blocks of attention and a perceptron"}};
}

inline train::Options transformer_defaults(const std::string& example,
                                           const std::string& description,
                                           std::function<int()> local_rank = {}) {
  return {.example = example,
          .family = "char_transformer",
          .description = description,
          .unit = "pieces",
          .local_rank = std::move(local_rank),
          .epochs = 10,
          .lr = 3e-3,
          .data = docs_folder(),
          .data_help = "a text, or a folder of *.md and *.txt"};
}

/// The mean cross-entropy over all characters of `pieces`, in bits. loss_of(x, y): of a batch.
template <class LossOf>
double bits_per_character(const LossOf& loss_of, const Windows& pieces,
                          const train::Options& options, std::int64_t batch_size = 100,
                          const train::Ranks& ranks = {}) {
  auto test =
      train::test_loader(pieces, options, {.batch_size = batch_size, .device = options.device});
  double nats = 0;
  for (auto& [x, y] : test) {
    // A signal to one rank ends all of them before the same batch.
    if (ranks.sum({train::interrupted() ? 1.0 : 0.0})[0] > 0) throw train::Interrupted();
    nats += loss_of(x, y).template item<double>() * x.shape(0);
  }
  return nats / test.dataset().size() / std::log(2.0);
}

/// Where tensor parallelism cuts a CharTransformer; with `sequence` also, along the text, what lies
/// between attention and perceptron.
inline parallel::ParallelPlan tensor_plan(bool sequence) {
  using namespace parallel;
  if (!sequence) {
    return {{"characters", VocabParallel{}},
            {"blocks.*.attention", HeadParallel{}},
            {"blocks.*.mlp.0", ColwiseParallel{}},
            {"blocks.*.mlp.2", RowwiseParallel{}},
            {"head", VocabParallel{}}};
  }
  const Layout part = Shard{1};  // of [N,L,width]
  return {{"characters", VocabParallel{.output = part}},
          {"positions", VocabParallel{.output = Shard{0}}},  // [L,width]
          {"blocks.*.norm*", SequenceParallel{}},
          {"blocks.*.attention", HeadParallel{.input = part, .output = part}},
          {"blocks.*.mlp.0", ColwiseParallel{.input = part}},
          {"blocks.*.mlp.2", RowwiseParallel{.output = part}},
          {"norm", SequenceParallel{}},
          {"head", VocabParallel{.input = part}}};
}

/// gradients_of(x, y) for train_on_ranks(): a backward of the loss.
template <class LossOf>
auto by_backward(const LossOf& loss_of) {
  return [&loss_of](const Tensor& x, const Tensor& y) {
    const Tensor loss = loss_of(x, y);
    loss.backward();
    return loss;
  };
}

/// Trains `net` with a sampler's pieces and tests it. gradients_of(x, y) computes the gradients of
/// a batch and returns its loss, loss_of(x, y) only the loss. `saved` and `state`: model and
/// optimiser as one process has them. `traffic`: so far.
template <class Net, class GradientsOf, class LossOf, class Saved, class State, class... Engine>
void train_on_ranks(const train::Options& options, const train::Ranks& ranks,
                    const std::shared_ptr<data::DistributedSampler>& sampler, const TextParts& text,
                    Net& net, const GradientsOf& gradients_of, const LossOf& loss_of, Saved& saved,
                    optim::AdamW& adam, const std::function<comm::Traffic()>& traffic, State& state,
                    Engine&... engine) {
  data::DataLoader loader(text.train, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x, const Tensor& y) {
    adam.zero_grad();
    const Tensor loss = gradients_of(x, y);
    adam.step();
    return loss;
  });

  train::Recorder recorder(options, ranks);
  recorder.resume(saved, loader, state, engine...);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, y] : recorder.batches(loader)) recorder.step(step(x, y));
    recorder.save(saved, loader, state, engine...);
  }
  if (recorder.interrupted()) return;
  recorder.note(costs(traffic()));  // before the test, whose batches --limit-steps limits, too

  const NoGrad no_grad;
  net.eval();
  // All ranks take all batches: each has a part of the parameters of every call. Larger ones than
  // those of the training might not fit.
  recorder.finish(saved, "bits_per_character",
                  bits_per_character(loss_of, text.test, options, options.batch_size, ranks));
}

}  // namespace weft::examples
