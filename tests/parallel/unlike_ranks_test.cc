// Ranks that make different calls: each gets an error that names two of them before anything of the
// model is sent. Each row is one difference.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/mesh.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/same_model.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/zero.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/sharded_nets.h"

namespace weft::parallel {
namespace {

using comm::ProcessGroup;
using weft::testing::mlp;

struct Row {
  std::string name;
  int ranks;
  std::function<void(const std::shared_ptr<ProcessGroup>&)> call;  // each rank's, not all alike
  std::vector<std::string> texts;                                  // parts of each rank's error
  ErrorCode code = ErrorCode::InvalidArgument;
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class UnlikeRanks : public ::testing::TestWithParam<Row> {};

TEST_P(UnlikeRanks, HearOfItBeforeDataMoves) {
  const Row& row = GetParam();
  std::vector<std::string> errors(static_cast<std::size_t>(row.ranks));
  comm::run_ranks(row.ranks,
                  [&](ProcessGroup& group) {
                    try {
                      row.call({std::shared_ptr<void>(), &group});
                    } catch (const Error& error) {
                      errors[static_cast<std::size_t>(group.rank())] =
                          std::string(to_string(error.code())) + ": " + error.what();
                    }
                    group.barrier().wait();  // it still works
                  },
                  {.timeout = std::chrono::seconds(10)});
  for (const std::string& error : errors) {
    EXPECT_EQ(error.find(to_string(row.code)), 0U) << error;
    for (const std::string& text : row.texts) EXPECT_HAS(error, text);
  }
}

std::vector<Row> rows() {
  const auto differs = [](ProcessGroup& group) { return group.rank() == group.size() - 1; };
  const auto sharded = [=](auto f) {
    return [=](const std::shared_ptr<ProcessGroup>& group) { f(*group, differs(*group)); };
  };
  const std::string module = "rank 1 cuts another module than rank 0: it has ";
  std::vector<Row> all;
  const auto add = [&](const std::string& name, int ranks, auto f, std::vector<std::string> texts) {
    all.push_back({name, ranks, sharded(f), std::move(texts)});
  };
  // --- fully_shard
  add("UnitsOfOtherShapes", 2,
      [](ProcessGroup& group, bool other) { fully_shard(nn::Linear(other ? 3 : 2, 2), group); },
      {module, "f32 [2,3]", "f32 [2,2]"});
  add("UnitsInAnotherOrder", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear a(4, 4);
        nn::Sequential b{a, nn::Linear(4, 2)};
        other ? fully_shard(b, group) : fully_shard(a, group);
        fully_shard(b, group);
      },
      {module, "Sequential", "Linear"});
  add("FewerUnits", 2,
      [](ProcessGroup& group, bool other) {
        nn::Sequential model = mlp();
        model.apply([&](nn::ModuleBase& m) {
          if (m.name() == "0" || (m.name() == "2" && !other)) fully_shard(m, group);
        });
        fully_shard(model, group);
      },
      {module, "Sequential", "Linear 2"});
  add("NoUnitOfTheRest", 2,
      [](ProcessGroup& group, bool other) {
        nn::Sequential model = mlp();
        model.apply([&](nn::ModuleBase& m) {
          if (m.name() == "0") fully_shard(m, group);
        });
        if (!other) fully_shard(model, group);
        model(zeros({2, 6}));
      },
      {"rank 1 ", "than rank 0: it has ", "the first call of "});
  add("Reshard", 2,
      [](ProcessGroup& group, bool other) {
        fully_shard(nn::Linear(2, 2), group, {.reshard_after_forward = other});
      },
      {module, "reshard_after_forward 1", "reshard_after_forward 0"});
  add("MixedPrecision", 2,
      [](ProcessGroup& group, bool other) {
        FullyShardOptions options;
        if (other) options.mp_policy.param_dtype = DType::bf16;
        fully_shard(nn::Linear(2, 2), group, options);
      },
      {module, "bf16"});
  add("FrozenParameters", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear a(2, 2);
        a.weight.set_requires_grad(!other);
        fully_shard(a, group);
      },
      {module, "not trained", "trained"});
  add("OneRankOfReplicas", 4,
      [](ProcessGroup& group, bool other) {
        const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"fsdp", 2}});
        fully_shard(nn::Linear(other ? 3 : 2, 2), mesh["fsdp"], {.replicas = mesh["dp"]});
      },
      {" cuts another module than rank ", "f32 [2,3]", "f32 [2,2]"});
  add("ReplicasBesideNone", 4,
      [](ProcessGroup& group, bool other) {
        const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"fsdp", 2}});
        fully_shard(nn::Linear(2, 2), mesh["fsdp"], {.replicas = other ? nullptr : mesh["dp"]});
      },
      {"rank ", " cuts ", " replicas"});
  add("ShardedAndNot", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        other ? (void)fully_shard(model, group) : (void)DistributedDataParallel(model, group);
      },
      {"rank 1 ", "than rank 0: it has \"Linear , reshard_after_forward unset"});
  // --- parallelize
  add("Plans", 2,
      [](ProcessGroup& group, bool other) {
        nn::Sequential model = mlp();
        const ParallelPlan plan = {{other ? "2" : "0", ColwiseParallel{.output = Replicate{}}}};
        parallelize(model, group, plan);
      },
      {"rank 1 cuts another model than rank 0: it has \"plan: '2'", "plan: '0'"});
  add("ModelsOfPlans", 2,
      [](ProcessGroup& group, bool other) {
        parallelize(nn::Linear(other ? 6 : 4, 2), group, {{"", RowwiseParallel{}}});
      },
      {"rank 1 cuts another model than rank 0", "[2,6]", "[2,4]"});
  // --- meshes
  add("AxesInAnotherOrder", 4,
      [](ProcessGroup& group, bool other) {
        using Axes = std::vector<comm::MeshAxis>;
        comm::Mesh({std::shared_ptr<void>(), &group},
                   other ? Axes{{"tp", 2}, {"dp", 2}} : Axes{{"dp", 2}, {"tp", 2}});
      },
      {"rank 3 makes tp 2 x dp 2, rank 0 makes dp 2 x tp 2"});
  add("AxesOfOtherSizes", 4,
      [](ProcessGroup& group, bool other) {
        comm::Mesh({std::shared_ptr<void>(), &group},
                   {{"dp", other ? 4 : 2}, {"tp", other ? 1 : 2}});
      },
      {"rank 3 makes dp 4 x tp 1, rank 0 makes dp 2 x tp 2"});
  // --- pipelines
  const auto pipeline = [](ProcessGroup& group, PipelineOptions options) {
    options.group = {std::shared_ptr<void>(), &group};
    Pipeline({nn::Linear(6, 8), nn::Linear(8, 3)}, options);
  };
  const std::string other_pipeline = "rank 1 runs another pipeline than rank 0: it has ";
  add("Schedules", 2,
      [=](ProcessGroup& group, bool other) {
        pipeline(group, {.chunks = 4, .schedule = other ? "1f1b" : "gpipe"});
      },
      {other_pipeline});
  add("MicroBatches", 2,
      [=](ProcessGroup& group, bool other) { pipeline(group, {.chunks = other ? 4 : 2}); },
      {other_pipeline, "micro-batches 4", "micro-batches 2"});
  add("Recomputing", 2,
      [=](ProcessGroup& group, bool other) {
        pipeline(group, {.chunks = 2, .checkpoint = other ? Recompute::never : Recompute::always});
      },
      {other_pipeline});
  add("MeansAndSums", 2,
      [=](ProcessGroup& group, bool other) { pipeline(group, {.mean_loss = other}); },
      {other_pipeline, "a mean", "a sum"});
  add("PipelinesWithReplicasBesideNone", 4,
      [](ProcessGroup& group, bool other) {
        const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"pp", 2}});
        Pipeline({nn::Linear(6, 8), nn::Linear(8, 3)},
                 {.group = mesh["pp"], .replicas = other ? nullptr : mesh["dp"]});
      },
      {"rank ", " replicas"});
  add("MadeStagesWithReplicasBesideNone", 4,
      [](ProcessGroup& group, bool other) {
        const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"pp", 2}});
        const auto make = [](std::size_t s) { return nn::AnyModule(nn::Linear(s ? 8 : 6, 8)); };
        Pipeline(2, make, {.group = mesh["pp"], .replicas = other ? nullptr : mesh["dp"]});
      },
      {"rank ", " replicas"});
  // --- DistributedDataParallel
  add("ModelsOfDdp", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(other ? 3 : 2, 2);
        DistributedDataParallel ddp(model, group);
      },
      {"rank 1 wraps another model than rank 0", "[2,3]", "[2,2]"});
  add("BucketsOfDdp", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = other ? 1.0 : 2.0});
      },
      {"rank 1 wraps another model than rank 0"});
  add("BucketOrdersOfDdp", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        const BucketOrder order = other ? BucketOrder::given : BucketOrder::reversed;
        DistributedDataParallel ddp(model, group, {.bucket_order = order});
      },
      {"bucket_order=given", "bucket_order=reversed"});
  // --- ZeroRedundancyOptimizer
  const std::string other_optimiser = "rank 1 has another optimiser than rank 0: it has ";
  add("RatesOfZero", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        ZeroRedundancyOptimizer(optim::SGD(model.parameters(), {.lr = other ? 0.1 : 0.2}), group);
      },
      {other_optimiser, "lr 0.1", "lr 0.2"});
  add("GroupsOfZero", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        using Group = optim::ParamGroup<optim::SGDOptions>;
        std::vector<Group> groups = {{{model.weight}, {}}, {{model.bias}, {}}};
        if (other) groups = {{model.parameters(), {}}};
        ZeroRedundancyOptimizer(optim::SGD(groups), group);
      },
      {other_optimiser, "parameter", "group 1"});
  add("OptimisersOfZero", 2,
      [](ProcessGroup& group, bool other) {
        nn::Linear model(2, 2);
        if (other) {
          ZeroRedundancyOptimizer(optim::Adam(model.parameters(), {.lr = 0.1}), group);
        } else {
          ZeroRedundancyOptimizer(optim::AdamW(model.parameters(), {.lr = 0.1}), group);
        }
      },
      {other_optimiser, "Adam", "AdamW"});
  return all;
}

