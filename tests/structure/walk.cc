// Runs the code that a walk of docs/spine.txt follows: `walk relu`, `walk conv2d` ... in a world of
// one; the walks of the group, of DistributedDataParallel, of sharding and of checkpoints in parts
// as two ranks of weftrun, that of the sharded pipeline as four.
#include <stdlib.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "weft/train/recorder.h"
#include "weft/weft.h"

using namespace weft;

namespace {

void relu_forth_and_back() {
  const Tensor x = ones({2, 3}).set_requires_grad(true);
  relu(x).backward(ones({2, 3}));
}

void conv2d_forth_and_back() {
  const nn::Conv2d conv(1, 2, 3);
  const Tensor y = conv(ones({1, 1, 4, 4}));
  y.backward(ones(y.shape()));
}

nn::Sequential two_layers() { return {nn::Linear(4, 4), nn::Linear(4, 2)}; }

void data_parallel_step() {
  nn::Sequential model = two_layers();
  parallel::DataParallel dp(model);
  dp(ones({4, 4})).backward(ones({4, 2}));
}

void pipeline_step() {
  const nn::Sequential model = two_layers();
  parallel::Pipeline pipe({model.slice(0, 1), model.slice(1, 2)}, {.chunks = 2});
  pipe.step({ones({4, 4})}, {}, [](auto y, auto) { return y[0].sum(); });
}

void meet() {
  const auto group = comm::init_process_group({.backend = "ring"});
  group->barrier().wait();
}

void ddp_step() {
  nn::Sequential model = two_layers();
  parallel::DistributedDataParallel ddp(model, comm::init_process_group({.backend = "ring"}));
  ddp(ones({4, 4})).backward(ones({4, 2}));
}

void zero_step() {
  nn::Sequential model = two_layers();
  const auto group = comm::init_process_group({.backend = "ring"});
  parallel::DistributedDataParallel ddp(model, group);
  parallel::ZeroRedundancyOptimizer sgd(optim::SGD(model.parameters()), group);
  ddp(ones({4, 4})).backward(ones({4, 2}));
  sgd.step();
}

// The last layer has the logits of four classes.
void tp_step() {
  nn::Sequential model{nn::Linear(4, 4), nn::Linear(4, 2), nn::Linear(2, 4)};
  const auto tp = parallel::parallelize(model, *comm::init_process_group({.backend = "ring"}),
                                        {{"0", parallel::ColwiseParallel{}},
                                         {"1", parallel::RowwiseParallel{}},
                                         {"2", parallel::VocabParallel{}}});
  const Tensor logits = model(ones({3, 4}));
  parallel::cross_entropy(tp.ranks(), logits, zeros({3}, DType::i64), 4).backward();
}

void cp_step() {
  const auto group = comm::init_process_group({.backend = "ring"});
  nn::MultiheadAttention attention(4, 2, {.batch_first = true});
  parallel::context_parallel(attention, *group);
  const Tensor x = parallel::part_of_sequence(ones({1, 4, 4}), *group, 1);
  attention(x).backward(ones(x.shape()));
}

void fsdp_step() {
  nn::Sequential model = two_layers();
  parallel::fully_shard(model, comm::init_process_group({.backend = "ring"}));
  optim::SGD sgd(model.parameters());
  model(ones({4, 4})).backward(ones({4, 2}));
  sgd.step();
}

// Each rank has two stages, in a V, and a half of their parameters.
void sharded_pipeline_step() {
  const comm::Mesh mesh(comm::init_process_group({.backend = "ring"}), {{"dp", 2}, {"pp", 2}});
  const auto stage = [&](std::size_t) {
    const nn::Linear layer(4, 4);
    parallel::fully_shard(layer, mesh["dp"]);
    return nn::AnyModule(layer);
  };
  parallel::Pipeline pipe(4, stage, {.chunks = 2, .schedule = "zb-v", .group = mesh["pp"]});
  pipe.step({ones({4, 4})}, {}, [](auto y, auto) { return y[0].sum(); });
}

void checkpoint_parts() {
  const auto group = comm::init_process_group({.backend = "ring"});
  nn::Sequential model = two_layers();
  auto sharded = parallel::fully_shard(model, group);
  optim::SGD sgd(model.parameters());
  auto state = sharded.state_of(sgd);
  data::DataLoader loader(data::TensorDataset<1>(ones({4, 4})), {.batch_size = 4});
  std::string folder = std::filesystem::temp_directory_path() / "weft-walk-XXXXXX";
  if (group->rank() == 0 && !mkdtemp(folder.data())) std::abort();
  train::Options options;
  options.out = folder = group->broadcast_object(folder, 0);
  options.resume = "latest";
  const train::Ranks ranks{
      .rank = group->rank(), .size = group->size(), .gather = [&](const std::string& text) {
        return group->all_gather_object(text);
      }};
  train::Recorder recorder(options, ranks);
  recorder.save(sharded, loader, state);
  recorder.resume(sharded, loader, state);
  group->barrier().wait();
  if (group->rank() == 0) std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view walk = argc == 2 ? argv[1] : "";
  if (walk == "relu")
    relu_forth_and_back();
  else if (walk == "conv2d")
    conv2d_forth_and_back();
  else if (walk == "data_parallel_step")
    data_parallel_step();
  else if (walk == "pipeline_step")
    pipeline_step();
  else if (walk == "group")
    meet();
  else if (walk == "ddp_step")
    ddp_step();
  else if (walk == "zero_step")
    zero_step();
  else if (walk == "tp_step")
    tp_step();
  else if (walk == "cp_step")
    cp_step();
  else if (walk == "fsdp_step")
    fsdp_step();
  else if (walk == "sharded_pipeline_step")
    sharded_pipeline_step();
  else if (walk == "checkpoint_parts")
    checkpoint_parts();
  else
    return std::fprintf(stderr, "walk: no walk \"%s\"\n", argc == 2 ? argv[1] : ""), 2;
}
