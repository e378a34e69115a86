// Trains the transformer by several processes, each of which has some heads of every attention,
// some columns of every perceptron and some rows of the vocabulary:
// `./weft launch --nproc-per-node 2 char_transformer_tp`. With --tp below the number of processes
// there are several such groups, which share the batch.
#include <cstdint>
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
  std::string backend = "auto";
  std::int64_t tp = 0;
  bool sequence = false;
};

/// With `sequence`, what lies between attention and perceptron is cut along the text.
parallel::ParallelPlan plan_of(bool sequence) {
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

void char_transformer(const train::Options& options, Flags flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const std::int64_t tp_size = flags.tp == 0 ? group->size() : flags.tp;
  WEFT_CHECK(group->size() % tp_size == 0, InvalidArgument, "char_transformer_tp", "--tp ", tp_size,
             " does not divide ", group->size(), " ranks");
  const comm::Mesh mesh(group, {{"dp", group->size() / static_cast<int>(tp_size)},
                                {"tp", static_cast<int>(tp_size)}});
  const examples::Text text(examples::read_text(options.data));
  const examples::TextParts parts = examples::split(text, flags.net.context);

  flags.net.characters = text.characters();
  examples::CharTransformer net(flags.net);
  net.to(options.device, options.dtype);
  const auto tp = parallel::parallelize(net, *mesh["tp"], plan_of(flags.sequence));
  if (train::show_model(options, net, {1, flags.net.context}, DType::i64)) return;
  optim::AdamW adam(net.parameters(), {.lr = options.lr});

  // The ranks of a tensor parallel group have the same batches.
  train::Ranks ranks = examples::ranks(group);
  ranks.batches = mesh.size("dp");
  const auto sampler = std::make_shared<data::DistributedSampler>(
      parts.train.size(), data::DistributedSamplerOptions{.num_replicas = mesh.size("dp"),
                                                          .rank = mesh.coordinate("dp"),
                                                          .shuffle = options.shuffle});
  const auto loss_by = [&](auto& model) {
    return [&](const Tensor& x, const Tensor& y) {
      const Tensor logits = model(x);
      return parallel::cross_entropy(tp.ranks(), logits.flatten(0, 1), y.flatten(),
                                     text.characters());
    };
  };
  auto state = tp.state_of(adam);
  const auto traffic = [&] {
    comm::Traffic sum = tp.traffic();
    if (mesh.size("dp") > 1) sum += mesh["dp"]->traffic();
    return sum;
  };
  if (mesh.size("dp") == 1) {
    return examples::train_on_ranks(options, ranks, sampler, parts, net, loss_by(net), tp, adam,
                                    traffic, state);
  }
  parallel::DistributedDataParallel ddp(net, *mesh["dp"]);
  examples::train_on_ranks(options, ranks, sampler, parts, net, loss_by(ddp), tp, adam, traffic,
                           state, ddp);
}

int main(int argc, char** argv) {
  Flags flags;
  std::vector<train::Flag> all = examples::transformer_flags(flags.net);
  all.push_back(examples::backend_flag(flags.backend));
  all.push_back({"--tp", &flags.tp, "ranks that share each layer; without: all"});
  all.push_back({"--sequence-parallel", &flags.sequence,
                 "cuts along the text what lies between attention and perceptron"});
  return train::run(
      argc, argv,
      {.example = "char_transformer_tp",
       .family = "char_transformer",
       .description = "Trains a small transformer with tensor parallelism, see ./weft launch.",
       .unit = "pieces",
       .local_rank = examples::local_rank,
       .epochs = 10,
       .lr = 3e-3,
       .data = examples::docs_folder(),
       .data_help = "a text, or a folder of *.md and *.txt"},
      [&](const train::Options& options) { char_transformer(options, flags); }, all);
}
