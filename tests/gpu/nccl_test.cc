// NCCL on emulated GPUs: when it is used, and how it fails.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "weft/comm/backend/device_ring.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/nets.h"
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

// --- Timings beside it ---------------------------------------------------------------------------

class Lines final : public LogSink {
 public:
  void write(Level, std::string_view message) override { text += std::string(message) + "\n"; }
  std::string text;
};

/// How the kernel of cuda:0 is chosen for a convolution with this many channels, which nobody has
/// asked for before.
std::string choice_of(std::int64_t channels) {
  Lines log;
  const Scoped<LogSink*> sink(&ThreadState::log, &log);
  const Scoped explain(&ThreadState::log_perf, true);
  const Scoped timed(&ThreadState::benchmark, true);
  const TensorOptions options{DType::f32, gpu_of(0)};
  raw::conv2d(ones({2, channels, 9, 9}, options), ones({3, channels, 3, 3}, options), {}, {});
  return log.text;
}

// Its kernels would slow down some candidates and not others.
TEST(Nccl, NoCandidateIsTimedBesideACollective) {
  std::promise<void> timed;
  const auto is_timed = timed.get_future().share();
  comm::run_ranks(2, [&](ProcessGroup& group) {
    group.all_reduce(filled(group, 1)).wait();
    // The wait is limited, since rank 0 may fail before.
    if (group.rank() == 1) is_timed.wait_for(std::chrono::seconds(60));
    const Tensor x = filled(group, 1);
    const comm::Work work = group.all_reduce(x);
    if (group.rank() == 1) return work.wait();
    while (!work.done()) std::this_thread::sleep_for(milliseconds(1));  // it is queued
    EXPECT_NE(choice_of(5).find("not timed: the device was busy"), std::string::npos);
    timed.set_value();
    work.wait();
    EXPECT_EQ(x.to_vector<float>()[0], 2);
    EXPECT_NE(choice_of(6).find("(timed)"), std::string::npos);
  });
}

TEST(Nccl, NoCollectiveBeginsBesideATiming) {
  comm::run_ranks(2, [&](ProcessGroup& group) {
    const Tensor first = filled(group, 1);
    group.all_reduce(first).wait();
    if (group.rank() == 1) return group.all_reduce(filled(group, 1)).wait();
    const Tensor x = filled(group, 2);
    // What has ended on the device: wait() lets only its streams wait.
    EXPECT_EQ(first.to_vector<float>()[0], 2);
    std::optional<cuda::Quiet> quiet(0);
    ASSERT_TRUE(quiet->is());
    const comm::Work work = group.all_reduce(x);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(work.done());
    quiet.reset();
    work.wait();
    EXPECT_EQ(x.to_vector<float>()[0], 3);
  });
}

// --- weft's ring over NCCL's messages ------------------------------------------------------------

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16,   DType::i64,
                             DType::i32, DType::u8,  DType::boolean};
constexpr comm::ReduceOp kReduceOps[] = {comm::ReduceOp::sum, comm::ReduceOp::avg,
                                         comm::ReduceOp::product, comm::ReduceOp::min,
                                         comm::ReduceOp::max};

/// The bytes of x, in row-major order.
std::vector<std::uint8_t> bits_of(const Tensor& x) {
  const Tensor here = raw::contiguous(x.to(Device()));
  const auto* const first = static_cast<const std::uint8_t*>(here.raw_data());
  return {first, first + here.numel() * static_cast<std::int64_t>(size_of(here.dtype()))};
}

/// Calls f(group, host) as n ranks: a group whose CUDA tensors go along weft's ring over NCCL, and
/// one whose tensors go along it through sockets of the host.
void beside_the_hosts_ring(int n, const std::function<void(ProcessGroup&, ProcessGroup&)>& f) {
  comm::run_ranks(n,
                  [&](ProcessGroup& group) {
                    const auto store = std::make_shared<comm::PrefixStore>("host", group.store());
                    ProcessGroup host(comm::ring_backend("127.0.0.1"), store, group.rank(), n,
                                      {.cuda = CudaTransport::staging});
                    // The first one makes NCCL's communicators, by messages between the hosts; the
                    // barrier ends after all of them are counted.
                    for (ProcessGroup* const each : {&group, &host}) {
                      each->all_reduce(filled(group, 0)).wait();
                      each->barrier().wait();
                    }
                    f(group, host);
                  },
                  {.cuda = CudaTransport::nccl_ring});
}