// Some ranks have cut a similar module for themselves before.
TEST(UnlikeRanks, OtherModulesOfSomeRanksAreNotTakenForOnesWithoutReplicas) {
  const auto f = [](ProcessGroup& group) {
    const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"fsdp", 2}});
    nn::Linear teacher(2, 2), student(2, 2);
    if (mesh.coordinate("dp") == 0) fully_shard(teacher, mesh["fsdp"]);
    fully_shard(student, mesh["fsdp"], {.replicas = mesh["dp"]});
  };
  comm::run_ranks(4, f, {.timeout = std::chrono::seconds(10)});
}

// A group that gives no replicas on any rank gets no error from ranks that do: it makes no call
// with them.
TEST(UnlikeRanks, ReplicasHearOfGroupsThatGiveNone) {
  for (const int shards : {1, 2}) {
    const auto f = [shards](ProcessGroup& group) {
      const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"fsdp", shards}});
      nn::Linear model(2, 2), next(3, 2);
      if (mesh.coordinate("dp") == 1) {
        fully_shard(model, mesh["fsdp"]);
      } else {
        const std::string other = std::to_string(group.rank() + shards);
        EXPECT_WEFT_ERROR(fully_shard(model, mesh["fsdp"], {.replicas = mesh["dp"]}),
                          InvalidArgument,
                          "rank " + other + " of the run cuts Linear with no replicas, and rank ");
      }
      // The groups still work, also those of replicas.
      fully_shard(next, mesh["fsdp"], {.replicas = mesh["dp"]});
    };
    // The ranks wait half of this time for the notes of others.
    comm::run_ranks(2 * shards, f, {.timeout = std::chrono::seconds(8)});
  }
}

