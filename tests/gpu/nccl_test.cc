// NCCL on emulated GPUs: when it is used, and how it fails.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/weft.h"

extern "C" int weft_emulated_exchanges();

namespace weft {
namespace {

using comm::CudaTransport;
using comm::ProcessGroup;
using std::chrono::milliseconds;

Device gpu_of(int rank) { return {DeviceType::cuda, rank}; }

Tensor filled(const ProcessGroup& group, double value) {
  return full({1000}, value, {DType::f32, gpu_of(group.rank())});
}

// --- When it is used -----------------------------------------------------------------------------

TEST(Nccl, IsUsedByItselfWhereEachRankHasAGpu) {
  const int before = weft_emulated_exchanges();
  comm::run_ranks(2, [](ProcessGroup& group) {
    const Tensor x = filled(group, group.rank() + 1);
    group.all_reduce(x).wait();
    EXPECT_EQ(x.to_vector<float>()[0], 3);
  });
  EXPECT_EQ(weft_emulated_exchanges() - before, 2);
}

TEST(Nccl, IsNotUsedWhereRanksShareAGpu) {
  const int before = weft_emulated_exchanges();
  const auto reduce = [](ProcessGroup& group) {
    const Tensor x = full({10}, group.rank() + 1, {DType::f32, gpu_of(0)});
    group.all_reduce(x).wait();
    EXPECT_EQ(x.to_vector<float>()[0], 3);
  };
  comm::run_ranks(2, reduce);
  EXPECT_EQ(weft_emulated_exchanges(), before);
  EXPECT_WEFT_ERROR(comm::run_ranks(2, reduce, {.cuda = CudaTransport::nccl}), Unsupported,
                    "rank 0 and rank 1 have the same GPU and are threads of one process");
}

TEST(Nccl, ServesSubgroupsAndSeveralGpusOfARank) {
  const int before = weft_emulated_exchanges();
  comm::run_ranks(2,
                  [](ProcessGroup& group) {
                    const auto sub = group.subgroup({0, 1});
                    for (int round = 0; round < 2; ++round) {
                      for (const int place : {0, 1}) {
                        const Device gpu = gpu_of(2 * group.rank() + place);
                        const Tensor x = full({100}, round + 1, {DType::f32, gpu});
                        const comm::Work first = group.all_reduce(x);
                        first.wait();
                        sub->all_reduce(x).wait();
                        EXPECT_EQ(x.to_vector<float>()[0], 4 * (round + 1));
                      }
                    }
                  },
                  {.cuda = CudaTransport::nccl});
  EXPECT_EQ(weft_emulated_exchanges() - before, 16);
}

// --- Faults --------------------------------------------------------------------------------------

comm::ProcessGroupOptions impatient() {
  return {.timeout = milliseconds(1000), .cuda = CudaTransport::nccl};
}

/// Calls f until it throws, because the device's failures come late; returns the error.
std::string error_of(const std::function<void()>& f) {
  const comm::Deadline deadline(std::chrono::seconds(20));
  while (!deadline.passed()) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return "nothing";
}

#define EXPECT_FAILURE(f, text) \
  EXPECT_NE(error_of(f).find(text), std::string::npos) << "got  " << error_of(f)

TEST(NcclFaults, ARankThatDoesNotComeIsATimeout) {
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  comm::run_ranks(
      2,
      [&](ProcessGroup& group) {
        group.all_reduce(filled(group, 1)).wait();
        if (group.rank() == 1) return is_over.wait();
        const Tensor x = filled(group, 1);
        const comm::Work work = group.all_reduce(x);
        EXPECT_FAILURE([&] { work.wait(); }, "the work on cuda:0 that this operation has to wait");
        EXPECT_WEFT_ERROR(work.wait(), Timeout, "waiting for rank 1");
        static_cast<void>(x.to_vector<float>());  // must not hang
        EXPECT_WEFT_ERROR(group.barrier().wait(), Comm, "this group has ended");
        over.set_value();
      },
      impatient());
}

TEST(NcclFaults, ARankThatLeavesFailsTheOthers) {
  const auto run = [](ProcessGroup& group) {
    group.all_reduce(filled(group, 1)).wait();
    if (group.rank() == 1) throw Error(ErrorCode::Io, "test", "enough", __FILE__, __LINE__);
    const Tensor x = filled(group, 1);
    const comm::Work work = group.all_reduce(x);
    EXPECT_FAILURE([&] { work.wait(); }, "rank 1 failed first: [test] enough");
    static_cast<void>(x.to_vector<float>());
    EXPECT_WEFT_ERROR(work.wait(), PeerFailed, "rank 1");
  };
  EXPECT_WEFT_ERROR(comm::run_ranks(2, run, {.cuda = CudaTransport::nccl}), Io, "enough");
}

TEST(NcclFaults, AbortEndsWhatWaitsOnTheDevice) {
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  comm::run_ranks(2,
                  [&](ProcessGroup& group) {
                    group.all_reduce(filled(group, 1)).wait();
                    if (group.rank() == 1) return is_over.wait();
                    const Tensor x = filled(group, 1);
                    const comm::Work work = group.all_reduce(x);
                    work.wait();
                    group.abort();
                    EXPECT_FAILURE([&] { work.wait(); }, "the group was aborted");
                    static_cast<void>(x.to_vector<float>());
                    over.set_value();
                  },
                  {.cuda = CudaTransport::nccl});
}

// --- Processes -----------------------------------------------------------------------------------

class Launched : public ::testing::Test {
 protected:
  /// Runs nccl_ranks with weftrun; returns the status.
  int run(int ranks, const std::string& fault, const std::string& environment = "") {
    const std::string command = environment +
                                " timeout 100 launch/weftrun --grace 60 --nproc-per-node " +
                                std::to_string(ranks) + " tests/gpu/nccl_ranks " + fault + " >" +
                                folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  void expect_in_log(const std::string& text) const {
    EXPECT_NE(log().find(text), std::string::npos) << "want " << text << "\n" << log();
  }

  testing::TempFolder folder;
};

TEST_F(Launched, RanksSumUp) {
  ASSERT_EQ(run(2, "none"), 0) << log();
  expect_in_log("rank 1 step 4: 9");
  EXPECT_EQ(log().find("EMULATED"), std::string::npos) << log();
}

TEST_F(Launched, RanksMayShareAGpuAndSaySo) {
  for (const char* const version : {"22809", "23000"}) {
    const std::string environment = "WEFT_EMULATED_DEVICES=2 WEFT_EMULATED_NCCL=";
    ASSERT_EQ(run(3, "none", environment + version), 0) << log();
    expect_in_log("rank 2 step 4: 15");
    expect_in_log("EMULATED: 2 ranks share a GPU; timings are not representative");
  }
}

TEST_F(Launched, ARankThatIsKilledFailsTheOthersInTime) {
  for (const char* const fault : {"kill", "raise"}) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_NE(run(3, fault), 0);
    expect_in_log("rank 0 step 2: 9");
    expect_in_log("PeerFailed: ");
    EXPECT_EQ(log().find("step 3:"), std::string::npos) << log();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  }
}

TEST_F(Launched, ARankThatFailsWhileNcclConnectsFailsTheOthersInTime) {
  for (const std::string failing : {"0", "1"}) {  // 0 writes NCCL's id for the others
    for (const std::string kind : {"kill", "raise"}) {
      SCOPED_TRACE(kind + " of rank " + failing);
      ASSERT_NE(run(3, "none", "WEFT_FAULT=" + kind + ":rank=" + failing + ":step=0:phase=connect"),
                0);
      for (const char* const other : {"0", "1", "2"}) {
        if (other == failing) continue;
        expect_in_log("[" + std::string(other) + "] PeerFailed: [process_group] rank " + failing);
      }
      expect_in_log("(rank " + failing + " failed first: ");
      expect_in_log(kind == "kill" ? "killed by signal 9" : "[connect] fault injected");
      EXPECT_EQ(log().find("step 0:"), std::string::npos) << log();
    }
  }
}

}  // namespace
}  // namespace weft