/// Random numbers whose sums are rounded, so that the order in which they are added shows.
Tensor random_numbers(const ProcessGroup& group, const Shape& shape, DType dtype) {
  manual_seed(10 + group.rank());
  const Tensor numbers = raw::mul(randn(shape), is_floating(dtype) ? 1 : 100);
  return raw::to(dtype == DType::u8 ? raw::abs(numbers) : numbers, dtype);
}

/// The bytes that this rank sends in f(). The barrier, which sends none, ends after they are
/// counted.
template <class F>
std::int64_t sent_in(ProcessGroup& group, const F& f) {
  const std::int64_t before = group.traffic().bytes_sent;
  f();
  group.barrier().wait();
  return group.traffic().bytes_sent - before;
}

/// Checks that f(group, numbers) of this rank's GPU has the bits of f(host, numbers) of the host,
/// and sends as many bytes.
template <class F>
void expect_the_hosts(ProcessGroup& group, ProcessGroup& host, const Shape& shape, DType dtype,
                      const F& f) {
  Tensor here, there;
  const auto expected = sent_in(host, [&] { here = f(host, random_numbers(host, shape, dtype)); });
  const auto sent = sent_in(group, [&] {
    there = f(group, random_numbers(group, shape, dtype).to(gpu_of(group.rank())));
  });
  EXPECT_EQ(sent, expected);
  EXPECT_TRUE(bits_of(there) == bits_of(here));
}

Tensor all_reduced(ProcessGroup& group, const Tensor& x, comm::ReduceOp op) {
  group.all_reduce(x, op).wait();
  return x;
}

class NcclRing : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclRing, ::testing::Values(2, 3, 4));

