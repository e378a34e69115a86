// Collectives by name: in any order, combined into messages, and when the ranks disagree.
#include "weft/parallel/named_collectives.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/collected_log.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/parallel/horovod_ranks.h"

namespace weft::parallel {
namespace {

using comm::ReduceOp;
using testing::run;
using Floats = std::vector<float>;
using namespace std::chrono_literals;

TEST(NamedCollectivesTest, AllreduceGivesTheMeanOrAnotherReduction) {
  for (const int n : {1, 2, 4}) {
    run(n, [&](const Horovod& hvd) {
      const Tensor x = full({2, 3}, 2 * hvd.rank());
      const Tensor mean = hvd.allreduce("x", x);
      EXPECT_EQ(mean.shape(), Shape({2, 3}));
      EXPECT_EQ(mean.to_vector<float>(), Floats(6, float(n - 1)));
      EXPECT_EQ(x.to_vector<float>(), Floats(6, float(2 * hvd.rank())));
      EXPECT_EQ(hvd.allreduce("x", x, ReduceOp::sum).to_vector<float>()[0], float(n * (n - 1)));
      EXPECT_EQ(
          hvd.allreduce("x", full({1}, hvd.rank(), DType::i64), ReduceOp::max).item<std::int64_t>(),
          n - 1);
      EXPECT_WEFT_ERROR(hvd.allreduce("count", zeros({1}, DType::i64)), Dtype,
                        "'count' is i64, of which there is no mean; give an op");
    });
  }
}

HOROVOD_TEST(NamedCollectivesTest, RanksMayAskInAnyOrder, 3) {
  const char* const names[] = {"loss", "accuracy", "a third one"};
  for (int round = 0; round < 3; ++round) {
    // Each rank first waits for an operation that is the last one on another rank.
    std::vector<NamedWork> asked;
    for (int i = 0; i < 3; ++i) {
      const int which = (i + hvd.rank()) % 3;
      asked.push_back(hvd.allreduce_async(names[which], full({}, 10 * which + hvd.rank())));
    }
    for (int i = 0; i < 3; ++i) {
      const int which = (i + hvd.rank()) % 3;
      EXPECT_EQ(asked[static_cast<std::size_t>(i)].wait().item<float>(), 10 * which + 1);
    }
  }
}

HOROVOD_TEST(NamedCollectivesTest, WhatIsAskedForEarlyCanWait, 2) {
  const Tensor x = ones({1});
  if (hvd.rank() == 0) {
    const NamedWork late = hvd.allreduce_async("late", x);
    EXPECT_EQ(hvd.allreduce("early", x).item<float>(), 1);
    EXPECT_EQ(hvd.allreduce("next", x).item<float>(), 1);
    EXPECT_EQ(late.wait().item<float>(), 1);
  } else {
    for (const char* name : {"early", "next", "late"}) {
      EXPECT_EQ(hvd.allreduce(name, x).item<float>(), 1);
    }
  }
}

// --- Together ------------------------------------------------------------------------------------

std::int64_t messages_of(const std::vector<std::pair<Tensor, ReduceOp>>& asked,
                         std::int64_t threshold = kFusionThreshold) {
  std::int64_t messages = 0;
  run(2,
      [&](const Horovod& hvd) {
        std::vector<NamedWork> works;
        for (const auto& [x, op] : asked) {
          works.push_back(hvd.allreduce_async(std::to_string(works.size()), x, op));
        }
        for (const NamedWork& work : works) work.wait();
        if (hvd.rank() == 0) messages = hvd.messages_sent();
      },
      {.fusion_threshold = threshold});
  return messages;
}

TEST(NamedCollectivesTest, OfOneKindAndDtypeGoTogetherUpToTheThreshold) {
  const Tensor x = zeros({4}), y = zeros({4}, DType::f64);
  EXPECT_EQ(messages_of({{x, ReduceOp::sum}, {x, ReduceOp::sum}, {x, ReduceOp::sum}}), 1);
  EXPECT_EQ(messages_of({{x, ReduceOp::sum}, {y, ReduceOp::sum}, {x, ReduceOp::sum}}), 2);
  EXPECT_EQ(messages_of({{x, ReduceOp::sum}, {x, ReduceOp::avg}}), 2);
  EXPECT_EQ(messages_of({{x, ReduceOp::sum}, {x, ReduceOp::sum}, {x, ReduceOp::sum}}, 32), 2);
  EXPECT_EQ(messages_of({{x, ReduceOp::sum}, {x, ReduceOp::sum}, {x, ReduceOp::sum}}, 0), 3);
}

HOROVOD_TEST(NamedCollectivesTest, ResultsAreTensorsOfTheirOwn, 2) {
  const Tensor x = raw::transpose(from_vector(Floats{1, 2, 3, 4, 5, 6}, {2, 3}), 0, 1);
  const NamedWork first = hvd.allreduce_async("first", x);
  const NamedWork second = hvd.allreduce_async("second", ones({2}));
  const Tensor a = first.wait(), b = second.wait();
  EXPECT_EQ(a.shape(), Shape({3, 2}));
  EXPECT_EQ(a.to_vector<float>(), (Floats{1, 4, 2, 5, 3, 6}));
  EXPECT_NE(a.storage().get(), b.storage().get());
}

HOROVOD_TEST(NamedCollectivesTest, AllgatherJoinsRowsInTheOrderOfRanks, 3) {
  const int r = hvd.rank();
  const NamedWork rows = hvd.allgather_async("rows", full({r, 2}, r));  // rank 0 has no rows
  const NamedWork ids = hvd.allgather_async("ids", full({2 - r % 2}, 10 * r));
  const NamedWork labels = hvd.allgather_async("labels", full({1}, r, DType::i64));
  EXPECT_EQ(rows.wait().shape(), Shape({3, 2}));
  EXPECT_EQ(rows.wait().to_vector<float>(), (Floats{1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(ids.wait().to_vector<float>(), (Floats{0, 0, 10, 20, 20}));
  EXPECT_EQ(labels.wait().to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(hvd.messages_sent(), 2);
  EXPECT_WEFT_ERROR(hvd.allgather("loss", full({}, 1)), Shape, "'loss' is a scalar");
}

// --- Disagreement --------------------------------------------------------------------------------

HOROVOD_TEST(NamedCollectivesTest, WhatIsNotTheSameOnAllRanksIsNamed, 3) {
  const bool odd = hvd.rank() == 2;
  const NamedWork fits = hvd.allreduce_async("fits", ones({1}));
  const std::string text = "'x' is not the same on all ranks: rank 0 asks for ";
  EXPECT_WEFT_ERROR(hvd.allreduce("x", ones({odd ? 3 : 2})), InvalidArgument,
                    text + "allreduce (avg) of f32 [2], rank 2 for allreduce (avg) of f32 [3]");
  EXPECT_EQ(fits.wait().item<float>(), 1);
  EXPECT_WEFT_ERROR(hvd.allreduce("x", ones({2}, odd ? DType::f64 : DType::f32)), InvalidArgument,
                    "rank 2 for allreduce (avg) of f64 [2]");
  EXPECT_WEFT_ERROR(hvd.allreduce("x", ones({2}), odd ? ReduceOp::sum : ReduceOp::max),
                    InvalidArgument, "rank 2 for allreduce (sum) of f32 [2]");
  EXPECT_WEFT_ERROR(odd ? hvd.allgather("x", ones({2})) : hvd.allreduce("x", ones({2})),
                    InvalidArgument, "rank 2 for allgather of f32 [2]");
  EXPECT_WEFT_ERROR(hvd.allgather("x", ones({2, odd ? 2 : 1})), InvalidArgument,
                    text + "allgather of f32 [2,1], rank 2 for allgather of f32 [2,2]");
  EXPECT_EQ(hvd.allreduce("x", ones({1})).item<float>(), 1);  // the group still works
}

HOROVOD_TEST(NamedCollectivesTest, WhenAllWaitForDifferentNamesAllAreTold, 3) {
  const std::string name = hvd.rank() == 1 ? "train loss" : "loss";
  const NamedWork work = hvd.allreduce_async(name, ones({1}));
  EXPECT_WEFT_ERROR(work.wait(), InvalidArgument,
                    "all ranks wait, and no name is everybody's: 'loss' of ranks 0, 2 is not "
                    "asked for by rank 1, 'train loss' of rank 1 is not asked for by ranks 0, 2");
  // The missing rank may still come.
  const std::string other = hvd.rank() == 1 ? "loss" : "train loss";
  EXPECT_EQ(hvd.allreduce(other, ones({1})).item<float>(), 1);
  EXPECT_EQ(work.wait().item<float>(), 1);
}

HOROVOD_TEST(NamedCollectivesTest, ANameIsTakenUntilItHasBeenWaitedFor, 2) {
  const NamedWork first = hvd.allreduce_async("x", ones({1}));
  EXPECT_WEFT_ERROR(hvd.allreduce_async("x", ones({1})), InvalidArgument,
                    "has asked for 'x' and not waited for it");
  EXPECT_WEFT_ERROR(hvd.allgather("x", ones({1})), InvalidArgument, "has asked for 'x'");
  first.wait();
  EXPECT_EQ(hvd.allreduce("x", full({1}, 2)).item<float>(), 2);
  EXPECT_EQ(first.wait().item<float>(), 1);
  EXPECT_WEFT_ERROR(hvd.allreduce("", ones({1})), InvalidArgument, "one line that is not empty");
  EXPECT_WEFT_ERROR(hvd.allreduce("a\nb", ones({1})), InvalidArgument, "got 'a b'");
}

TEST(NamedCollectivesTest, ANameThatStallsIsWarnedOfOnceWithTheMissingRanks) {
  const testing::CollectedLog log;
  run(4,
      [](const Horovod& hvd) {
        if (hvd.rank() % 2 == 1) hvd.allreduce_async("rare", ones({1}));
        for (int i = 0; i < 3; ++i) hvd.allreduce("often", ones({1}));
      },
      {.stall_warning = 0ms});
  EXPECT_EQ(log.text,
            "warning: horovod: 'rare' has been asked for 0 s ago and still waits for ranks 0, 2\n");
}

HOROVOD_TEST(NamedCollectivesTest, AnErrorOnTheWaySaysForWhatTheRankWaited, 2) {
  if (hvd.rank() == 1) return;  // and its group ends
  try {
    hvd.allreduce("loss", ones({1}));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::PeerFailed) << e.what();
    EXPECT_HAS(std::string(e.what()), "'loss'") << e.what();
  }
}

}  // namespace
}  // namespace weft::parallel
