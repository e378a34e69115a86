// Operations on tensors of a fake device made of host memory; tests/gpu/comm_test.cc tests them on
// emulated GPUs.
#include "weft/comm/group/device_tensors.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/comm/store/failure.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/hooked_store.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft::comm {
namespace {

using std::chrono::milliseconds;
using Numbers = std::vector<double>;

const Device kGpu("cuda:0"), kOther("cuda:1");

testing::FakeRuntime& gpus() {
  static testing::FakeRuntime made(DeviceType::cuda, 3);
  return made;
}

class DeviceTensorsTest : public ::testing::Test {
 protected:
  DeviceTensorsTest() { register_runtime(DeviceType::cuda, &gpus()); }
  /// The stream that the next owner would get.
  static void* spare_stream(Device device = kGpu) { return SideStream(device).get().handle; }
};

Tensor on(Device device, const Numbers& values, const Shape& shape) {
  return raw::to(from_vector(values, shape), device);
}

TEST_F(DeviceTensorsTest, OperationsGiveWhatTheyGiveOnTheHost) {
  run_ranks(3, [](ProcessGroup& group) {
    const double r = group.rank();
    for (const Device device : {Device(), kGpu, group.rank() == 1 ? kOther : kGpu}) {
      SCOPED_TRACE(to_string(device));
      const auto expect = [](const Tensor& x, const Numbers& values) {
        EXPECT_EQ(x.to_vector<double>(), values);
      };
      const auto nothing = [&](const Shape& shape) {
        return on(device, Numbers(static_cast<std::size_t>(numel(shape)), -1), shape);
      };
      const Tensor x = on(device, {r, r + 10}, {2}), all = nothing({3, 2}), part = nothing({2});
      const Tensor stacked = on(device, {r, 1, r + 10, 2, r + 20, 3}, {3, 2});
      group.all_gather(all, x).wait();
      expect(all, {0, 10, 1, 11, 2, 12});
      group.all_to_all(all, stacked).wait();
      expect(all, {10 * r, r + 1, 10 * r + 1, r + 1, 10 * r + 2, r + 1});
      const bool root = group.rank() == 1;
      group.gather(root ? all : Tensor(), x, 1).wait();
      if (root) expect(all, {0, 10, 1, 11, 2, 12});
      group.scatter(part, root ? stacked : Tensor(), 1).wait();
      expect(part, {1 + 10 * r, 1 + r});
      group.reduce_scatter(part, stacked).wait();
      expect(part, {3 + 30 * r, 3 + 3 * r});
      if (group.rank() == 0) group.send(x, 2).wait();
      if (group.rank() == 2) {
        group.recv(part, 0).wait();
        expect(part, {0, 10});
      }
      expect(x, {r, r + 10});
      group.broadcast(x, 1).wait();
      expect(x, {1, 11});
      group.all_reduce(x, ReduceOp::product).wait();
      expect(x, {1, 1331});
      group.reduce(x, 2).wait();
      if (group.rank() == 2) expect(x, {3, 3993});
      group.all_reduce(nothing({0})).wait();
    }
  });
}

TEST_F(DeviceTensorsTest, WhatTheDeviceDoesNotFinishIsATimeout) {
  void* const stream = spare_stream();
  gpus().set_done(stream, false);
  const auto reduce = [](ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_WEFT_ERROR(group.all_reduce(empty({2}, kGpu)).wait(), Timeout, "the work on cuda:0");
    } else {
      EXPECT_THROW(group.all_reduce(zeros({2})).wait(), Error);
    }
  };
  run_ranks(2, reduce, {.timeout = milliseconds(100)});
  gpus().set_done(stream, true);
}

TEST_F(DeviceTensorsTest, MemoryIsNotLentAgainBeforeTheResultIsThere) {
  run_ranks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return group.all_reduce(zeros({2})).wait();
    void* const stream = spare_stream();
    Tensor x = empty({2}, kGpu);
    const void* const memory = x.raw_data();
    group.all_reduce(x).wait();
    gpus().set_done(stream, false);
    x = Tensor();
    const Tensor early = empty({2}, kGpu);
    EXPECT_NE(early.raw_data(), memory);
    gpus().set_done(stream, true);
    EXPECT_EQ(empty({2}, kGpu).raw_data(), memory);
  });
}

