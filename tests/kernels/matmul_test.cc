// Every way to multiply, against plain loops in f64.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "weft/tests/core/heap_count.h"
#include "weft/tests/kernels/matmul_trial.h"
#include "weft/tests/kernels/plans.h"

// There only if the GPUs are emulated.
extern "C" [[gnu::weak]] const char* weft_emulated_take_counts();

namespace weft {
namespace {

using Case = testing::MatmulCase;
using Problem = testing::MatmulTrial;
using testing::Buffer;
using testing::DeviceBytes;
using testing::Lay;

class Matmul : public testing::DeviceTest {
 protected:
  const MatmulKernels& matmul() const { return kernels().matmul; }

  const Scoped<bool> timed{&ThreadState::benchmark, true};  // so that more kernels are used

  void check(const Case& c, DType dtype, Problem problem, bool exact) {
    SCOPED_TRACE(::testing::PrintToString(c) + " " + to_string(dtype));
    testing::for_each_plan<MatmulPlan, MatmulArgs>(
        device(), matmul().plan, problem.args, [&](const MatmulPlan& plan) {
          problem.expect(problem.run(stream, matmul(), plan), dtype, c.k, exact);
        });
  }

  // What a real library has kernels for is its own matter.
  void expect_fused(bool fused, DType dtype) const {
    const bool known = device().is_cpu() || weft_emulated_take_counts;
    if (known) {
      EXPECT_EQ(fused, device().is_cuda() && dtype != DType::f64);
    }
  }

  void check_whole(const Case& c, DType dtype) {
    // bf16 represents integers exactly up to 256.
    const int bound = dtype == DType::bf16 ? 1 : 4;
    check(c, dtype,
          Problem(device(), dtype, c, testing::whole_values(c.batch * c.m * c.k, bound, 1),
                  testing::whole_values(c.batch * c.k * c.n, bound, 2),
                  testing::whole_values(c.batch * c.m * c.n, bound, 3),
                  testing::whole_values(c.n, bound, 4)),
          true);
  }

