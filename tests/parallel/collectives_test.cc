// Collectives: each rule against finite differences, in its meaning; and ranks that do not do the
// same.
#include "weft/parallel/collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/expect_error.h"

namespace weft::parallel {
namespace {

Collectives of(comm::ProcessGroup& group) {
  return Collectives(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group));
}

Tensor numbers(std::uint64_t seed, const Shape& shape) {
  Generator generator(seed);
  return uniform(shape, 0.5, 1.5, DType::f64, &generator);
}

// --- Gradients -----------------------------------------------------------------------------------

// A loss with another derivative for each element, and another one for each `seed`.
Tensor loss_of(const Tensor& y, int seed) {
  return (y * y * numbers(100 + static_cast<std::uint64_t>(seed), y.shape())).sum();
}

using Loss = std::function<Tensor(const Collectives& ranks, const Tensor& x)>;

// The function whose derivative x.grad() must be.
enum class Meaning {
  summed,      // the sum of the ranks' losses, by this rank's x
  replicated,  // the loss, by the x that all ranks have
  own,         // the loss, by this rank's x
};

// Compares with central differences of step 1e-5. Their error is about 1e-10 times the third
// derivatives, plus rounding of the loss divided by the step: 1e-11 times the loss. The losses are
// up to about ten times as large as their derivatives.
void check(Meaning meaning, const Shape& (*shape_of)(int n), const Loss& loss) {
  constexpr double kStep = 1e-5, kTolerance = 1e-8;
  for (int n = 1; n <= 4; ++n) {
    comm::run_ranks(n, [&](comm::ProcessGroup& group) {
      const Collectives ranks = of(group);
      const bool same = meaning == Meaning::replicated;
      const Tensor x =
          numbers(same ? 1 : 1 + static_cast<std::uint64_t>(group.rank()), shape_of(n));
      x.set_requires_grad();
      loss(ranks, x).backward();
      ASSERT_TRUE(x.grad().defined());
      const Tensor grad = x.grad();
      for (int r = 0; r < (same ? 1 : n); ++r) {
        const bool moves = same || r == group.rank();
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          double difference = 0;
          for (const double step : {kStep, -kStep}) {
            const Tensor moved = raw::clone(x.detach());
            if (moves) moved.data<double>()[i] += step;
            const Tensor value = raw::clone(loss(ranks, moved));
            if (meaning == Meaning::summed) group.all_reduce(value).wait();
            difference += value.item<double>() / (2 * step);
          }
          if (moves) {
            EXPECT_NEAR(raw::contiguous(grad).data<double>()[i], difference,
                        kTolerance * (1 + std::abs(difference)))
                << "element " << i << " of rank " << r << " of " << n;
          }
        }
      }
    });
  }
}

const Shape& any(int) {
  static const Shape shape = {2, 3};
  return shape;
}
const Shape& of_each_rank(int n) {
  static const Shape shapes[] = {{1, 2}, {2, 2}, {3, 2}, {4, 2}};
  return shapes[n - 1];
}
const Shape& divisible(int) {
  static const Shape shape = {12, 2};
  return shape;
}