TEST_F(DeviceTensorsTest, SideStreamsAreUsedAgain) {
  void* const first = spare_stream();
  EXPECT_EQ(spare_stream(), first);
  const SideStream a(kGpu), b(kGpu), other(kOther);
  EXPECT_EQ(a.get().device, kGpu);
  EXPECT_EQ(other.get().device, kOther);
  EXPECT_NE(a.get().handle, b.get().handle);
}

// --- NCCL ----------------------------------------------------------------------------------------

// Threads replace the library: the device's memory is the host's.
std::string problem;
std::atomic<bool> broken{false};
std::atomic<int> made{0}, exchanges{0};

class FakeNccl final : public DeviceBackend {
 public:
  FakeNccl(Store& store, int rank, int size, const Deadline& deadline)
      : DeviceBackend(rank, size),
        threads_(thread_backend()(store.duplicate(), rank, size, deadline)) {
    ++made;
  }
  const char* name() const override { return "fake"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in,
                const Deadline& deadline) override {
    ++exchanges;
    threads_->exchange(out, in, deadline);
  }
  void abort() noexcept override { threads_->abort(); }
  void check() override { WEFT_CHECK(!broken, Library, "fake", "it is broken"); }

 private:
  const std::unique_ptr<Backend> threads_;
};

constexpr Nccl kFake{[] { return problem; }, [] { return 22809; },
                     [](int device) { return "GPU " + std::to_string(device); },
                     [](Store& store, int rank, int size, const Stream&, const Deadline& deadline,
                        const std::function<void()>&) -> std::unique_ptr<DeviceBackend> {
                       return std::make_unique<FakeNccl>(store, rank, size, deadline);
                     }};

class NcclTest : public DeviceTensorsTest {
 protected:
  NcclTest() {
    problem.clear();
    broken = false;
    made = 0;
    register_nccl(&kFake);
  }
  ~NcclTest() override { register_nccl(nullptr); }

  static Device gpu_of(const ProcessGroup& group) { return {DeviceType::cuda, group.rank()}; }
  static bool has_failed(const Work& work) {
    try {
      work.wait();
      return false;
    } catch (const Error&) {
      return true;
    }
  }
  static void expect_sum(ProcessGroup& group) {
    const Tensor x = on(gpu_of(group), {1, 2}, {2});
    group.all_reduce(x).wait();
    EXPECT_EQ(x.to_vector<double>(), (Numbers{2, 4}));
  }
};

TEST_F(NcclTest, IsTakenOnlyWhereAllHaveIt) {
  run_ranks(2, expect_sum, {.cuda = CudaTransport::staging});
  EXPECT_EQ(made, 0);
  run_ranks(2, expect_sum);
  EXPECT_EQ(made, 2);
  run_ranks(2, [](ProcessGroup& group) {
    EXPECT_STREQ(group.backend(), "threads");
    expect_sum(group);
    expect_sum(*group.subgroup({0, 1}));
  });
  EXPECT_EQ(made, 6);

  problem = "libnccl.so.2: no such file";
  run_ranks(2, expect_sum);
  EXPECT_EQ(made, 6);
  const ProcessGroupOptions asked{.cuda = CudaTransport::nccl};
  EXPECT_WEFT_ERROR(run_ranks(2, expect_sum, asked), Unsupported, "[nccl] libnccl.so.2: no such");
  register_nccl(nullptr);
  run_ranks(2, expect_sum);
  EXPECT_WEFT_ERROR(run_ranks(2, expect_sum, asked), Unsupported, "this build of weft has no NCCL");
  run_ranks(1, [](ProcessGroup& group) { group.all_reduce(empty({2}, kGpu)).wait(); }, asked);
}