TEST(UnlikeRanks, ReplicasHearOfPipelinesThatGiveNone) {
  const auto f = [](ProcessGroup& group) {
    const comm::Mesh mesh({std::shared_ptr<void>(), &group}, {{"dp", 2}, {"pp", 2}});
    const auto make = [&](int chunks, std::shared_ptr<ProcessGroup> replicas) {
      Pipeline({nn::Linear(6, 8), nn::Linear(8, 3)},
               {.chunks = chunks, .group = mesh["pp"], .replicas = std::move(replicas)});
    };
    if (mesh.coordinate("dp") == 1) {
      make(1, nullptr);
    } else {
      const std::string other = std::to_string(group.rank() + 2);
      EXPECT_WEFT_ERROR(make(1, mesh["dp"]), InvalidArgument,
                        "rank " + other +
                            " of the run makes a pipeline of 2 stages with no "
                            "replicas, and rank ");
    }
    make(2, mesh["dp"]);  // the groups still work
  };
  comm::run_ranks(4, f, {.timeout = std::chrono::seconds(8)});
}

/// What a rank that trains a pipeline notes, with two replicas or none.
void note_pipeline(ProcessGroup& group, bool with_replicas) {
  check_replicas(group, with_replicas ? &group : nullptr, "pipeline",
                 "makes a pipeline of 2 stages", "2 chunks");
}

// Both have made the same pipeline for themselves before, and one comes later than the other is
// willing to wait.
TEST(UnlikeRanks, LateRanksAreNotTakenForOnesWithoutReplicas) {
  const auto f = [](ProcessGroup& group) {
    comm::Store& store = *group.run_store();
    note_pipeline(group, false);
    if (group.rank() == 0) {
      store.get("made alone");
      EXPECT_NO_THROW(note_pipeline(group, true));  // waits in vain, half the timeout
      store.set("waited", "");
    } else {
      store.set("made alone", "");
      store.get("waited");
      EXPECT_NO_THROW(note_pipeline(group, true));
    }
  };
  comm::run_ranks(2, f, {.timeout = std::chrono::seconds(4)});
}

// One makes the same pipeline for itself first, and takes longer than the other waits for a rank
// without such a call.
TEST(UnlikeRanks, RanksThatEvaluateFirstAreNotTakenForOnesWithoutReplicas) {
  const auto f = [](ProcessGroup& group) {
    comm::Store& store = *group.run_store();
    if (group.rank() == 0) {
      note_pipeline(group, false);
      store.set("made alone", "");
      store.get("waits");
      std::this_thread::sleep_for(std::chrono::milliseconds(5500));
    } else {
      store.get("made alone");
      store.set("waits", "");
    }
    EXPECT_NO_THROW(note_pipeline(group, true));
  };
  comm::run_ranks(2, f, {.timeout = std::chrono::seconds(60)});
}

INSTANTIATE_TEST_SUITE_P(Rows, UnlikeRanks, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft::parallel
