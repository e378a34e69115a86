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
  const auto tp = parallel::parallelize(net, *mesh["tp"], examples::tensor_plan(flags.sequence));
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
    const auto loss_of = loss_by(net);
    return examples::train_on_ranks(options, ranks, sampler, parts, net,
                                    examples::by_backward(loss_of), loss_of, tp, adam, traffic,
                                    state);
  }
  parallel::DistributedDataParallel ddp(net, *mesh["dp"]);
  const auto loss_of = loss_by(ddp);
  examples::train_on_ranks(options, ranks, sampler, parts, net, examples::by_backward(loss_of),
                           loss_of, tp, adam, traffic, state, ddp);
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
      examples::transformer_defaults(
          "char_transformer_tp",
          "Trains a small transformer with tensor parallelism, see ./weft launch.",
          examples::local_rank),
      [&](const train::Options& options) { char_transformer(options, flags); }, all);
}