// Rank 2 is in the barrier meanwhile, and cannot plan for NCCL.
TEST_F(NcclTest, AMessageBeforeAllRanksHaveMetGoesThroughTheHost) {
  run_ranks(3, [](ProcessGroup& group) {
    const Tensor x = on(gpu_of(group), {group.rank() + 1.0}, {1});
    if (group.rank() == 0) group.send(x, 1).wait();
    if (group.rank() == 1) {
      group.recv(x, 0).wait();
      EXPECT_EQ(x.to_vector<double>(), (Numbers{1}));
    }
    group.barrier().wait();
    EXPECT_EQ(made, 0);
    group.all_reduce(x).wait();
    EXPECT_EQ(x.to_vector<double>(), (Numbers{1 + 1 + 3}));
    EXPECT_EQ(made, 3);
  });
}

// Neither end of a message knows which GPU the other's tensor is on, and rank 2, which is in the
// barrier meanwhile, cannot plan with them.
TEST_F(NcclTest, MessagesOfAllGpusGoAsTheFirstCollectiveDoes) {
  const auto talk = [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto gpu_at = [&](int place) { return Device(DeviceType::cuda, (rank + place) % 3); };
    group.all_reduce(on(gpu_of(group), {1}, {1})).wait();
    group.barrier().wait();
    const int before = exchanges;
    group.barrier().wait();
    for (const int from : {0, 1}) {
      for (const int to : {0, 1}) {
        if (rank == 0) group.send(on(gpu_at(from), {1.0 + from, 2.0 + to}, {2}), 1).wait();
        if (rank == 1) {
          const Tensor x = on(gpu_at(to), {0, 0}, {2});
          group.recv(x, 0).wait();
          EXPECT_EQ(x.to_vector<double>(), (Numbers{1.0 + from, 2.0 + to}));
        }
        group.barrier().wait();
      }
    }
    const int by_nccl = exchanges - before, ends = 2 * 4;
    EXPECT_EQ(by_nccl, made > 0 ? ends : 0);
  };
  for (const CudaTransport transport :
       {CudaTransport::automatic, CudaTransport::nccl, CudaTransport::staging}) {
    made = 0;
    run_ranks(3, talk, {.timeout = std::chrono::seconds(20), .cuda = transport});
    EXPECT_EQ(made, transport == CudaTransport::staging ? 0 : 3);
  }
  made = 0;
  problem = "libnccl.so.2: no such file";
  run_ranks(3, talk, {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(made, 0);
}

// Its GPUs need not be those of the first collective, which only one rank might have to plan for.
TEST_F(NcclTest, AMessageOfTwoRanksPlansForMessagesAlone) {
  const auto talk = [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto send = [&](int from, int to, double value) {
      if (rank == 0) group.send(on({DeviceType::cuda, from}, {value}, {1}), 1).wait();
      if (rank == 1) {
        const Tensor x = on({DeviceType::cuda, to}, {0}, {1});
        group.recv(x, 0).wait();
        EXPECT_EQ(x.to_vector<double>(), Numbers{value});
      }
      group.barrier().wait();
    };
    send(0, 2, 5);
    EXPECT_EQ(made, 2);
    group.barrier().wait();
    expect_sum(group);  // on GPUs 0 and 1
    group.barrier().wait();
    EXPECT_EQ(made, 4);
    const int before = exchanges;
    group.barrier().wait();
    send(1, 1, 6);
    EXPECT_EQ(exchanges - before, 2);
    EXPECT_EQ(made, 4);
  };
  for (const CudaTransport transport : {CudaTransport::automatic, CudaTransport::nccl}) {
    made = 0;
    run_ranks(2, talk, {.timeout = std::chrono::seconds(20), .cuda = transport});
  }
}

TEST_F(NcclTest, WhatFailsOnTheDeviceEndsTheGroup) {
  run_ranks(2,
            [](ProcessGroup& group) {
              EXPECT_STREQ(group.backend(), "nccl");
              void* const stream = group.rank() == 0 ? spare_stream(gpu_of(group)) : nullptr;
              expect_sum(group);
              group.barrier().wait();  // it has also ended on the device
              if (group.rank() == 0) gpus().set_done(stream, false);
              const Work work = group.all_reduce(on(gpu_of(group), {1}, {1}));
              work.wait();
              if (group.rank() == 1) return;
              broken = true;
              while (!has_failed(work)) {
              }
              EXPECT_WEFT_ERROR(work.wait(), Library, "[fake] it is broken");
              EXPECT_WEFT_ERROR(static_cast<void>(group.barrier()), Comm, "it is broken");
              gpus().set_done(stream, true);
            },
            {.cuda = CudaTransport::nccl});
}

// Operations on a device ask repeatedly which rank has failed.
TEST_F(NcclTest, AStoreThatAnswersSlowlyIsAskedLessOften) {
  constexpr milliseconds kAnswer{50};
  std::atomic<int> asked{0};
  const auto answer_slowly = [&](const std::string& key) {
    if (key != kFailureKey) return;
    ++asked;
    std::this_thread::sleep_for(kAnswer);
  };
  run_ranks(2,
            [&](ProcessGroup& ranks) {
              std::shared_ptr<Store> store = std::make_shared<PrefixStore>("slow", ranks.store());
              if (ranks.rank() == 0)
                store = std::make_shared<testing::HookedStore>(store, answer_slowly);
              ProcessGroup group(thread_backend(), store, ranks.rank(), 2,
                                 {.cuda = CudaTransport::nccl});
              void* const stream = group.rank() == 0 ? spare_stream(gpu_of(group)) : nullptr;
              expect_sum(group);
              group.barrier().wait();  // it has also ended on the device
              if (group.rank() == 0) gpus().set_done(stream, false);
              const auto begin = std::chrono::steady_clock::now();
              const int before = asked;
              group.all_reduce(on(gpu_of(group), {1}, {1})).wait();
              if (group.rank() == 1) return;
              std::this_thread::sleep_for(milliseconds(2500));
              const int often = asked - before;
              const auto waited = std::chrono::steady_clock::now() - begin;
              gpus().set_done(stream, true);
              EXPECT_GE(often, 1);
              EXPECT_LE(often, 1 + waited / (20 * kAnswer));
            },
            {.cuda = CudaTransport::nccl});
}

TEST(NcclPlanTest, GpusAreSharedWhereNcclCan) {
  const auto place = [](const char* gpu, const char* process, int version = 22809) {
    NcclPlace made;
    std::string(gpu).copy(made.gpu, sizeof made.gpu - 1);
    std::string(process).copy(made.process, sizeof made.process - 1);
    made.version = version;
    return made;
  };
  const Members members = Members::of_run(0, 3);
  const auto plan = [&](std::vector<NcclPlace> places, CudaTransport transport) {
    return plan_nccl(places, members, transport);
  };
  const auto asked = CudaTransport::nccl, automatic = CudaTransport::automatic;
  const std::vector<NcclPlace> apart = {place("a", "p"), place("b", "p"), place("c", "q")};
  EXPECT_EQ(plan(apart, automatic).problem, "");
  EXPECT_EQ(plan(apart, automatic).ranks_per_gpu, 1);
  const std::vector<NcclPlace> shared = {place("a", "p"), place("b", "q"), place("a", "r")};
  EXPECT_EQ(plan(shared, asked).problem, "");
  EXPECT_EQ(plan(shared, asked).ranks_per_gpu, 2);
  EXPECT_EQ(plan(shared, automatic).problem, "rank 0 and rank 2 have the same GPU");
  EXPECT_EQ(plan({place("b", "p"), place("a", "q"), place("a", "q")}, asked).problem,
            "rank 1 and rank 2 have the same GPU and are threads of one process");
  EXPECT_EQ(plan({place("a", "q", 23000), place("a", "q", 23000), place("a", "q", 23000)}, asked)
                .ranks_per_gpu,
            3);
  std::vector<NcclPlace> without = apart;
  std::string("no library").copy(without[1].problem, 100);
  EXPECT_EQ(plan(without, automatic).problem, "rank 1: no library");
}

}  // namespace
}  // namespace weft::comm
