// Trains the two-layer classifier by several processes that go on when some of them fail:
// `./weft launch --nproc-per-node 3 --min-nproc 1 --max-restarts 9 mlp_elastic`.
#include "weft/parallel/elastic.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/examples/mlp.h"
#include "weft/examples/ranks.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

/// SGD, or Adam of whose state each rank has two parts of n.
std::unique_ptr<optim::Optimizer> optimizer_of(const nn::Sequential& model, double lr, bool zero) {
  if (!zero) return std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = lr});
  using Parts = parallel::ZeroRedundancyOptimizer<optim::Adam>;
  return std::make_unique<Parts>(optim::Adam(model.parameters(), {.lr = lr}),
                                 parallel::ZeroOptions{.mirror = true});
}

/// What --resume names, if it is there: "latest" may not be yet.
std::optional<train::Checkpoint> checkpoint_of(const train::Options& options,
                                               const std::string& latest) {
  if (options.resume.empty()) return std::nullopt;
  const std::string path = options.resume == "latest" ? latest : options.resume;
  if (options.resume == "latest" && !std::filesystem::exists(path)) return std::nullopt;
  train::Checkpoint checkpoint = train::load_checkpoint(path, options.map_location);
  WEFT_CHECK(checkpoint.notes["example"] == "mlp_elastic" && checkpoint.parts.size() == 1,
             InvalidArgument, "mlp_elastic", path, ": it is no checkpoint of mlp_elastic");
  return checkpoint;
}

void mlp(const train::Options& options, const examples::DdpFlags& flags, bool zero) {
  const comm::ElasticRun run = comm::elastic_run({.backend = flags.backend});
  nn::Sequential model = examples::mlp();
  model.to(options.device, options.dtype);
  if (train::show_model(options, model, {1, 1, 28, 28})) return;
  WEFT_CHECK(options.checkpoint_every == 0, InvalidArgument, "mlp_elastic",
             "keeps one checkpoint, written between two epochs");
  const auto optimizer = optimizer_of(model, options.lr, zero);
  const data::Mnist images(options.data, {.dtype = options.dtype});
  const std::string& out = options.out;
  WEFT_CHECK(!make_folders(out), Io, "mlp_elastic", out,
             ": cannot make this folder; choose another with --out");
  const std::string latest = out + "/checkpoint.safetensors";
  std::optional<train::Checkpoint> checkpoint = checkpoint_of(options, latest);
  if (checkpoint) {
    model.load_state_dict(checkpoint->model);
    optimizer->load_state_dict(checkpoint->parts[0]);
  } else {
    train::load_weights(options, model);
  }
  const auto save = [&](const optim::NamedTensors& state, const std::string& counters) {
    train::save_checkpoint(latest, {.model = model.state_dict(),
                                    .parts = {state},
                                    .notes = {{"example", "mlp_elastic"}, {"elastic", counters}}});
  };
  parallel::Elastic elastic(model, *optimizer,
                            {.ddp = examples::ddp_options(flags),
                             .save = save,
                             .resume = checkpoint ? checkpoint->notes["elastic"] : "",
                             .stop = train::interrupted,
                             .record = out + "/membership.json",
                             .run = run});
  const auto done = [&] {
    return elastic.stopped() || (options.limit_steps > 0 && elastic.steps() >= options.limit_steps);
  };
  while (!done() && elastic.next_epoch(options.epochs)) {
    const auto sampler = examples::distributed_sampler(
        images.size(), options, {.rank = elastic.share(), .size = elastic.shares()});
    sampler->set_epoch(elastic.epoch());
    data::DataLoader loader(images, options.loader(sampler));
    std::int64_t batch = 0;
    // If this rank has come back: the others wait for it in their next step.
    std::optional<BusyScope> passes_over;
    if (elastic.steps_in_epoch() > 0) passes_over.emplace("pass over batches");
    for (auto& [x, label] : loader) {
      if (batch++ < elastic.steps_in_epoch()) continue;  // before this rank came back
      passes_over.reset();
      elastic.step([&] {
        optimizer->zero_grad();
        const Tensor loss = nn::cross_entropy(elastic(x), label);
        loss.backward();
        return loss;
      });
      if (done()) break;
    }
  }
  elastic.finish([&] {
    io::save_safetensors(out + "/model.safetensors", model.state_dict(), {{"format", "pt"}});
    auto test =
        train::test_loader(data::Mnist(options.data, {.train = false, .dtype = options.dtype}),
                           options, {.batch_size = 500, .device = options.device});
    std::printf("accuracy %.4f after %lld steps: %s/model.safetensors\n",
                train::accuracy(model, test), static_cast<long long>(elastic.steps()), out.c_str());
  });
}

int main(int argc, char** argv) {
  examples::DdpFlags flags;
  bool zero = false;
  std::vector<train::Flag> all_flags = examples::ddp_flags(flags);
  all_flags.push_back({"--zero", &zero,
                       "Adam in place of SGD, each rank with two parts of its state: its own, and "
                       "a copy of another one's"});
  return train::run(
      argc, argv,
      {.example = "mlp_elastic",
       .description = "Trains a two-layer perceptron by several processes that go on when some of "
                      "them fail, see ./weft launch --min-nproc.",
       .local_rank = examples::local_rank,
       .batch_size = 64,
       .lr = 0.1},
      [&](const train::Options& options) { mlp(options, flags, zero); }, all_flags);
}