TEST(CollectivesGradient, OfTheSumOfTheLosses) {
  const auto summed = [](const Shape& (*shape_of)(int), const auto& f) {
    check(Meaning::summed, shape_of, [&](const Collectives& ranks, const Tensor& x) {
      return loss_of(f(ranks, x), ranks.rank());
    });
  };
  summed(any, [](const Collectives& ranks, const Tensor& x) { return ranks.all_reduce(x); });
  summed(any, [](const Collectives& ranks, const Tensor& x) { return ranks.all_gather(x * x); });
  summed(any, [](const Collectives& ranks, const Tensor& x) {
    return ranks.all_gather(x.t()).transpose(0, 1);
  });
  summed(of_each_rank,
         [](const Collectives& ranks, const Tensor& x) { return ranks.reduce_scatter(x); });
  summed(of_each_rank,
         [](const Collectives& ranks, const Tensor& x) { return ranks.all_to_all(x * x); });
  for (const int root : {0, 1}) {
    summed(any, [&](const Collectives& ranks, const Tensor& x) {
      return ranks.broadcast(x, root % ranks.size());
    });
    // Backward must go on to the all_reduce on the other ranks, too.
    summed(any, [&](const Collectives& ranks, const Tensor& x) {
      return ranks.broadcast(ranks.all_reduce(x), root % ranks.size());
    });
  }
  // Several operations in one graph; the result of one is used twice.
  summed(of_each_rank, [](const Collectives& ranks, const Tensor& x) {
    const Tensor y = ranks.all_reduce(x);
    return ranks.reduce_scatter(y * x) * ranks.all_to_all(y).sum();
  });
}

TEST(CollectivesGradient, OfMessagesFromRankToRank) {
  check(Meaning::summed, any, [](const Collectives& ranks, const Tensor& x) {
    const int rank = ranks.rank();
    const Tensor like = numbers(0, {3, 2}).set_requires_grad(x.requires_grad());
    const Tensor y =
        rank == 0 ? x : x * ranks.recv(like, rank - 1).t() + ranks.recv(like, rank - 1).t();
    const Tensor loss = loss_of(y, rank);
    return rank + 1 == ranks.size()
               ? loss
               : loss + ranks.send(y.t(), rank + 1) + ranks.send(y.t() * 2, rank + 1);
  });
}

TEST(CollectivesGradient, OfOneLossThatAllRanksHave) {
  const auto own = [](const Collectives& ranks, const Tensor& x) {  // what a rank computes alone
    return x * x * numbers(10 + static_cast<std::uint64_t>(ranks.rank()), x.shape());
  };
  const auto replicated = [](const auto& f) {
    check(Meaning::replicated, divisible,
          [&](const Collectives& ranks, const Tensor& x) { return loss_of(f(ranks, x * x), 0); });
  };
  replicated([&](const Collectives& ranks, const Tensor& x) {
    return ranks.reduce_from(own(ranks, ranks.copy_to(x)));
  });
  for (const int dim : {0, -2}) {
    replicated([&](const Collectives& ranks, const Tensor& x) {
      return ranks.gather_from(own(ranks, ranks.split_to(x, dim)), dim);
    });
    replicated([&](const Collectives& ranks, const Tensor& x) {
      return ranks.gather_from(own(ranks, ranks.split_to(x.t(), 1)), 1);
    });
    replicated([&](const Collectives& ranks, const Tensor& x) {
      return ranks.gather_from(own(ranks, ranks.copy_to(x)), dim);
    });
    replicated([&](const Collectives& ranks, const Tensor& x) {
      return ranks.reduce_from(own(ranks, ranks.split_to(x, dim)));
    });
  }
}

// A weight that one rank alone has, between f and g.
TEST(CollectivesGradient, OfOneLossByWhatOneRankHas) {
  check(Meaning::own, any, [](const Collectives& ranks, const Tensor& weight) {
    const Tensor x = numbers(5, weight.shape()).set_requires_grad(weight.requires_grad());
    return loss_of(ranks.reduce_from(ranks.copy_to(x) * weight), 0);
  });
  check(Meaning::own, any, [](const Collectives& ranks, const Tensor& weight) {
    return loss_of(ranks.gather_from(weight, 1), 0);
  });
}

// --- Values --------------------------------------------------------------------------------------

