// Meshes: who is in which subgroup, their picture, and mistakes.
#include "weft/comm/mesh.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {std::shared_ptr<void>(), &group};
}

// The numbers in the run of a subgroup's ranks, collected by that group.
std::string members(ProcessGroup& world, const std::shared_ptr<ProcessGroup>& group) {
  std::string text;
  for (const std::string& rank : group->all_gather_object(std::to_string(world.rank()))) {
    text += rank + ' ';
  }
  return text;
}

RANKS_TEST(MeshTest, TheLastAxisIsInnermost, 8) {
  const Mesh mesh(shared(group), {{"dp", 2}, {"pp", 2}, {"tp", 2}});
  const std::vector<std::string> along_tp = {"0 1 ", "2 3 ", "4 5 ", "6 7 "};
  const std::vector<std::string> along_pp = {"0 2 ", "1 3 ", "4 6 ", "5 7 "};
  const std::vector<std::string> along_dp = {"0 4 ", "1 5 ", "2 6 ", "3 7 "};
  const std::vector<std::string> along_dp_tp = {"0 1 4 5 ", "2 3 6 7 "};
  const int rank = group.rank(), dp = rank / 4, pp = rank / 2 % 2, tp = rank % 2;
  EXPECT_EQ(mesh.coordinate("dp"), dp);
  EXPECT_EQ(mesh.coordinate("pp"), pp);
  EXPECT_EQ(mesh.coordinate("tp"), tp);
  EXPECT_EQ(mesh.coordinate("pp", 5), 0);
  EXPECT_EQ(members(group, mesh["tp"]), along_tp[static_cast<std::size_t>(2 * dp + pp)]);
  EXPECT_EQ(members(group, mesh["pp"]), along_pp[static_cast<std::size_t>(2 * dp + tp)]);
  EXPECT_EQ(members(group, mesh["dp"]), along_dp[static_cast<std::size_t>(2 * pp + tp)]);
  const auto both = mesh[{"dp", "tp"}];
  EXPECT_EQ(members(group, both), along_dp_tp[static_cast<std::size_t>(pp)]);
  EXPECT_EQ(mesh["tp"]->rank(), tp);
  EXPECT_EQ(both->rank(), 2 * dp + tp);
  // Groups are made once, whatever the order of the names; all axes together are the whole group.
  EXPECT_EQ((mesh[{"tp", "dp"}]), both);
  EXPECT_EQ((mesh[{"tp"}]), mesh["tp"]);
  EXPECT_EQ((mesh[{"dp", "pp", "tp"}]), mesh.group());
  EXPECT_EQ(to_string(mesh),
            "            tp 0  tp 1\n"
            "dp 0  pp 0     0     1\n"
            "dp 0  pp 1     2     3\n"
            "dp 1  pp 0     4     5\n"
            "dp 1  pp 1     6     7\n");
}

RANKS_TEST(MeshTest, AxesOfAnySize, 6) {
  const Mesh mesh(shared(group), {{"a", 3}, {"alone", 1}, {"b", 2}});
  const int rank = group.rank();
  EXPECT_EQ(members(group, mesh["alone"]), std::to_string(rank) + ' ');
  EXPECT_EQ(members(group, mesh["a"]), rank % 2 == 0 ? "0 2 4 " : "1 3 5 ");
  EXPECT_EQ(mesh.size("a"), 3);
  EXPECT_EQ(to_string(mesh),
            "              b 0  b 1\n"
            "a 0  alone 0    0    1\n"
            "a 1  alone 0    2    3\n"
            "a 2  alone 0    4    5\n");
  const Mesh line(shared(group), {{"dp", 6}});
  EXPECT_EQ(line["dp"], line.group());
  EXPECT_EQ(to_string(line),
            "dp 0  dp 1  dp 2  dp 3  dp 4  dp 5\n   0     1     2     3     4     5\n");
}

RANKS_TEST(MeshTest, OneRank, 1) {
  const Mesh mesh(shared(group), {{"dp", 1}, {"tp", 1}});
  EXPECT_EQ(mesh["tp"]->size(), 1);
  EXPECT_EQ(to_string(mesh), "      tp 0\ndp 0     0\n");
}

