// weft's ring and its backend over Gloo, compared with Gloo's own all-reduce.
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "weft/comm/backend/collectives.h"
#include "weft/comm/backend/reduce.h"
#include "weft/tests/comm/ranks.h"

namespace weft::comm {
namespace {

using testing::as_ranks;
using testing::Numbers;
using testing::patience;
using testing::values_of;

// For Gloo's own all-reduce, with any dtype: Gloo calls it with numbers of that size.
template <class T>
struct Sum {
  static void of(void* sum, const void* a, const void* b, std::size_t count) {
    if (sum != a) std::copy_n(static_cast<const T*>(a), count, static_cast<T*>(sum));
    reduce_into({sum, static_cast<std::int64_t>(count), dtype_of<T>}, b, ReduceOp::sum);
  }
};

template <class T>
void gloo_all_reduce(const std::shared_ptr<gloo::Context>& context, const Buffer& x) {
  // An integer of the same size replaces a type that Gloo does not have.
  using Word = std::conditional_t<std::is_same_v<T, bf16>, std::uint16_t,
                                  std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;
  gloo::AllreduceOptions options(context);
  options.setOutput(static_cast<Word*>(x.data), x.count);
  options.setReduceFunction(&Sum<T>::of);
  gloo::allreduce(options);
}

class AgainstGloo : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(AgainstGloo, TheRingGivesTheSameSumsForEveryDtypeAndOddSizes) {
  const auto [name, n] = GetParam();
  gloo::rendezvous::HashStore store;
  as_ranks(testing::maker_of(name), n, [&, n = n](Backend& backend) {
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    auto context = std::make_shared<gloo::rendezvous::Context>(backend.rank(), n);
    context->connectFullMesh(store, device);
    for (const DType dtype :
         {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
      dispatch_all(dtype, [&]<class T>() {
        for (const std::int64_t count : {1, 3, 31, 1021, 20'011}) {
          auto values = values_of(backend.rank(), count);
          if (dtype == DType::boolean) {
            for (double& value : values) value = value > 8;
          }
          Numbers ours(values, dtype), theirs(values, dtype);
          ring_all_reduce(backend, ours.buffer(), ReduceOp::sum, patience());
          if (n > 1) gloo_all_reduce<T>(context, theirs.buffer());
          ASSERT_EQ(ours.bytes(), theirs.bytes()) << dtype << " " << count;
        }
      });
    }
    backend.barrier(patience());  // Gloo's contexts do not close gracefully
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AgainstGloo,
                         ::testing::Combine(::testing::Values("ring", "gloo"),
                                            ::testing::Range(1, 6)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// A program that uses weft keeps its own signal settings.
TEST(GlooBackend, LeavesTheThreadsSignalsAndSchedulingAlone) {
  as_ranks(gloo_backend("127.0.0.1"), 2, [](Backend& backend) {
    backend.barrier(patience());
    sigset_t blocked, pending;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    sigpending(&pending);
    EXPECT_FALSE(sigismember(&blocked, SIGPIPE));
    EXPECT_FALSE(sigismember(&pending, SIGPIPE));
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  });
}

}  // namespace
}  // namespace weft::comm