RANKS_TEST(CollectivesTest, Values, 3) {
  const Collectives ranks = of(group);
  const int rank = group.rank();
  const Tensor x = raw::add(arange(0, 3), 10.0 * rank);  // 0 1 2, 10 11 12, 20 21 22
  using Floats = std::vector<float>;
  const auto first = static_cast<float>(rank);
  EXPECT_EQ(ranks.all_reduce(x).to_vector<float>(), (Floats{30, 33, 36}));
  EXPECT_EQ(ranks.all_gather(x).to_vector<float>(), (Floats{0, 1, 2, 10, 11, 12, 20, 21, 22}));
  EXPECT_EQ(ranks.reduce_scatter(x).to_vector<float>(), (Floats{30 + 3 * first}));
  EXPECT_EQ(ranks.all_to_all(x).to_vector<float>(), (Floats{first, 10 + first, 20 + first}));
  EXPECT_EQ(ranks.broadcast(x, 1).to_vector<float>(), (Floats{10, 11, 12}));
  EXPECT_EQ(ranks.split_to(x, 0).to_vector<float>(), (Floats{11 * first}));
  EXPECT_EQ(ranks.gather_from(x, 0).to_vector<float>(), (Floats{0, 1, 2, 10, 11, 12, 20, 21, 22}));
  EXPECT_EQ(x.to_vector<float>()[0], 10 * first);  // the input has not changed
  // Nothing and one number, integers.
  EXPECT_EQ(ranks.all_reduce(empty({0, 2})).shape(), (Shape{0, 2}));
  EXPECT_EQ(ranks.all_gather(empty({0})).shape(), (Shape{3, 0}));
  EXPECT_EQ(ranks.split_to(empty({0}), 0).shape(), Shape{0});
  EXPECT_EQ(ranks.all_reduce(scalar(rank)).item<double>(), 3);
  EXPECT_EQ(ranks.all_gather(scalar(rank)).shape(), Shape{3});
  EXPECT_EQ(ranks.all_reduce(full({1}, rank, DType::i64)).item<std::int64_t>(), 3);
}

// --- Ranks that do not do the same ---------------------------------------------------------------

// Both ranks must get an error, and one of them Comm with `text`.
void expect_comm(const std::string& text,
                 const std::function<void(const Collectives&, int rank)>& f,
                 const std::string& backend = "threads") {
  std::string said[2];
  comm::testing::in_groups(backend, 2, [&](comm::ProcessGroup& group) {
    try {
      f(of(group), group.rank());
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::Comm || error.code() == ErrorCode::PeerFailed);
      said[group.rank()] = error.what();
    }
  });
  EXPECT_NE(said[0], "");
  EXPECT_NE(said[1], "");
  EXPECT_NE((said[0] + said[1]).find(text), std::string::npos) << said[0] << '\n' << said[1];
}

Tensor leaf() { return full({2}, 1.0).set_requires_grad(); }

TEST(CollectivesErrorTest, ARankThatLeavesACallOutIsNamed) {
  expect_comm(
      "rank 0 calls operation 1, all_reduce of 2 f32 (all_reduce of f32 [2]), rank 1 calls "
      "operation 1, all_gather of 2 f32 (all_gather of f32 [2]); all ranks must call the same",
      [](const Collectives& ranks, int rank) {
        if (rank == 0) ranks.all_reduce(ones({2}));
        ranks.all_gather(ones({2}));
      });
  expect_comm(
      "(all_reduce of f32 [2]) in a, rank 1 calls operation 2, all_reduce of 2 f32 "
      "(all_reduce of f32 [2]) in b;",
      [](const Collectives& ranks, int rank) {
        ranks.all_reduce(ones({2}));
        const PathScope scope(rank == 0 ? "a" : "b");
        ranks.all_reduce(ones({2}));
      });
  expect_comm(
      "(all_reduce of f32 [2,3]), rank 1 calls operation 1, all_reduce of 6 f32 "
      "(all_reduce of f32 [3,2]);",
      [](const Collectives& ranks, int rank) { ranks.all_reduce(ones({2 + rank, 3 - rank})); });
  expect_comm(
      "(all_reduce of f32 [2], to be differentiated), rank 1 calls operation 1, all_reduce of 2 "
      "f32 (all_reduce of f32 [2]);",
      [](const Collectives& ranks, int rank) {
        ranks.all_reduce(leaf().set_requires_grad(rank == 0));
      });
}