// Operations of the subgroups do not wait for each other.
RANKS_TEST(MeshTest, SubgroupsReduceTheirOwnNumbers, 4) {
  const Mesh mesh(shared(group), {{"dp", 2}, {"tp", 2}});
  const Tensor x = full({2}, group.rank()), y = full({2}, group.rank());
  const Work along_tp = mesh["tp"]->all_reduce(x), along_dp = mesh["dp"]->all_reduce(y);
  along_dp.wait();
  along_tp.wait();
  EXPECT_EQ(x.to_vector<float>()[0], group.rank() < 2 ? 1 : 5);
  EXPECT_EQ(y.to_vector<float>()[0], group.rank() % 2 == 0 ? 2 : 4);
}

// Replays recognise the axes in a trace by these rows.
TEST(MeshTest, RowsOfATraceNameTheAxis) {
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    run_ranks(4, [](ProcessGroup& world) {
      const Mesh mesh({std::shared_ptr<void>(), &world}, {{"dp", 2}, {"tp", 2}});
      mesh["dp"]->all_reduce(ones({1})).wait();
      mesh["tp"]->duplicate()->all_reduce(ones({1})).wait();
      world.duplicate()->all_reduce(ones({1})).wait();
      if (const auto part = world.subgroup({0, 3})) part->all_reduce(ones({1})).wait();
    });
  }
  const weft::testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const auto trace = nlohmann::json::parse(weft::testing::read_file(folder.path("trace.json")));
  std::set<std::string> rows;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name" && event["pid"] == 0) rows.insert(event["args"]["name"]);
  }
  for (const char* row :
       {"comm", "comm dp of ranks 0, 2", "comm tp of ranks 0, 1", "comm ranks 0, 3"}) {
    EXPECT_TRUE(rows.contains(row)) << row;
  }
}

RANKS_TEST(MeshTest, MistakesAreFoundOnEveryRank, 4) {
  const auto make = [&](std::vector<MeshAxis> axes) { Mesh(shared(group), std::move(axes)); };
  EXPECT_WEFT_ERROR(make({{"dp", 2}, {"tp", 1}}), InvalidArgument,
                    "[mesh] dp 2 x tp 1 does not have place for 4 ranks: the product of the sizes "
                    "must be their number");
  EXPECT_WEFT_ERROR(make({{"dp", 3}}), InvalidArgument, "dp 3 does not have place for 4 ranks");
  EXPECT_WEFT_ERROR(make({{"dp", 1 << 30}, {"tp", 1 << 30}, {"pp", 16}}), InvalidArgument,
                    "does not have place for 4 ranks");
  EXPECT_WEFT_ERROR(make({}), InvalidArgument, "got no axis, expected at least one");
  EXPECT_WEFT_ERROR(make({{"dp", 2}, {"dp", 2}}), InvalidArgument,
                    "dp 2 x dp 2: each axis needs a name of its own, got \"dp\" twice");
  EXPECT_WEFT_ERROR(make({{"", 4}}), InvalidArgument,
                    "each axis needs a name of its own, got \"\"");
  EXPECT_WEFT_ERROR(make({{"dp", -4}, {"tp", -1}}), InvalidArgument,
                    "axis dp has size -4, needs at least 1");
  EXPECT_WEFT_ERROR(make({{"dp", 0}}), InvalidArgument, "axis dp has size 0");
  // One rank that differs is enough, and both axes are named.
  EXPECT_WEFT_ERROR(
      make(group.rank() == 2 ? std::vector<MeshAxis>{{"tp", 4}} : std::vector<MeshAxis>{{"dp", 4}}),
      InvalidArgument, "rank 2 makes tp 4, rank 0 makes dp 4");
  // Ranks are named by their numbers in the run.
  if (const auto odd = group.subgroup({1, 3})) {
    EXPECT_WEFT_ERROR(Mesh(odd, {{group.rank() == 3 ? "tp" : "dp", 2}}), InvalidArgument,
                      "rank 3 makes tp 2, rank 1 makes dp 2");
  }
  EXPECT_WEFT_ERROR(Mesh(nullptr, {{"dp", 4}}), InvalidArgument, "there is no process group");
  const Mesh mesh(shared(group), {{"dp", 2}, {"tp", 2}});  // the group still works
  EXPECT_WEFT_ERROR(mesh["pp"], InvalidArgument, "there is no axis \"pp\" in dp 2 x tp 2");
  EXPECT_WEFT_ERROR((mesh[{"dp", "pp"}]), InvalidArgument, "there is no axis \"pp\"");
  EXPECT_WEFT_ERROR(mesh.coordinate("dp", 4), InvalidArgument,
                    "got rank 4, the mesh has ranks 0 to 3");
  EXPECT_WEFT_ERROR(mesh.coordinate("dp", -1), InvalidArgument, "got rank -1");
}

}  // namespace
}  // namespace weft::comm
