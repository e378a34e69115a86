// Trains a small net by several processes with one mistake, or none: what ./weft prove must name.
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "weft/examples/pipeline_ranks.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct Net : nn::Module<Net> {
  explicit Net(bool norm) {
    if (norm) body.append(nn::BatchNorm1d(16));
    body.append(nn::ReLU());
    body.append(nn::Dropout(0.25));
  }
  nn::Sequential body = child("body", nn::Sequential{nn::Linear(8, 16)});
  nn::Linear head = child("head", nn::Linear(16, 3));
  Tensor forward(const Tensor& x) { return head(body(x)); }
};

// Samples with noise that is drawn while a batch is loaded, as by transforms.
struct Samples {
  data::TensorDataset<2> kept;
  bool noisy = false;
  std::int64_t size() const { return kept.size(); }
  auto get_batch(std::span<const std::int64_t> indices) const {
    auto batch = kept.get_batch(indices);
    if (noisy) raw::add_scaled_(batch[0], 1, randn(batch[0].shape(), batch[0].dtype()));
    return batch;
  }
};

// The mean over the ranks of a third of each gradient, added to that of the rest: the same addends
// in another order.
parallel::Reduction in_two_parts(comm::ProcessGroup& group, const Tensor& gradients) {
  raw::mul_(gradients, 1.0 / group.size());
  const Tensor third = raw::clone(gradients);
  raw::mul_(third, 1.0 / 3);
  raw::add_scaled_(gradients, -1, third);
  const comm::Work first = group.all_reduce(third);
  return {group.all_reduce(gradients), [=] {
            first.wait();
            raw::add_scaled_(gradients, 1, third);
          }};
}

// Forgets the last row of a batch, which is a micro-batch of its own; or what the second
// micro-batch adds to the gradients; or makes all gradients half as large again.
struct WrongPipeline {
  parallel::Pipeline& pipe;
  const std::string& mistake;
  Tensor step(std::initializer_list<Tensor> x, std::initializer_list<Tensor> target,
              const parallel::PipelineLoss& loss) const {
    const std::int64_t rows = x.begin()->shape(0) - (mistake == "lost_micro_batch" ? 1 : 0);
    const auto wrong = [&, call = 0](auto outputs, auto targets) mutable {
      const Tensor mean = loss(outputs, targets);
      if (mistake == "pipeline_mean") return mean * 1.5;
      return mistake == "unadded_micro_batch" && call++ == 1 ? mean * 0.0 : mean;
    };
    return pipe.step({x.begin()->narrow(0, 0, rows)}, {target.begin()->narrow(0, 0, rows)}, wrong);
  }
};

// The ranks are the stages of a pipeline.
void train_pipeline(const train::Options& options, const std::string& mistake) {
  const examples::PipelineRanks ranks(comm::init_process_group(), 1);
  // No loss is computed twice.
  const examples::PipelineFlags flags{.chunks = options.batch_size, .checkpoint = "never"};
  Net net(false);
  net.to(options.device, options.dtype);
  nn::Sequential layers{net.body, net.head};
  parallel::Pipeline pipe = examples::pipeline(layers, zeros({1, 8}, options.dtype), ranks, flags);
  WrongPipeline wrong{pipe, mistake};
  optim::SGD sgd(net.parameters(), {.lr = options.lr});
  Generator random(7);
  const Tensor x = randn({40, 8}, options.dtype, &random);
  const data::TensorDataset samples(x, randint(0, 3, {40}, {}, &random));
  const auto sampler = ranks.sampler(40, options);
  data::DataLoader loader(samples, options.loader(sampler));
  train::Recorder recorder(options, ranks.for_recorder());
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    const auto loss = [](const Tensor& logits, const Tensor& labels) {
      return nn::cross_entropy(logits, labels);
    };
    sgd.zero_grad();
    const Tensor mean =
        mistake == "pipeline"
            ? examples::pipeline_step(options, flags, pipe, layers, x, label, loss)
            : examples::pipeline_step(options, flags, wrong, layers, x, label, loss);
    sgd.step();
    return mean;
  });
  examples::WholeModel whole(net, pipe);
  examples::WholeOptimizer whole_sgd(sgd, pipe);
  recorder.resume(whole, loader, whole_sgd);
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
  }
  recorder.finish(net);
}

