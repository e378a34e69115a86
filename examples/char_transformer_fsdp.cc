// Trains the transformer by several processes, each of which keeps a part of every parameter:
// `./weft launch --nproc-per-node 2 char_transformer_fsdp`. With another --strategy it keeps more,
// with --replicas several groups of processes keep copies.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  std::int64_t replicas = 1;
};

/// The ranks among which parameters are cut. If several such groups keep copies, also sets
/// how.replicas: the ranks that keep the same parts as this one.
std::shared_ptr<comm::ProcessGroup> group_of_parts(const std::shared_ptr<comm::ProcessGroup>& group,
                                                   std::int64_t replicas,
                                                   parallel::FullyShardOptions& how) {
  WEFT_CHECK(group->size() % replicas == 0, InvalidArgument, "char_transformer_fsdp", "--replicas ",
             replicas, " does not divide ", group->size(), " ranks");
  if (replicas == 1) return group;
  const int copies = static_cast<int>(replicas);
  const comm::Mesh mesh(group, {{"replica", copies}, {"shard", group->size() / copies}});
  how.replicas = mesh["replica"];
  return mesh["shard"];
}

void char_transformer(const train::Options& options, Flags flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const train::Ranks ranks = examples::ranks(group);
  const examples::Text text(examples::read_text(options.data));
  const examples::TextParts parts = examples::split(text, flags.net.context);
  const bool cut = flags.strategy == "fsdp" || flags.strategy == "zero2";
  WEFT_CHECK(cut || flags.replicas == 1, InvalidArgument, "char_transformer_fsdp",
             "--replicas is for parameters in parts, --strategy ", flags.strategy, " has none");
  parallel::FullyShardOptions how;
  if (flags.strategy == "zero2") how.reshard_after_forward = false;
  // The one process of ./weft prove stands for the ranks of all groups.
  const auto shards = group_of_parts(group, options.alone() ? 1 : flags.replicas, how);

  flags.net.characters = text.characters();
  flags.net.made = [&](nn::ModuleBase& block) {
    block.to(options.device, options.dtype);
    if (cut) parallel::fully_shard(block, shards, how);
  };
  examples::CharTransformer net(flags.net);
  for (nn::ModuleBase part : {nn::ModuleBase(net.characters), nn::ModuleBase(net.positions),
                              nn::ModuleBase(net.norm), nn::ModuleBase(net.head)}) {
    part.to(options.device, options.dtype);
  }
  std::optional<parallel::FullySharded> sharded;
  if (cut) sharded = parallel::fully_shard(net, shards, how);
  if (train::show_model(options, net, {1, flags.net.context}, DType::i64)) return;

  optim::AdamW adam(net.parameters(), {.lr = options.lr});
  const auto sampler = examples::distributed_sampler(parts.train.size(), options, ranks);
  if (!cut) {
    parallel::DistributedDataParallel model(net, group);
    const auto loss_of = [&](const Tensor& x, const Tensor& y) {
      return examples::next_character_loss(model, x, y);
    };
    const auto traffic = [&] { return group->traffic(); };
    const auto train = [&](auto& optimizer) {
      examples::train_on_ranks(options, ranks, sampler, parts, net, examples::by_backward(loss_of),
                               loss_of, net, optimizer, traffic, optimizer, model);
    };
    if (flags.strategy == "ddp") return train(adam);
    parallel::ZeroRedundancyOptimizer zero(std::move(adam), group);
    return train(zero);
  }
  const auto loss_of = [&](const Tensor& x, const Tensor& y) {
    return examples::next_character_loss(net, x, y);
  };
  auto state = sharded->state_of(adam);
  const auto traffic = [&] { return sharded->traffic(); };
  examples::train_on_ranks(options, ranks, sampler, parts, net, examples::by_backward(loss_of),
                           loss_of, *sharded, adam, traffic, state);
}

int main(int argc, char** argv) {
  Flags flags;
  std::vector<train::Flag> all = examples::transformer_flags(flags.net);
  all.push_back(examples::backend_flag(flags.backend));
  all.push_back(examples::strategy_flag(flags.strategy));
  all.push_back({"--replicas", &flags.replicas,
                 "groups of ranks that keep a copy each, cut among their ranks; with --strategy "
                 "fsdp or zero2"});
  return train::run(
      argc, argv,
      examples::transformer_defaults(
          "char_transformer_fsdp",
          "Trains a small transformer with fully sharded parameters, see ./weft launch.",
          examples::local_rank),
      [&](const train::Options& options) { char_transformer(options, flags); }, all);
}