  void check_real(const Case& c, DType dtype) {
    check(c, dtype,
          Problem(device(), dtype, c, testing::random_values(c.batch * c.m * c.k, -1, 1, 1),
                  testing::random_values(c.batch * c.k * c.n, -1, 1, 2),
                  testing::random_values(c.batch * c.m * c.n, -1, 1, 3),
                  testing::random_values(c.n, -1, 1, 4)),
          false);
  }
};

constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::bf16};

TEST_P(Matmul, EveryLayoutIsExactOnWholeNumbers) {
  for (const DType dtype : kDtypes) {
    for (const Lay a : {Lay::rows, Lay::cols, Lay::rows_padded, Lay::cols_padded}) {
      for (const Lay b : {Lay::rows, Lay::cols, Lay::rows_padded, Lay::cols_padded}) {
        check_whole({1, 13, 21, 37, a, b}, dtype);
        check_whole({3, 5, 7, 9, a, b, true}, dtype);
      }
    }
  }
}

TEST_P(Matmul, SizesAroundTheBlocksAreExactOnWholeNumbers) {
  for (const DType dtype : kDtypes) {
    for (const std::int64_t m : {1, 2, 8, 33}) {
      for (const std::int64_t n : {1, 7, 48, 65}) {
        for (const std::int64_t k : {1, 3, 64}) {
          check_whole({1, m, n, k, Lay::rows, Lay::cols, true}, dtype);
          check_whole({1, m, n, k, Lay::cols, Lay::rows, false, true}, dtype);
        }
      }
    }
  }
}

TEST_P(Matmul, SharedOperandsOfABatch) {
  for (const DType dtype : kDtypes) {
    check_whole({4, 6, 10, 12, Lay::rows, Lay::shared, true}, dtype);
    check_whole({4, 6, 10, 12, Lay::shared, Lay::rows}, dtype);
    check_whole({4, 6, 10, 12, Lay::shared, Lay::shared, false, true}, dtype);
    check_whole({4, 6, 10, 12, Lay::cols, Lay::shared}, dtype);
    check_whole({4, 1, 10, 12, Lay::rows_padded, Lay::shared, true}, dtype);
  }
}

TEST_P(Matmul, NothingToSumGivesBiasZeroOrWhatWasThere) {
  for (const DType dtype : kDtypes) {
    check_whole({1, 4, 5, 0}, dtype);
    check_whole({2, 4, 5, 0, Lay::rows, Lay::rows, true}, dtype);
    check_whole({1, 4, 5, 0, Lay::rows, Lay::rows, false, true}, dtype);
  }
}

// A relu in the same pass has the bits of one after it, with every way to multiply.
TEST_P(Matmul, ReluInTheSamePass) {
  const Scoped fixed(&ThreadState::deterministic, true);
  for (const Case& c : {Case{1, 33, 70, 40, Lay::rows, Lay::cols, true}, Case{1, 5, 7, 3},
                        Case{3, 6, 10, 12, Lay::rows, Lay::shared, true},
                        Case{2, 9, 8, 20, Lay::cols, Lay::rows, false, true},
                        Case{1, 32, 32, 4200, Lay::rows, Lay::cols, true},
                        Case{2, 4, 5, 0, Lay::rows, Lay::rows, true}}) {
    for (const DType dtype : kDtypes) {
      SCOPED_TRACE(::testing::PrintToString(c) + " " + to_string(dtype));
      std::vector<double> bias = testing::random_values(c.n, -1, 1, 4);
      bias.front() = -0.0;
      bias.back() = std::numeric_limits<double>::quiet_NaN();
      std::vector<double> a = testing::random_values(c.batch * c.m * c.k, -1, 1, 1);
      if (c.k > 0) std::fill_n(a.begin(), c.k, -0.0);
      Problem problem(device(), dtype, c, a, testing::random_values(c.batch * c.k * c.n, 0, 1, 2),
                      testing::random_values(c.batch * c.m * c.n, -1, 1, 3), bias);
      testing::for_each_plan<MatmulPlan, MatmulArgs>(
          device(), matmul().plan, problem.args, [&](const MatmulPlan& plan) {
            problem.args.then = Activation::none;
            const std::vector<double> plain = problem.run(stream, matmul(), plan);
            problem.args.then = Activation::relu;
            EXPECT_EQ(testing::bits_of(problem.run(stream, matmul(), plan)),
                      testing::bits_of(testing::relu_of(plain)));
          });
      const PlanRef<MatmulPlan> plan = matmul().plan(problem.args);
      problem.args.then = Activation::none;
      EXPECT_EQ(matmul().plan(problem.args).get(), plan.get());
    }
  }
}

// What a plan may do beside the product: only on CUDA, where cuBLASLt has a kernel for it.
TEST_P(Matmul, SumsOfRowsInTheSamePass) {
  for (const Case& c : {Case{1, 24, 40, 32, Lay::cols}, Case{1, 16, 8, 64}, Case{1, 8, 16, 8}}) {
    for (const DType dtype : kDtypes) {
      SCOPED_TRACE(::testing::PrintToString(c) + " " + to_string(dtype));
      Problem problem(device(), dtype, c, testing::whole_values(c.m * c.k, 2, 1),
                      testing::whole_values(c.k * c.n, 1, 2), {}, {});
      problem.args.row_sums.shape = {c.m};
      bool fused = false;
      testing::for_each_plan<MatmulPlan, MatmulArgs>(
          device(), matmul().plan, problem.args, [&](const MatmulPlan& plan) {
            if (!plan.fuses(problem.args)) return;
            fused = true;
            const std::vector<double> zeros(static_cast<std::size_t>(c.m));
            Buffer sums(device(), dtype, {c.m}, zeros);
            problem.args.row_sums = sums.view();
            problem.expect(problem.run(stream, matmul(), plan), dtype, c.k, true);
            const std::vector<double> a = problem.a->values(), got = sums.values();
            for (std::size_t m = 0; m < got.size(); ++m) {
              const auto row = a.begin() + std::ptrdiff_t(m) * c.k;
              EXPECT_EQ(got[m], std::accumulate(row, row + c.k, 0.0)) << m;
            }
          });
      expect_fused(fused, dtype);
    }
  }
}

// 200 columns are more than a group of bits. The first row's sums are the bias: NaN, 0, -0, ...
TEST_P(Matmul, MaskOfAReluServesAnotherProduct) {
  for (const std::int64_t n : {40, 200}) {
    const Case first{1, 24, n, 32, Lay::rows, Lay::cols, true}, second{1, 24, n, 16};
    std::vector<double> x = testing::random_values(24 * 32, -1, 1, 1);
    std::fill_n(x.begin(), 32, 0.0);
    std::vector<double> bias = testing::random_values(n, -1, 1, 3);
    bias[0] = std::numeric_limits<double>::quiet_NaN();
    bias[1] = 0;
    bias[2] = -0.0;
    for (const DType dtype : kDtypes) {
      SCOPED_TRACE(std::to_string(n) + " columns, " + to_string(dtype));
      Problem forward(device(), dtype, first, x, testing::random_values(32 * n, -1, 1, 2), {},
                      bias);
      Problem backward(device(), dtype, second, testing::random_values(24 * 16, -1, 1, 4),
                       testing::random_values(16 * n, -1, 1, 5), {}, {});
      bool fused = false;
      forward.args.then = Activation::relu;
      testing::for_each_plan<MatmulPlan, MatmulArgs>(
          device(), matmul().plan, forward.args, [&](const MatmulPlan& plan) {
            if (!plan.fuses(forward.args)) return;
            const std::vector<double> y = forward.run(stream, matmul(), plan);
            const Shape of_mask{24, mask_bytes(n)};
            const std::vector<double> zeros(static_cast<std::size_t>(numel(of_mask)));
            Buffer mask(device(), DType::u8, of_mask, zeros);
            forward.args.mask = mask.view();
            EXPECT_EQ(testing::bits_of(forward.run(stream, matmul(), plan)), testing::bits_of(y));
            forward.args.mask = backward.args.mask = View();
            const std::vector<double> want =
                backward.run(stream, matmul(), *matmul().plan(backward.args));
            backward.args.mask = mask.view();
            const PlanRef<MatmulPlan> masked = matmul().plan(backward.args);
            if (!masked->fuses(backward.args)) return;
            fused = true;
            const std::vector<double> got = backward.run(stream, matmul(), *masked);
            for (std::size_t i = 0; i < y.size(); ++i) {
              // The same sums, but an algorithm of another order may give them.
              const double bound =
                  2 * testing::sum_bound(dtype, 17, backward.magnitude[i], want[i]);
              const bool passes = y[i] != 0;
              EXPECT_NEAR(got[i], passes ? want[i] : 0, passes ? bound : 0) << i;
            }
          });
      expect_fused(fused, dtype);
    }
  }
}

TEST_P(Matmul, RealValuesStayWithinTheRoundingBound) {
  for (const DType dtype : kDtypes) {
    check_real({1, 64, 128, 784, Lay::rows, Lay::cols, true}, dtype);         // Linear forward
    check_real({1, 64, 784, 128}, dtype);                                     // its dX
    check_real({1, 128, 784, 64, Lay::cols, Lay::rows, false, true}, dtype);  // its dW, accumulated
    check_real({5, 33, 17, 65}, dtype);
  }
}

// bf16 represents integers exactly up to 256, so it would round most of these.
TEST_P(Matmul, Bf16OperandsMayGiveF32Sums) {
  for (const Case& c : {Case{1, 33, 65, 700}, Case{3, 5, 7, 300, Lay::rows, Lay::cols},
                        Case{2, 9, 16, 64, Lay::cols, Lay::shared},
                        Case{4, 6, 10, 500, Lay::rows_padded, Lay::rows}, Case{1, 4, 5, 0},
                        Case{1, 13, 21, 37, Lay::rows, Lay::rows, false, true}}) {
    check(c, DType::bf16,
          Problem(device(), DType::bf16, c, testing::whole_values(c.batch * c.m * c.k, 16, 1),
                  testing::whole_values(c.batch * c.k * c.n, 16, 2),
                  testing::whole_values(c.batch * c.m * c.n, 16, 3), {}, DType::f32),
          true);
  }
}

// Few outputs and a long sum: for kernels that split the sum.
TEST_P(Matmul, LongSums) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    check_real({1, 32, 32, 9001, Lay::rows, Lay::cols, true}, dtype);
    check_real({1, 30, 18, 9001, Lay::cols, Lay::rows}, dtype);
    check_real({1, 3, 5, 20000, Lay::rows, Lay::cols, false, true}, dtype);
    check_whole({1, 9, 5, 5000, Lay::rows_padded, Lay::cols_padded}, dtype);
  }
}