void train_net(const train::Options& options, const std::string& mistake) {
  if (mistake.starts_with("pipeline") || mistake.ends_with("_micro_batch")) {
    return train_pipeline(options, mistake);
  }
  const auto group = comm::init_process_group();
  const train::Ranks ranks = examples::ranks(group);
  if (mistake == "no_broadcast") manual_seed(static_cast<std::uint64_t>(ranks.rank));
  Net net(mistake == "local_batch_norm");
  net.to(options.device, options.dtype);
  if (mistake != "equal_draws") manual_seed(static_cast<std::uint64_t>(ranks.rank) + 1);

  const bool horovod =
      mistake == "horovod" || mistake == "not_in_horovod" || mistake == "no_broadcast";
  const bool halves = mistake == "outside_module" || mistake == "not_in_horovod";
  std::optional<parallel::DistributedDataParallel<Net>> whole;
  std::optional<parallel::DistributedDataParallel<nn::Sequential>> body;
  if (mistake == "outside_module") body.emplace(net.body, group);
  parallel::DistributedDataParallelOptions engine;
  if (mistake == "reduction_order") engine.comm_hook = in_two_parts;
  // This is no mistake: the division by the number of ranks is in the loss, so that all of backward
  // rounds otherwise.
  const bool divided_loss = mistake == "divided_loss";
  if (divided_loss) {
    engine.comm_hook = [](comm::ProcessGroup& group, const Tensor& gradients) {
      return parallel::Reduction{group.all_reduce(gradients), {}};
    };
  }
  if (!horovod && !body) whole.emplace(net, group, engine);

  const double lr = mistake == "learning_rate" ? options.lr * (ranks.rank + 1) : options.lr;
  const double weight_decay = mistake == "weight_decay" ? 0.01 * ranks.rank : 0;
  std::unique_ptr<optim::Optimizer> optimizer, of_head;
  if (horovod) {
    const parallel::Horovod hvd(group);
    if (mistake != "no_broadcast") hvd.broadcast_parameters(net.state_dict());
    optimizer = std::make_unique<parallel::DistributedOptimizer<optim::SGD>>(
        hvd, optim::SGD(halves ? net.body.parameters() : net.parameters(), {.lr = lr}),
        net.named_parameters());
    if (halves)
      of_head = std::make_unique<optim::SGD>(net.head.parameters(), optim::SGDOptions{.lr = lr});
  } else {
    optimizer = std::make_unique<optim::SGD>(
        net.parameters(), optim::SGDOptions{.lr = lr, .weight_decay = weight_decay});
  }

  // 25 samples do not divide among two ranks.
  const bool odd = mistake == "padded_samples" || mistake == "mean_of_means";
  const std::int64_t size = odd ? 25 : 40;
  Generator random(7);
  const Tensor x = randn({size, 8}, options.dtype, &random);
  const Samples samples{data::TensorDataset(x, randint(0, 3, {size}, {}, &random)),
                        mistake == "random_samples"};
  const auto sampler = std::make_shared<data::DistributedSampler>(
      size, data::DistributedSamplerOptions{
                .num_replicas = ranks.size,
                .rank = mistake == "sampler_rank" ? 0 : ranks.rank,
                .seed = mistake == "sampler_seed" ? static_cast<std::uint64_t>(ranks.rank) : 0,
                .pad = mistake != "mean_of_means"});
  data::DataLoader loader(samples, options.loader(sampler));
  train::Recorder recorder(options, ranks);
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    if (mistake == "seeded_draws") manual_seed(static_cast<std::uint64_t>(ranks.rank));
    optimizer->zero_grad();
    if (of_head) of_head->zero_grad();
    const bool in_f32 = ranks.size > 1 && options.dtype == DType::f32;
    const Tensor input = in_f32 && mistake == "only_f32_input" ? x * 1.0001 : x;
    Tensor loss = nn::cross_entropy(body    ? net.head((*body)(input))
                                    : whole ? (*whole)(input)
                                            : net(input),
                                    label);
    if (in_f32 && mistake == "only_f32") loss = loss * 1.5;
    if (in_f32 && mistake == "only_f32_slightly") loss = loss * 1.0001;
    if (mistake == "no_sync" && recorder.steps() == 3) {
      const auto local = whole->no_sync();
      loss.backward();
    } else {
      (divided_loss ? loss * (1.0 / ranks.size) : loss).backward();
    }
    optimizer->step();
    if (of_head) of_head->step();
    return loss;
  });
  if (whole) {
    recorder.resume(net, loader, *optimizer, *whole);
  } else {
    recorder.resume(net, loader, *optimizer);
  }
  while (recorder.next_epoch()) {
    sampler->set_epoch(recorder.epoch());
    for (auto& [x, label] : recorder.batches(loader)) {
      const Tensor loss = step(x, label);
      if (mistake == "uses_result" && std::isnan(loss.item<double>())) return;
      recorder.step(loss);
    }
  }
  recorder.finish(net);
}

int main(int argc, char** argv) {
  std::string mistake = "none";
  return train::run(argc, argv,
                    {.example = "mistakes",
                     .description = "Trains a small net by several processes with a mistake.",
                     .local_rank = examples::local_rank,
                     .epochs = 2,
                     .batch_size = 5,
                     .lr = 0.1,
                     .workers = 0},
                    [&](const train::Options& options) { train_net(options, mistake); },
                    {{"--mistake",
                      &mistake,
                      "which",
                      {"none",
                       "horovod",
                       "pipeline",
                       "learning_rate",
                       "weight_decay",
                       "outside_module",
                       "no_sync",
                       "not_in_horovod",
                       "no_broadcast",
                       "sampler_rank",
                       "sampler_seed",
                       "mean_of_means",
                       "seeded_draws",
                       "equal_draws",
                       "random_samples",
                       "padded_samples",
                       "local_batch_norm",
                       "only_f32",
                       "uses_result",
                       "lost_micro_batch",
                       "reduction_order",
                       "only_f32_slightly",
                       "only_f32_input",
                       "divided_loss",
                       "unadded_micro_batch",
                       "pipeline_mean"}}});
}