TEST(CollectivesErrorTest, EveryBackendFindsAnExchangeThatIsLeftOut) {
  for (const std::string backend : {"threads", "ring", "shm", "gloo"}) {
    if (!comm::testing::missing_backend(backend).empty()) continue;
    SCOPED_TRACE(backend);
    expect_comm(
        "all_to_all of 2 f32 (all_to_all of f32 [2])",
        [](const Collectives& ranks, int rank) {
          if (rank == 0) ranks.all_to_all(ones({2}));
          ranks.all_reduce(ones({2}));
        },
        backend);
  }
}

TEST(CollectivesErrorTest, RootsAndDimensionsAreCompared) {
  expect_comm(
      "rank 0 calls operation 1, barrier (broadcast with root 0 of f32 [2]), rank 1 calls "
      "operation 1, barrier (broadcast with root 1 of f32 [2]);",
      [](const Collectives& ranks, int rank) { ranks.broadcast(ones({2}), rank); });
  expect_comm(
      "(gather_from with dim 0 of f32 [2,2]), rank 1 calls operation 2, all_gather of 4 f32 "
      "(gather_from with dim 1 of f32 [2,2]);",
      [](const Collectives& ranks, int rank) {
        ranks.gather_from(ones({2, 2}), rank == 0 ? 1 : -1);  // the same one
        ranks.gather_from(ones({2, 2}), rank);
      });
}

TEST(CollectivesErrorTest, ATensorOnAnotherDeviceIsRefused) {
  set_host_devices(2);
  comm::run_ranks(2, [](comm::ProcessGroup& group) {
    const Collectives ranks = of(group);
    ranks.all_reduce(ones({2}));
    EXPECT_WEFT_ERROR(ranks.copy_to(ones({2}, {DType::f32, Device("cpu:1")})), Unsupported,
                      "[collectives] got a tensor on cpu:1 after one on cpu:0");
  });
}

TEST(CollectivesErrorTest, ALossThatOneRankDoesNotUseIsFoundInBackward) {
  expect_comm(
      "(backward of all_gather, f32 [2,2]), rank 1 calls operation 3, all_reduce of 2 f32 "
      "(backward of all_reduce, f32 [2]);",
      [](const Collectives& ranks, int rank) {
        const Tensor x = leaf(), y = ranks.all_reduce(x), z = ranks.all_gather(x);
        (rank == 0 ? y.sum() + z.sum() : y.sum()).backward();
      });
}

TEST(CollectivesErrorTest, ARankThatCallsNothingMoreLetsTheOthersTimeOut) {
  std::latch done(1);
  comm::run_ranks(2,
                  [&](comm::ProcessGroup& group) {
                    if (group.rank() == 1) return done.wait();
                    EXPECT_WEFT_ERROR(of(group).all_reduce(ones({2})), Timeout, "rank 1");
                    done.count_down();
                  },
                  {.timeout = std::chrono::milliseconds(300)});
}

