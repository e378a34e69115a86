// Trains the transformer by several processes, each of which keeps a part of every parameter:
// `./weft launch --nproc-per-node 2 char_transformer_fsdp`. With another --strategy it keeps more.
#include <functional>
#include <optional>
#include <string>

#include "weft/examples/char_transformer.h"
#include "weft/examples/ranks.h"
#include "weft/examples/text.h"
#include "weft/examples/transformer_program.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct Flags {
  examples::TransformerOptions net;
  std::string backend = "auto", strategy = "fsdp";
};

/// `saved` and `state`: model and optimiser as one process has them. `traffic`: so far.
template <class Model, class Saved, class State, class... Engine>
void train_and_test(const train::Options& options, const train::Ranks& ranks,
                    const examples::TextParts& text, examples::CharTransformer& net, Model& model,
                    Saved& saved, optim::AdamW& adam, const std::function<comm::Traffic()>& traffic,
                    State& state, Engine&... engine) {
  const auto sampler = examples::distributed_sampler(text.train.size(), options, ranks);
  data::DataLoader loader(text.train, options.loader(sampler));
  train::Step step(options, [&](const Tensor& x, const Tensor& y) {
    adam.zero_grad();
    const Tensor loss = examples::next_character_loss(model, x, y);
    loss.backward();
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
  recorder.note({{"bytes_sent", static_cast<double>(traffic().bytes_sent)}});
  recorder.note(examples::memory(ranks, options.device));

  const NoGrad no_grad;
  net.eval();
  // All ranks take all batches: each has a part of the parameters of every call. Larger ones than
  // those of the training might not fit.
  recorder.finish(saved, "bits_per_character",
                  examples::bits_per_character(net, text.test, options, options.batch_size, ranks));
}

void char_transformer(const train::Options& options, Flags flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  const examples::Text text(examples::read_text(options.data));
  const examples::TextParts parts = examples::split(text, flags.net.context);
  const bool ddp = flags.strategy == "ddp";
  parallel::FullyShardOptions how;
  if (flags.strategy == "zero2") how.reshard_after_forward = false;

  flags.net.characters = text.characters();
  flags.net.made = [&](nn::ModuleBase& block) {
    block.to(options.device, options.dtype);
    if (!ddp) parallel::fully_shard(block, group, how);
  };
  examples::CharTransformer net(flags.net);
  for (nn::ModuleBase part : {nn::ModuleBase(net.characters), nn::ModuleBase(net.positions),
                              nn::ModuleBase(net.norm), nn::ModuleBase(net.head)}) {
    part.to(options.device, options.dtype);
  }
  std::optional<parallel::FullySharded> sharded;
  if (!ddp) sharded = parallel::fully_shard(net, group, how);
  if (train::show_model(options, net, {1, flags.net.context}, DType::i64)) return;

  optim::AdamW adam(net.parameters(), {.lr = options.lr});
  if (ddp) {
    parallel::DistributedDataParallel model(net, group);
    const auto traffic = [&] { return group->traffic(); };
    return train_and_test(options, ranks, parts, net, model, net, adam, traffic, adam, model);
  }
  auto state = sharded->state_of(adam);
  const auto traffic = [&] { return sharded->traffic(); };
  train_and_test(options, ranks, parts, net, net, *sharded, adam, traffic, state);
}

int main(int argc, char** argv) {
  Flags flags;
  std::vector<train::Flag> all = examples::transformer_flags(flags.net);
  all.push_back(examples::backend_flag(flags.backend));
  all.push_back({"--strategy",
                 &flags.strategy,
                 "what each rank keeps a part of; fsdp: parameters, gradients and the optimiser's "
                 "state; zero2: the last two; ddp: nothing",
                 {"fsdp", "zero2", "ddp"}});
  return train::run(
      argc, argv,
      {.example = "char_transformer_fsdp",
       .description =
           "Trains a small transformer with fully sharded parameters, see ./weft launch.",
       .unit = "pieces",
       .local_rank = examples::local_rank,
       .epochs = 10,
       .lr = 3e-3,
       .data = examples::docs_folder(),
       .data_help = "a text, or a folder of *.md and *.txt"},
      [&](const train::Options& options) { char_transformer(options, flags); }, all);
}