TEST_P(Matmul, WideAndTallAreExactOnWholeNumbers) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    check_whole({1, 32, 3000, 32, Lay::rows, Lay::cols, true}, dtype);
    check_whole({1, 3000, 32, 32, Lay::cols, Lay::rows}, dtype);
    check_whole({1, 300, 500, 300}, dtype);
  }
}

TEST_P(Matmul, DeterministicRunsAreBitEqual) {
  const Case c{1, 32, 40, 5000, Lay::rows, Lay::cols, true};
  for (const DType dtype : kDtypes) {
    const Scoped fixed(&ThreadState::deterministic, true);
    Problem problem(device(), dtype, c, testing::random_values(c.m * c.k, -1, 1, 1),
                    testing::random_values(c.k * c.n, -1, 1, 2), {},
                    testing::random_values(c.n, -1, 1, 4));
    const PlanRef<MatmulPlan> plan = matmul().plan(problem.args);
    const std::vector<double> first = problem.run(stream, matmul(), *plan);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(first, problem.run(stream, matmul(), *plan));
    if (device().is_cpu()) {  // also with a new plan
      const auto again = cpu::matmul_candidates(problem.args).front().make();
      ASSERT_EQ(first, problem.run(stream, matmul(), *again));
    }
  }
}

TEST_P(Matmul, PlansAreKeptPerProblemAndTeam) {
  const Case c{1, 96, 128, 112};  // enough work for a team
  Problem problem(device(), DType::f32, c, testing::whole_values(c.m * c.k, 4, 1),
                  testing::whole_values(c.k * c.n, 4, 2), {}, {});
  const PlanRef<MatmulPlan> plan = matmul().plan(problem.args);
  EXPECT_EQ(plan.get(), matmul().plan(problem.args).get());
  EXPECT_EQ(problem.expected, problem.run(stream, matmul(), *plan));
  MatmulArgs other = problem.args;
  other.accumulate = true;
  EXPECT_NE(plan.get(), matmul().plan(other).get());
  if (device().is_cpu()) {
    const Scoped threads(&ThreadState::num_threads, num_threads() + 1);
    EXPECT_NE(plan.get(), matmul().plan(problem.args).get());
  }
}

