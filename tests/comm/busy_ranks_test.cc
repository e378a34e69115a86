// Ranks that let the others wait longer than a timeout, and report that they are busy.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/comm/group/progress.h"
#include "weft/core/runtime/phase.h"
#include "weft/tensor/creation.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using testing::patience;

constexpr milliseconds kTimeout{500};

// Runs f(group) as ranks 0 to n-1. They have met before, so only their operations have `timeout`.
void in_impatient_groups(const std::string& backend, int n, milliseconds timeout,
                         const std::function<void(ProcessGroup&)>& f) {
  const BackendMaker make = [&](const std::shared_ptr<Store>& store, int rank, int size,
                                const Deadline&) {
    auto made = testing::maker_of(backend)(store, rank, size, patience());
    made->meet(patience());
    return made;
  };
  run_ranks(n,
            [&](ProcessGroup& ranks) {
              ranks.barrier().wait();  // so that they start together
              ProcessGroup group(make, std::make_shared<PrefixStore>("impatient", ranks.store()),
                                 ranks.rank(), n, {.timeout = timeout});
              f(group);
            },
            {.timeout = milliseconds(30'000)});
}

// How many times ranks have reported that they are busy.
std::int64_t signs_of(const ProcessGroup& group) { return group.store()->add(kBusyKey, 0); }

bool comes_soon(const std::future<void>& event) {
  return event.wait_until(patience().at()) == std::future_status::ready;
}

class BusyRanks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_backend(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(BusyRanks, AreWaitedFor) {
  in_impatient_groups(GetParam(), 2, kTimeout, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      const BusyScope busy("save");
      std::this_thread::sleep_for(3 * kTimeout);
    }
    for (const std::int64_t count : {3, 100'000}) {
      const Tensor x = full({count}, group.rank() + 1);
      group.all_reduce(x).wait();
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(static_cast<std::size_t>(count), 3));
    }
  });
}

TEST_P(BusyRanks, AreNotWaitedForIfTheyDoNotSayIt) {
  std::promise<void> failed;
  in_impatient_groups(GetParam(), 2, kTimeout, [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const PhaseScope phase("save");
      EXPECT_TRUE(comes_soon(failed.get_future()));
      return;
    }
    EXPECT_WEFT_ERROR(group.all_reduce(ones({3})).wait(), Timeout,
                      "(waiting for rank 0, not seen yet)");
    failed.set_value();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, BusyRanks, ::testing::Values("ring", "gloo", "shm", "threads"),
                         [](const auto& info) { return std::string(info.param); });

TEST(BusyRanksTest, AreNotWaitedForForEver) {
  std::promise<void> failed;
  in_impatient_groups("ring", 2, milliseconds(100), [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const BusyScope busy("evaluation");
      EXPECT_TRUE(comes_soon(failed.get_future()));
      return;
    }
    EXPECT_WEFT_ERROR(group.all_reduce(ones({3})).wait(), Timeout,
                      "(waiting for rank 0, last seen in evaluation)");
    failed.set_value();
  });
}

TEST(BusyRanksTest, HaveATimeoutWhenTheyAreDone) {
  std::promise<void> failed;
  in_impatient_groups("shm", 2, kTimeout, [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      const auto failure = failed.get_future();
      {
        const BusyScope busy("save");
        std::this_thread::sleep_for(2 * kTimeout);
        EXPECT_EQ(failure.wait_for(milliseconds(0)), std::future_status::timeout);
      }
      EXPECT_TRUE(comes_soon(failure));
      const std::int64_t signs = signs_of(group);
      EXPECT_GT(signs, 0);
      std::this_thread::sleep_for(kTimeout / 2);
      EXPECT_EQ(signs_of(group), signs) << "still busy";
      return;
    }
    EXPECT_WEFT_ERROR(group.all_reduce(ones({3})).wait(), Timeout,
                      "(waiting for rank 0, last seen in save)");
    failed.set_value();
  });
}

TEST(BusyRanksTest, HoldUpThoseWhoWaitForOneThatWaitsForThem) {
  in_impatient_groups("threads", 3, kTimeout, [](ProcessGroup& group) {
    const auto first = group.subgroup({0, 1}), second = group.subgroup({1, 2});
    if (group.rank() == 0) {
      const BusyScope busy("save");
      std::this_thread::sleep_for(3 * kTimeout);
    }
    if (first) first->barrier().wait();
    if (second) second->barrier().wait();
  });
}

TEST(BusyRanksTest, AreNotBusyWhileTheyWaitThemselves) {
  std::promise<void> failed;
  in_impatient_groups("threads", 2, kTimeout, [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_TRUE(comes_soon(failed.get_future()));
      return;
    }
    const Work work = group.all_reduce(ones({3}));
    {
      const BusyScope busy("evaluation");
      EXPECT_WEFT_ERROR(work.wait(), Timeout, "(waiting for rank 0, not seen yet)");
    }
    EXPECT_LT(signs_of(group), 8);  // some were from before it began
    failed.set_value();
  });
}

}  // namespace
}  // namespace weft::comm