TEST_P(NcclRing, AllReduceHasTheBitsAndTheBytesOfTheHostsRing) {
  const int n = GetParam();
  beside_the_hosts_ring(n, [&](ProcessGroup& group, ProcessGroup& host) {
    EXPECT_STREQ(group.backend(), "nccl-ring");
    for (const DType dtype : kDTypes) {
      for (const comm::ReduceOp op : kReduceOps) {
        if (!comm::testing::makes_sense(dtype, op)) continue;
        for (const std::int64_t count : {0, 1, 5, 1001, 70'001}) {
          SCOPED_TRACE(detail::concat(to_string(op), " of ", count, ' ', dtype));
          expect_the_hosts(group, host, {count}, dtype, [&](ProcessGroup& of, const Tensor& x) {
            return all_reduced(of, x, op);
          });
        }
      }
    }
  });
}

// Where it shows which of two numbers is taken: zeros of both signs, and NaNs of several bits.
TEST_P(NcclRing, MinAndMaxTakeTheNumberThatTheHostTakes) {
  beside_the_hosts_ring(GetParam(), [&](ProcessGroup& group, ProcessGroup& host) {
    std::vector<float> numbers;
    for (int i = 0; i < 16; ++i) {
      const int pair = group.rank() % 2 ? i / 4 : i % 4;
      const float nan = std::bit_cast<float>(0x7fc00001u + static_cast<unsigned>(group.rank()));
      numbers.push_back(std::array{0.0f, -0.0f, nan, 1.0f}[pair]);
    }
    for (const comm::ReduceOp op : {comm::ReduceOp::min, comm::ReduceOp::max}) {
      const auto bits = [&](ProcessGroup& of, Device device) {
        return bits_of(all_reduced(of, from_vector(numbers, {16}).to(device), op));
      };
      EXPECT_TRUE(bits(group, gpu_of(group.rank())) == bits(host, Device())) << to_string(op);
    }
  });
}

TEST_P(NcclRing, SendsTwiceAllPartsButOne) {
  const int n = GetParam();
  beside_the_hosts_ring(n, [&](ProcessGroup& group, ProcessGroup&) {
    const std::int64_t count = n * 20'000;
    const Tensor x = random_numbers(group, {count}, DType::f32).to(gpu_of(group.rank()));
    EXPECT_EQ(sent_in(group, [&] { group.all_reduce(x).wait(); }), 2 * (n - 1) * count / n * 4);
  });
}

TEST_P(NcclRing, TheOtherCollectivesAreTheHostsRingsToo) {
  const int n = GetParam();
  using Collective = std::function<Tensor(ProcessGroup&, const Tensor&)>;
  const auto unlike = [](const Tensor& x, const Shape& shape) {
    return zeros(shape, {x.dtype(), x.device()});
  };
  const Collective collectives[] = {
      [&](ProcessGroup& group, const Tensor& x) {
        group.broadcast(x, n - 1).wait();
        return x;
      },
      [&](ProcessGroup& group, const Tensor& x) {
        group.reduce(x, n - 1).wait();
        return group.rank() == n - 1 ? x : Tensor(zeros({1}));
      },
      [&](ProcessGroup& group, const Tensor& x) {
        const Tensor all = unlike(x, {n, x.shape(0), x.shape(1)});
        group.all_gather(all, x).wait();
        return all;
      },
      [&](ProcessGroup& group, const Tensor& x) {
        const Tensor own = unlike(x, {x.shape(1)});
        group.reduce_scatter(own, x, comm::ReduceOp::avg).wait();
        return own;
      },
      [&](ProcessGroup& group, const Tensor& x) {
        const Tensor y = unlike(x, x.shape());
        group.all_to_all(y, x).wait();
        return y;
      },
  };
  beside_the_hosts_ring(n, [&](ProcessGroup& group, ProcessGroup& host) {
    for (const std::int64_t count : {3, 30'001}) {
      for (std::size_t i = 0; i < std::size(collectives); ++i) {
        SCOPED_TRACE(detail::concat("collective ", i, " of ", count));
        expect_the_hosts(group, host, {n, count}, DType::f32, collectives[i]);
      }
    }
  });
}

// One more number than two messages of 16 MiB have.
TEST(NcclRingChunks, LargePartsGoInSeveralMessages) {
  beside_the_hosts_ring(2, [&](ProcessGroup& group, ProcessGroup& host) {
    const Shape shape{2 * (1 << 22) + 1};
    const std::int64_t before = group.traffic().messages_sent;
    expect_the_hosts(group, host, shape, DType::f32, [](ProcessGroup& of, const Tensor& x) {
      return all_reduced(of, x, comm::ReduceOp::sum);
    });
    // One half is sent as two messages, the second of one number or of none, and the other half as
    // one; the fourth is the barrier's.
    EXPECT_EQ(group.traffic().messages_sent - before, 4);
  });
}

/// A backend whose messages are the numbers from 1 on, which the stream copies into page-locked
/// memory.
class CountedMessages final : public comm::DeviceBackend {
 public:
  CountedMessages(const Tensor& numbers, const Stream& stream, std::int64_t* through)
      : DeviceBackend(0, 2), numbers_(numbers), stream_(stream), through_(through) {}

  const char* name() const override { return "counted"; }
  void check() override { ++checks; }
  void abort() noexcept override {}
  void exchange(std::span<const comm::Outgoing>, std::span<const comm::Incoming>,
                const comm::Deadline&) override {
    runtime(stream_.device)
        .copy(through_, Device(), static_cast<std::int64_t*>(numbers_.raw_data()) + queued++,
              stream_.device, sizeof(std::int64_t), stream_);
    most_waiting = std::max(most_waiting, queued - *through_);
  }

  std::int64_t queued = 0, most_waiting = 0, checks = 0;

 private:
  const Tensor numbers_;
  const Stream stream_;
  std::int64_t* const through_;
};

// A full queue would hold up the host in the driver.
TEST(NcclRingQueue, HasAtMost128MessagesThatWait) {
  const Device device = gpu_of(0);
  const auto memory = Storage::allocate_pinned(sizeof(std::int64_t));
  auto* const through = static_cast<std::int64_t*>(memory->data());
  *through = 0;
  const Stream stream = runtime(device).new_stream(0);
  const Tensor numbers = arange(1, 1001, {DType::i64, device});
  runtime(device).synchronize_device(0);
  auto made = std::make_unique<CountedMessages>(numbers, stream, through);
  const CountedMessages& messages = *made;
  const auto ring = comm::device_ring(std::move(made), stream);
  for (int i = 0; i < 1000; ++i) ring->exchange({}, {}, comm::testing::patience());
  EXPECT_EQ(messages.queued, 1000);
  EXPECT_LE(messages.most_waiting, 128);
  EXPECT_GT(messages.checks, 0) << "whether another rank has failed";
  runtime(device).synchronize(stream);
  EXPECT_EQ(*through, 1000);
}

/// The weights after some steps of a DistributedDataParallel over the group.
std::vector<std::vector<std::uint8_t>> trained(ProcessGroup& group) {
  constexpr int kSteps = 6, kShard = 4;
  const Scoped deterministic(&ThreadState::deterministic, true);
  const Device device = gpu_of(group.rank());
  nn::Sequential model = testing::seeded(3, testing::cnn);
  model.to(device);
  parallel::DistributedDataParallel ddp(model, group, {.bucket_cap_mb = 1e-4});
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const int n = group.size();
  for (int step = 0; step < kSteps; ++step) {
    const auto part =
        testing::batch(step, {n * kShard, 1, 8, 8}, DType::f32).shard(group.rank(), n);
    sgd.zero_grad();
    nn::cross_entropy(ddp(part.x.to(device)), part.label.to(device)).backward();
    sgd.step();
  }
  std::vector<std::vector<std::uint8_t>> weights;
  for (const Tensor& p : model.parameters()) weights.push_back(bits_of(p));
  return weights;
}

TEST_P(NcclRing, DdpTrainsToTheBitOfTheHostsRing) {
  beside_the_hosts_ring(GetParam(), [](ProcessGroup& group, ProcessGroup& host) {
    std::vector<std::vector<std::uint8_t>> expected, got;
    const auto bytes = sent_in(host, [&] { expected = trained(host); });
    EXPECT_EQ(sent_in(group, [&] { got = trained(group); }), bytes);
    EXPECT_TRUE(got == expected);
  });
}

/// The spans of category "comm" of rank 0, without times.
std::vector<std::string> comm_spans(const std::function<void()>& f) {
  Tracer tracer;
  {
    const Scoped traced(&ThreadState::tracer, &tracer);
    f();
  }
  const testing::TempFolder folder;
  tracer.write(folder.path("trace.json"));
  const auto trace = nlohmann::json::parse(testing::read_file(folder.path("trace.json")));
  std::vector<std::string> spans;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["cat"] == "comm" && event["pid"] == 0) {
      spans.push_back(detail::concat(event["name"].dump(), event["args"].dump()));
    }
  }
  return spans;
}

