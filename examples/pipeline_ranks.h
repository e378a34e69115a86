// Shared by the programs whose pipelines use several processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/cores.h"
#include "weft/examples/pipeline.h"
#include "weft/examples/ranks.h"
#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/weft.h"

namespace weft::examples {

/// Divides the ranks of a run into `replicas` pipelines of the same length: with p stages, ranks 0
/// to p - 1 are the first one, p to 2 p - 1 the second, and so on.
struct PipelineRanks {
  std::shared_ptr<comm::ProcessGroup> world;
  std::shared_ptr<comm::ProcessGroup> pipeline;  ///< the ranks of this rank's pipeline
  std::shared_ptr<comm::ProcessGroup> replicas;  ///< ranks with the same stages; null: one pipeline
  int replica = 0;                               ///< the number of this rank's pipeline

  PipelineRanks(const std::shared_ptr<comm::ProcessGroup>& all, std::int64_t count) : world(all) {
    const auto n = static_cast<int>(count);
    WEFT_CHECK(n >= 1 && all->size() % n == 0, InvalidArgument, "pipeline", all->size(),
               " ranks cannot be ", n, " pipelines of the same length; choose another --replicas");
    const comm::Mesh mesh(all, {{"dp", n}, {"pp", all->size() / n}});
    replica = mesh.coordinate("dp");
    pipeline = mesh["pp"];
    if (n > 1) replicas = mesh["dp"];
  }

  int count() const { return world->size() / pipeline->size(); }  ///< number of pipelines

  /// For the recorder, which needs to know that only pipelines have batches of their own.
  train::Ranks for_recorder() const {
    train::Ranks ranks = examples::ranks(world);
    ranks.batches = count();
    return ranks;
  }

  /// What this rank has sent so far, for metrics.json. `pipe` uses these groups.
  train::TestFigures costs(const parallel::Pipeline& pipe) const {
    comm::Traffic sum = pipe.traffic();
    sum += world->traffic();
    if (pipeline != world) sum += pipeline->traffic();
    if (replicas && replicas != world) sum += replicas->traffic();
    return examples::costs(sum);
  }

  /// This pipeline's share of `size` images. It is the same on all ranks of the pipeline, whatever
  /// random numbers their stages draw.
  std::shared_ptr<data::DistributedSampler> sampler(std::int64_t size,
                                                    const train::Options& options) const {
    return distributed_sampler(size, options, {.rank = replica, .size = count()});
  }
};

/// A pipeline of the layers, in stages on the ranks; rank 0 measures the layers and decides where
/// to cut.
inline parallel::Pipeline pipeline(const nn::Sequential& layers, const Tensor& sample,
                                   const PipelineRanks& ranks, const PipelineFlags& flags) {
  parallel::PipelineOptions options = pipeline_options(flags);
  options.devices = {sample.device()};  // only for its own stages
  options.group = ranks.pipeline;
  options.replicas = ranks.replicas;
  std::string text;
  if (ranks.world->rank() == 0) {
    const int here = comm::launch_environment().local_size;
    if (sample.device().is_cpu() && here > core_count()) {
      std::printf(
          "%d ranks run on this host, rank 0 on %d cores. Unless the others have different ones, "
          "they wait for a core, not only for each other\n",
          here, core_count());
    }
    const auto count = stage_count(options, static_cast<std::size_t>(ranks.pipeline->size()));
    for (const std::size_t size : stage_sizes(layers, sample, count)) {
      text += std::to_string(size) + ' ';
    }
  }
  std::istringstream said(ranks.world->broadcast_object(text, 0));
  std::vector<std::size_t> sizes;
  for (std::size_t size; said >> size;) sizes.push_back(size);
  return parallel::Pipeline(parallel::cut(layers, sizes), std::move(options));
}

/// The model in the form that train::Recorder::save() and resume() need: whole, on every rank.
/// finish() takes the model itself, which the last save() has collected.
template <class Model>
class WholeModel {
 public:
  WholeModel(Model& model, parallel::Pipeline& pipe) : model_(model), pipe_(pipe) {}
  auto state_dict() const {
    pipe_.all_gather();
    return model_.state_dict();
  }
  void load_state_dict(const io::NamedTensors& state) { model_.load_state_dict(state); }
  nn::ModuleBase module() const { return model_; }

 private:
  Model& model_;
  parallel::Pipeline& pipe_;
};

/// The same for an optimiser.
template <class O>
class WholeOptimizer {
 public:
  using StandsFor = O;
  WholeOptimizer(O& optimizer, const parallel::Pipeline& pipe)
      : optimizer_(optimizer), pipe_(pipe) {}
  auto state_dict() const { return pipe_.all_gather_state(optimizer_); }
  void load_state_dict(const optim::NamedTensors& state) { optimizer_.load_state_dict(state); }

 private:
  O& optimizer_;
  const parallel::Pipeline& pipe_;
};

}  // namespace weft::examples