TEST_P(Matmul, FindingAPlanAgainTouchesNoHeap) {
  const Case c{1, 12, 20, 28};
  Problem problem(device(), DType::f64, c, testing::whole_values(c.m * c.k, 4, 1),
                  testing::whole_values(c.k * c.n, 4, 2), {}, {});
  const PlanRef<MatmulPlan> plan = matmul().plan(problem.args);
  const std::int64_t before = testing::heap_count();
  int same = 0;
  for (int i = 0; i < 100; ++i) same += matmul().plan(problem.args).get() == plan.get();
  EXPECT_EQ(testing::heap_count(), before);
  EXPECT_EQ(same, 100);
}

// A slice may begin anywhere: all operands, or one of them, start one element later.
TEST_P(Matmul, ViewsMayBeginAnywhere) {
  const std::int64_t m = 6, n = 10, k = 12;
  for (const DType dtype : kDtypes) {
    for (const int shifted : {0b1111, 0b0001, 0b0010, 0b0100, 0b1000}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " shifted " + std::to_string(shifted));
      std::vector<std::unique_ptr<Buffer>> owners;
      const auto place = [&](int bit, const Shape& shape, std::vector<double> values) {
        const std::int64_t shift = shifted >> bit & 1;
        values.insert(values.begin(), static_cast<std::size_t>(shift), 0);
        owners.push_back(
            std::make_unique<Buffer>(device(), dtype, Shape{std::ssize(values)}, values));
        char* const begin = owners.back()->view().as<char>();
        return View{begin + shift * static_cast<std::int64_t>(size_of(dtype)), dtype, shape,
                    contiguous_strides(shape)};
      };
      const auto a = testing::whole_values(m * k, 1, 1), b = testing::whole_values(k * n, 1, 2);
      const auto bias = testing::whole_values(n, 1, 3);
      MatmulArgs args;
      args.a = place(0, {1, m, k}, a);
      args.b = place(1, {1, k, n}, b);
      args.bias = place(2, {n}, bias);
      args.y = place(3, {1, m, n}, std::vector<double>(static_cast<std::size_t>(m * n), 0));
      testing::for_each_plan<MatmulPlan, MatmulArgs>(
          device(), matmul().plan, args, [&](const MatmulPlan& plan) {
            const DeviceBytes workspace(device(), plan.workspace_bytes);
            matmul().run(stream, plan, args, workspace.data());
            const std::vector<double> got = owners.back()->values();
            for (std::int64_t i = 0; i < m * n; ++i) {
              double want = bias[static_cast<std::size_t>(i % n)];
              for (std::int64_t l = 0; l < k; ++l) want += a[i / n * k + l] * b[l * n + i % n];
              ASSERT_EQ(got[got.size() - static_cast<std::size_t>(m * n - i)], want) << i;
            }
          });
    }
  }
}