TEST(CollectivesErrorTest, MessagesThatDoNotFitAreNamed) {
  const auto refused = [](const std::string& text, const auto& send, const auto& receive) {
    comm::run_ranks(2, [&](comm::ProcessGroup& group) {
      const Collectives ranks = of(group);
      if (group.rank() == 0) {
        send(ranks);
        group.barrier().wait();
      } else {
        EXPECT_WEFT_ERROR(receive(ranks), Comm, text);
        group.recv(empty({2}), 0).wait();  // the values that were sent after the text
        group.barrier().wait();
      }
    });
  };
  const auto send = [](const Collectives& ranks) { ranks.send(ones({2}), 1); };
  refused(
      "[collectives] rank 0 of the group sends message 1: f32 [2], rank 1 expects message 1: "
      "f32 [3]",
      send, [](const Collectives& ranks) { ranks.recv(ones({3}), 0); });
  refused("expects message 1: f32 [2], to be differentiated", send,
          [](const Collectives& ranks) { ranks.recv(leaf(), 0); });
  refused(
      "sends message 1: f32 [2] at step 7, rank 1 expects message 1: f32 [2] at step 6",
      [&](const Collectives& ranks) {
        const Scoped step(&ThreadState::step, 7);
        send(ranks);
      },
      [](const Collectives& ranks) {
        const Scoped step(&ThreadState::step, 6);
        ranks.recv(ones({2}), 0);
      });
  // Rank 0 has left out the message with tag 1.
  refused(
      "sends message 1: f32 [2] with tag 2, rank 1 expects message 1: f32 [2] with tag 1",
      [](const Collectives& ranks) { ranks.send(ones({2}), 1, 2); },
      [](const Collectives& ranks) { ranks.recv(ones({2}), 0, 1); });
}

// The receiver takes the second message for the first, but does not come to the end of its step.
TEST(CollectivesErrorTest, ASendThatIsLeftOutEndsTheStep) {
  for (const bool goes_on : {false, true}) {
    std::latch done(1);
    comm::run_ranks(
        2,
        [&](comm::ProcessGroup& group) {
          const Collectives ranks = of(group);
          const Scoped now(&ThreadState::step, 0);
          if (group.rank() == 0) {
            ranks.send(full({2}, 5.0), 1);  // the first one is left out
            const Scoped next(&ThreadState::step, 1);
            if (goes_on) {
              // PeerFailed, or Timeout if rank 1 is slow to leave.
              try {
                ranks.send(ones({2}), 1);
                ADD_FAILURE() << "nobody has received it";
              } catch (const Error& e) {
                EXPECT_TRUE(e.code() == ErrorCode::PeerFailed || e.code() == ErrorCode::Timeout)
                    << e.what();
                EXPECT_HAS(e.what(), "rank 1");
              }
            }
            return done.wait();
          }
          EXPECT_EQ(ranks.recv(ones({2}), 0).to_vector<float>()[0], 5);
          if (goes_on) {
            EXPECT_WEFT_ERROR(ranks.recv(ones({2}), 0), Comm,
                              "sends message 2: f32 [2] at step 1, rank 1 expects "
                              "message 2: f32 [2] at step 0");
          } else {
            EXPECT_WEFT_ERROR(ranks.recv(ones({2}), 0), Timeout, "rank 0");
          }
          done.count_down();
        },
        {.timeout = std::chrono::milliseconds(300)});
  }
}

RANKS_TEST(CollectivesErrorTest, ShapesAndArgumentsAreChecked, 2) {
  const Collectives ranks = of(group);
  EXPECT_WEFT_ERROR(ranks.reduce_scatter(ones({3})), Shape,
                    "got [3], expected a first dimension of 2, the number of ranks");
  EXPECT_WEFT_ERROR(ranks.reduce_scatter(scalar(1)), Shape, "got []");
  EXPECT_WEFT_ERROR(ranks.all_to_all(ones({3})), Shape, "expected two of one shape");
  EXPECT_WEFT_ERROR(ranks.split_to(ones({3, 2}), 0), Shape,
                    "dimension 0 of [3,2] does not divide into 2 parts");
  EXPECT_WEFT_ERROR(ranks.split_to(ones({2}), 1), Shape, "collectives");
  EXPECT_WEFT_ERROR(ranks.gather_from(scalar(1), 0), Shape, "collectives");
  EXPECT_WEFT_ERROR(ranks.broadcast(ones({2}), 2), InvalidArgument, "root is rank 2");
  EXPECT_WEFT_ERROR(Collectives(nullptr), InvalidArgument, "there is no process group");
  EXPECT_EQ(ranks.all_reduce(ones({2})).to_vector<float>()[0], 2);  // the group still works
}

}  // namespace
}  // namespace weft::parallel
