// Trains the transformer by data, pipeline and tensor parallelism at once:
// `./weft launch --nproc-per-node 8 char_transformer_3d`. Of 8 ranks two share each layer, two such
// pairs are the stages of a pipeline, and two pipelines share the batch. With --fsdp these two keep
// half of every parameter, too.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "weft/examples/pipeline.h"
#include "weft/examples/ranks.h"
#include "weft/examples/text.h"
#include "weft/examples/transformer_program.h"
#include "weft/examples/transformer_stages.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct Flags {
  examples::TransformerOptions net;
  examples::PipelineFlags pipeline;
  std::string backend = "auto";
  std::int64_t pp = 0, tp = 0;
  bool sequence = false, fsdp = false;
};

comm::Mesh mesh_of(const std::shared_ptr<comm::ProcessGroup>& group, const Flags& flags) {
  const auto two_of = [](std::int64_t ranks) { return ranks % 2 == 0 ? 2 : 1; };
  const std::int64_t ranks = group->size(), tp = flags.tp > 0 ? flags.tp : two_of(ranks),
                     pp = flags.pp > 0 ? flags.pp : two_of(ranks / tp);
  WEFT_CHECK(ranks % tp == 0 && ranks / tp % pp == 0, InvalidArgument, "char_transformer_3d",
             "pipelines of ", pp, " times ", tp, " ranks, --pp and --tp, do not divide ", ranks,
             " ranks");
  return {group,
          {{"dp", static_cast<int>(ranks / tp / pp)},
           {"pp", static_cast<int>(pp)},
           {"tp", static_cast<int>(tp)}}};
}

void char_transformer(const train::Options& options, Flags flags) {
  const auto group = comm::init_process_group({.backend = flags.backend});
  const comm::Mesh mesh = mesh_of(group, flags);
  const examples::Text text(examples::read_text(options.data));
  const examples::TextParts parts = examples::split(text, flags.net.context);
  flags.net.characters = text.characters();
  if (options.summary) {
    examples::CharTransformer whole(flags.net);
    train::show_model(options, whole, {1, flags.net.context}, DType::i64);
    return;
  }
  if (group->rank() == 0) std::printf("%s", to_string(mesh).c_str());

  parallel::PipelineOptions how = examples::pipeline_options(flags.pipeline);
  how.devices = {options.device};
  how.group = mesh["pp"];
  if (mesh.size("dp") > 1 && !flags.fsdp) how.replicas = mesh["dp"];
  const auto count = static_cast<std::int64_t>(
      examples::stage_count(how, static_cast<std::size_t>(mesh.size("pp"))));
  WEFT_CHECK(count <= flags.net.layers, InvalidArgument, "char_transformer_3d", count,
             " stages need as many blocks, got --layers ", flags.net.layers);

  const std::string drawn = default_generators().state();
  std::vector<examples::TransformerLayers> own;  // of this rank's stages
  std::vector<parallel::Parallelized> cut;
  std::vector<parallel::FullySharded> sharded;
  const auto make_stage = [&](std::size_t stage) {
    const auto s = static_cast<std::int64_t>(stage);
    default_generators().set_state(drawn);  // each stage draws all layers
    own.emplace_back(flags.net, s * flags.net.layers / count, (s + 1) * flags.net.layers / count);
    own.back().to(options.device, options.dtype);
    cut.push_back(parallel::parallelize(
        own.back(), *mesh["tp"],
        examples::plan_for(own.back(), examples::tensor_plan(flags.sequence))));
    if (flags.fsdp) {
      for (const auto& [number, block] : own.back().blocks.list) {
        parallel::fully_shard(block, mesh["dp"]);
      }
      sharded.push_back(parallel::fully_shard(own.back(), mesh["dp"]));
    }
    return nn::AnyModule(own.back());
  };
  parallel::Pipeline pipe(static_cast<std::size_t>(count), make_stage, how);
  const examples::OwnTransformer saved{examples::TransformerLayers(own),
                                       examples::parameter_names(flags.net),
                                       mesh[flags.fsdp ? "dp" : "tp"], pipe};
  optim::AdamW adam(saved.layers.parameters(), {.lr = options.lr});
  examples::OwnAdam state(saved, adam);

  train::Ranks ranks = examples::ranks(group);
  ranks.batches = mesh.size("dp");
  const auto sampler = std::make_shared<data::DistributedSampler>(
      parts.train.size(), data::DistributedSamplerOptions{.num_replicas = mesh.size("dp"),
                                                          .rank = mesh.coordinate("dp"),
                                                          .shuffle = options.shuffle});
  const auto cross_entropy = [&](const Tensor& logits, const Tensor& y) {
    return parallel::cross_entropy(cut[0].ranks(), logits.flatten(0, 1), y.flatten(),
                                   text.characters());
  };
  const auto gradients_of = [&](const Tensor& x, const Tensor& y) {
    const auto stages = [&](Tensor at) {
      for (auto& stage : own) at = stage(at);
      return at;
    };
    return examples::pipeline_step(options, flags.pipeline, pipe, stages, x, y, cross_entropy);
  };
  const auto loss_of = [&](const Tensor& x, const Tensor& y) { return cross_entropy(pipe(x), y); };
  const auto traffic = [&] {
    comm::Traffic sum = pipe.traffic();
    for (const parallel::Parallelized& stage : cut) sum += stage.traffic();
    for (const parallel::FullySharded& unit : sharded) sum += unit.traffic();
    for (const auto& [axis, size] : mesh.axes()) {
      if (mesh[axis] != group) sum += mesh[axis]->traffic();
    }
    return sum += group->traffic();
  };
  examples::train_on_ranks(options, ranks, sampler, parts, pipe, gradients_of, loss_of, saved, adam,
                           traffic, state);
}

int main(int argc, char** argv) {
  Flags flags;
  std::vector<train::Flag> all = examples::transformer_flags(flags.net);
  for (const train::Flag& flag : examples::schedule_flags(flags.pipeline)) {
    // A schedule has a fixed number of micro-batches, the last batch of an epoch may have fewer.
    if (flag.name != "--schedule-file") all.push_back(flag);
  }
  all.push_back(examples::backend_flag(flags.backend));
  all.push_back({"--pp", &flags.pp, "ranks of a pipeline; without: 2, if that divides the ranks"});
  all.push_back({"--tp", &flags.tp, "ranks that share each layer; without: 2, likewise"});
  all.push_back({"--sequence-parallel", &flags.sequence,
                 "cuts along the text what lies between attention and perceptron"});
  all.push_back({"--fsdp", &flags.fsdp, "pipelines that share the batch keep parts of parameters"});
  return train::run(
      argc, argv,
      examples::transformer_defaults(
          "char_transformer_3d",
          "Trains a small transformer with data, pipeline and tensor parallelism, see "
          "./weft launch.",
          examples::local_rank),
      [&](const train::Options& options) { char_transformer(options, flags); }, all);
}