// Two threads, one plan, separate workspaces: as in data-parallel training.
TEST_P(Matmul, ThreadsShareAPlan) {
  const Case c{1, 32, 48, 3000, Lay::rows, Lay::cols, true};
  for (const DType dtype : {DType::f32, DType::f64}) {
    Problem first(device(), dtype, c, testing::random_values(c.m * c.k, -1, 1, 1),
                  testing::random_values(c.k * c.n, -1, 1, 2), {},
                  testing::random_values(c.n, -1, 1, 4));
    Problem second(device(), dtype, c, testing::random_values(c.m * c.k, -1, 1, 5),
                   testing::random_values(c.k * c.n, -1, 1, 6), {},
                   testing::random_values(c.n, -1, 1, 7));
    testing::for_each_plan<MatmulPlan, MatmulArgs>(
        device(), matmul().plan, first.args, [&](const MatmulPlan& plan) {
          const ThreadState state = thread_state();
          const std::vector<double> alone[] = {first.run(stream, matmul(), plan),
                                               second.run(stream, matmul(), plan)};
          std::atomic<int> differing = 0;
          const auto work = [&](Problem& problem, const std::vector<double>& expected) {
            const ThreadStateGuard same(state);
            for (int i = 0; i < 3; ++i)
              differing += problem.run(stream, matmul(), plan) != expected;
          };
          std::thread other(work, std::ref(second), std::cref(alone[1]));
          work(first, alone[0]);
          other.join();
          EXPECT_EQ(differing, 0);
        });
  }
}

WEFT_ON_EVERY_DEVICE(Matmul);

}  // namespace
}  // namespace weft