TEST(NcclRingTrace, HasTheSpansOfTheHostsRing) {
  std::vector<std::string> on_gpus, on_the_host;
  beside_the_hosts_ring(2, [&](ProcessGroup& group, ProcessGroup& host) {
    const auto run = [&](ProcessGroup& of, Device device) {
      const ProcessGroup::Tag tag("bucket 7");
      for (const std::int64_t count : {10, 100'000}) {
        all_reduced(of, random_numbers(of, {count}, DType::f32).to(device), comm::ReduceOp::sum);
      }
      of.barrier().wait();
    };
    if (group.rank() == 1) {
      run(host, Device());
      run(group, gpu_of(1));
      return;
    }
    on_the_host = comm_spans([&] { run(host, Device()); });
    on_gpus = comm_spans([&] { run(group, gpu_of(0)); });
  });
  EXPECT_EQ(on_gpus, on_the_host);
  EXPECT_EQ(on_gpus.size(), 3U);
}

// --- Faults --------------------------------------------------------------------------------------

class NcclFaults : public ::testing::TestWithParam<CudaTransport> {
 protected:
  comm::ProcessGroupOptions impatient() {
    return {.timeout = milliseconds(1000), .cuda = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, NcclFaults,
                         ::testing::Values(CudaTransport::nccl, CudaTransport::nccl_ring));

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

TEST_P(NcclFaults, ARankThatDoesNotComeIsATimeout) {
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

TEST_P(NcclFaults, ARankThatLeavesFailsTheOthers) {
  const auto run = [](ProcessGroup& group) {
    group.all_reduce(filled(group, 1)).wait();
    if (group.rank() == 1) throw Error(ErrorCode::Io, "test", "enough", __FILE__, __LINE__);
    const Tensor x = filled(group, 1);
    const comm::Work work = group.all_reduce(x);
    EXPECT_FAILURE([&] { work.wait(); }, "rank 1 failed first: [test] enough");
    static_cast<void>(x.to_vector<float>());
    EXPECT_WEFT_ERROR(work.wait(), PeerFailed, "rank 1");
  };
  EXPECT_WEFT_ERROR(comm::run_ranks(2, run, {.cuda = GetParam()}), Io, "enough");
}

TEST_P(NcclFaults, AbortEndsWhatWaitsOnTheDevice) {
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
                  {.cuda = GetParam()});
}

// --- Processes -----------------------------------------------------------------------------------

class Launched : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs nccl_ranks with weftrun; returns the status.
  int run(int ranks, const std::string& fault, const std::string& environment = "") {
    const std::string command = environment +
                                " timeout 100 launch/weftrun --grace 60 --nproc-per-node " +
                                std::to_string(ranks) + " tests/gpu/nccl_ranks " + GetParam() +
                                " " + fault + " >" + folder.path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << command;
    return WEXITSTATUS(status);
  }
  std::string log() const { return testing::read_file(folder.path("log")); }
  void expect_in_log(const std::string& text) const {
    EXPECT_NE(log().find(text), std::string::npos) << "want " << text << "\n" << log();
  }
  void expect_no_sum_at_step(const std::string& step) const {
    for (const char* const rank : {"0", "1", "2"}) {
      const std::string sum = "rank " + std::string(rank) + " step " + step + ": ";
      EXPECT_EQ(log().find(sum), std::string::npos) << log();
    }
  }

  testing::TempFolder folder;
};

INSTANTIATE_TEST_SUITE_P(Backends, Launched, ::testing::Values("nccl", "nccl-ring"));

TEST_P(Launched, RanksSumUp) {
  ASSERT_EQ(run(2, "none"), 0) << log();
  expect_in_log("rank 1 step 4: 9");
  EXPECT_EQ(log().find("EMULATED"), std::string::npos) << log();
}

TEST_P(Launched, RanksMayShareAGpuAndSaySo) {
  for (const char* const version : {"22809", "23000"}) {
    const std::string environment = "WEFT_EMULATED_DEVICES=2 WEFT_EMULATED_NCCL=";
    ASSERT_EQ(run(3, "none", environment + version), 0) << log();
    expect_in_log("rank 2 step 4: 15");
    expect_in_log("EMULATED: 2 ranks share a GPU; timings are not representative");
  }
}

TEST_P(Launched, ARankThatIsKilledFailsTheOthersInTime) {
  for (const char* const fault : {"kill", "raise"}) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_NE(run(3, fault), 0);
    expect_in_log("rank 0 step 2: 9");
    expect_in_log("PeerFailed: ");
    expect_no_sum_at_step("3");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  }
}

TEST_P(Launched, ARankThatFailsWhileNcclConnectsFailsTheOthersInTime) {
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
      expect_no_sum_at_step("0");
    }
  }
}

}  // namespace
}  // namespace weft
