// Cross-entropy and squared error against their definitions in f64. tests/nn holds both against
// PyTorch.
#include <cmath>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

struct CrossEntropyResult {
  std::vector<double> log_probs, losses, grad, count;
  std::string told;  ///< by the error of the next wait, if a target is bad
};

/// What the kernels in f64 or, on a device, in `dtype` give.
CrossEntropyResult cross_entropy(const LossKernels& kernels, Device device, const Stream& stream,
                                 DType dtype, const CrossEntropyParams& p, std::int64_t rows,
                                 const std::vector<double>& x, const std::vector<double>& target,
                                 const std::vector<double>& grad_loss) {
  const Shape scalar, logits_shape{rows, std::ssize(x) / rows};
  const Shape loss_shape = p.reduction == Reduction::none ? Shape{rows} : scalar;
  const Buffer logits(device, dtype, logits_shape, x), labels(device, DType::i64, {rows}, target),
      upstream(device, dtype, loss_shape, grad_loss);
  const Buffer log_probs(device, dtype, logits_shape), loss(device, dtype, loss_shape),
      count(device, DType::f64, scalar), grad(device, dtype, logits_shape);
  const DeviceBytes workspace(device, kernels.cross_entropy_workspace_bytes(p, logits.view()));
  kernels.cross_entropy(stream, p, logits.view(), labels.view(), log_probs.view(), loss.view(),
                        count.view(), workspace.data());
  kernels.cross_entropy_backward(stream, p, upstream.view(), log_probs.view(), labels.view(),
                                 count.view(), grad.view());
  std::string told;
  try {
    backend(device).runtime->synchronize(stream);
  } catch (const Error& error) {
    told = error.what();
  }
  return {log_probs.values(), loss.values(), grad.values(), count.values(), told};
}

class Loss : public TargetTest {
 protected:
  /// The relative error of the definition's sum of n terms, one after the other in f64.
  static double plain_sum(std::int64_t n) { return static_cast<double>(n) * 0x1p-53; }

  CrossEntropyResult run(DType dtype, const CrossEntropyParams& p, std::int64_t rows,
                         const std::vector<double>& x, const std::vector<double>& target,
                         const std::vector<double>& grad_loss) const {
    return cross_entropy(kernels().loss, device(), stream, dtype, p, rows, x, target, grad_loss);
  }

  void check_cross_entropy(DType dtype, const CrossEntropyParams& p, std::int64_t rows,
                           std::int64_t classes) {
    SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(rows) + "x" +
                 std::to_string(classes) + " smoothing " + std::to_string(p.label_smoothing) +
                 " reduction " + std::to_string(static_cast<int>(p.reduction)));
    const bool per_row = p.reduction == Reduction::none;
    const std::vector<double> x = values_for(dtype, rows * classes, -8, 8, 3);
    std::vector<double> target = random_values(rows, 0, static_cast<double>(classes), 4);
    for (std::size_t i = 0; i < target.size(); ++i) {
      target[i] = i % 7 == 3 ? static_cast<double>(p.ignore_index) : std::floor(target[i]);
    }
    const std::vector<double> grad_loss = values_for(dtype, per_row ? rows : 1, 0.5, 2, 5);
    const CrossEntropyResult got = run(dtype, p, rows, x, target, grad_loss);
    const CrossEntropyResult want =
        cross_entropy(reference_kernels().loss, Device(), current_stream(Device()), DType::f64, p,
                      rows, x, target, grad_loss);
    // |x| < 8, so x - max loses up to 16 u, exp and log 2 ulp each, and their sum up to 16 u again.
    // Stored values are rounded once more, and the loss sums stored values.
    const double u = compute_roundoff(dtype), stored = unit_roundoff(dtype);
    const double slack = 64 * u + 16 * plain_sum(rows + classes);
    const auto near = [&](double v) { return slack + 1.01 * stored * std::abs(v); };
    EXPECT_EQ(got.told, "");
    expect_close(got.log_probs, want.log_probs, near);
    const double terms = p.reduction == Reduction::sum ? static_cast<double>(rows) : 1;
    expect_close(got.losses, want.losses,
                 [&](double v) { return (slack + 2.1 * stored * (std::abs(v) + 16)) * terms; });
    expect_equal(got.count, want.count);
    // Backward starts from the stored log-probabilities: their error is a relative error of the
    // softmax, which is at most 1. Then the product and the difference are rounded. Ignored rows
    // are exact.
    const double scale = 2 / (p.reduction == Reduction::mean ? want.count[0] : 1);
    expect_close(got.grad, want.grad, [&](double v) {
      return v == 0 ? 0 : scale * (slack + 20 * stored) + 1.01 * stored * std::abs(v);
    });
  }

  void check_all(const std::vector<std::pair<int, int>>& sizes) {
    for (const DType dtype : kFloating) {
      for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
        for (const double smoothing : {0.0, 0.1}) {
          for (const auto& [rows, classes] : sizes) {
            check_cross_entropy(dtype, {.label_smoothing = smoothing, .reduction = reduction}, rows,
                                classes);
          }
        }
      }
    }
  }
};
WEFT_ON_EVERY_TARGET(Loss);

TEST_P(Loss, CrossEntropy) {
  check_all({{1, 1},
             {1, 10},
             {64, 10},
             {7, 16},
             {5, 100},
             {3, 1000},
             {2, 1025},
             {3, 3000},
             {20, 1100},
             {300, 1000},
             {9000, 3},
             {5000, 10}});
}

// A test of its own, since emulated processors would take minutes.
TEST_P(Loss, CrossEntropyOfAMillionValues) { check_all({{1100, 1100}}); }

TEST_P(Loss, CrossEntropyIgnoresWhatIsToldTo) {
  check_cross_entropy(DType::f64, {.ignore_index = 2}, 20, 5);
  const CrossEntropyResult r = run(DType::f32, {}, 2, {1, 2, 3, 4, 5, 6}, {-100, -100}, {1});
  expect_equal(r.losses, {kNaN});
  expect_equal(r.count, {0});
  expect_equal(r.grad, {0, 0, 0, 0, 0, 0});
}

// The CPU's kernel runs only after the targets have been checked; on CUDA it runs before the answer
// of the check is known. Memory at such a position is never read.
TEST_P(Loss, CrossEntropyOfATargetThatIsNoClassIsNaNOnCuda) {
  if (device().is_cpu()) GTEST_SKIP() << "the caller checks";
  for (const DType dtype : kFloating) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const double bad : {-1.0, 3.0, 0x1p60}) {
        CrossEntropyParams p{.label_smoothing = smoothing, .reduction = Reduction::none};
        const std::vector<double> x{1, 1, 1, 2, 2, 2}, labels{1, bad};
        const CrossEntropyResult r = run(dtype, p, 2, x, labels, {1, 1});
        EXPECT_NE(r.told.find(" at position [1] is out of range [0, 3)"), std::string::npos)
            << r.told;
        EXPECT_NEAR(r.losses[0], std::log(3), 0.01);
        EXPECT_TRUE(std::isnan(r.losses[1]));
        const std::vector<double>& g = r.grad;
        EXPECT_TRUE(std::isfinite(g[0]) && std::isfinite(g[1]) && std::isfinite(g[2]));
        EXPECT_TRUE(std::isnan(g[3]) && std::isnan(g[4]) && std::isnan(g[5]));
        p.reduction = Reduction::mean;
        expect_equal(run(dtype, p, 2, x, labels, {1}).losses, {kNaN});
      }
    }
  }
}

// The loss of a target that has no probability is infinite, and NaN where smoothing leaves it out:
// (1 - e) times infinity with e = 1, as in PyTorch.
TEST_P(Loss, CrossEntropyOfAnImpossibleTarget) {
  for (const DType dtype : kFloating) {
    for (const double smoothing : {0.0, 0.5, 1.0}) {
      const CrossEntropyParams p{.label_smoothing = smoothing, .reduction = Reduction::none};
      expect_equal(run(dtype, p, 1, {1, -kInf, 1}, {1}, {1}).losses, {smoothing < 1 ? kInf : kNaN});
    }
    const CrossEntropyParams plain{.reduction = Reduction::none};
    expect_close(run(dtype, plain, 1, {1, -kInf, 1}, {0}, {1}).losses, {std::log(2)},
                 [](double) { return 0.01; });
  }
}

TEST_P(Loss, CrossEntropyOfHugeLogitsStaysFinite) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const CrossEntropyResult r =
        run(dtype, {.reduction = Reduction::none}, 2, {1e30, -1e30, 3, 3}, {0, 1}, {1, 1});
    expect_close(r.losses, {0, std::log(2)}, [](double) { return 1e-7; });
  }
}

TEST_P(Loss, MeanSquaredError) {
  for (const DType dtype : kFloating) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      for (const std::int64_t n : {1, 5, 32, 33, 64, 1000, 25088, 100001}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(n));
        const std::vector<double> a = values_for(dtype, n, -3, 3, 1),
                                  b = values_for(dtype, n, -3, 3, 2);
        const Buffer x(device(), dtype, {n}, a), t(device(), dtype, {n}, b);
        const Buffer g(device(), dtype, {}, std::vector<double>{0.75});
        Buffer loss(device(), dtype, {}), grad(device(), dtype, {n});
        const DeviceBytes workspace(device(), kernels().loss.mse_workspace_bytes(x.view()));
        kernels().loss.mse(stream, reduction, x.view(), t.view(), loss.view(), workspace.data());
        long double want = 0;
        std::vector<double> want_grad;
        const double share = reduction == Reduction::mean ? 1 / static_cast<double>(n) : 1;
        for (std::size_t i = 0; i < a.size(); ++i) {
          want += (a[i] - b[i]) * (a[i] - b[i]) * share;
          want_grad.push_back(2 * (a[i] - b[i]) * share * 0.75);
        }
        // All terms are positive: relative errors of difference, square and at most 20 + log2(n)
        // additions.
        const double u = compute_roundoff(dtype), stored = unit_roundoff(dtype);
        const double depth = 24 + std::log2(static_cast<double>(n));
        expect_close(loss.values(), {static_cast<double>(want)},
                     [&](double v) { return v * (depth * u + plain_sum(n) + 1.01 * stored); });
        kernels().loss.mse_backward(stream, reduction, g.view(), x.view(), t.view(), grad.view());
        expect_close(grad.values(), want_grad,
                     [&](double v) { return std::abs(v) * (5 * u + 1.01 * stored); });
      }
    }
  }
}

// Their mean fits into f32. On CUDA with one term of a thread and with several.
TEST_P(Loss, SquaredErrorsMayLeaveTheRangeOfF32) {
  for (const std::int64_t n : {64, 4096}) {
    const auto all = [&](double value) {
      return std::vector<double>(static_cast<std::size_t>(n), value);
    };
    const Buffer x(device(), DType::f32, {n}, all(0x1p63)),
        t(device(), DType::f32, {n}, all(-0x1p62));
    Buffer loss(device(), DType::f32, {});
    const DeviceBytes workspace(device(), kernels().loss.mse_workspace_bytes(x.view()));
    kernels().loss.mse(stream, Reduction::mean, x.view(), t.view(), loss.view(), workspace.data());
    expect_equal(loss.values(), {9 * 0x1p124});
  }
}

// As of masked classes. The sum of what is smoothed does not fit into f32, its share does.
TEST_P(Loss, ASmoothedLossFitsIntoF32) {
  const CrossEntropyParams p{.label_smoothing = 0.125, .reduction = Reduction::mean};
  const double far = -0x1p127;
  const CrossEntropyResult got = run(DType::f32, p, 1, {0, far, far, far}, {0}, {1});
  expect_equal(got.losses, {3 * 0x1p122});
}

TEST_P(Loss, MeanSquaredErrorOfNothingIsNaN) {
  const Buffer x(device(), DType::f32, {0}), t(device(), DType::f32, {0});
  Buffer loss(device(), DType::f32, {});
  const DeviceBytes workspace(device(), kernels().loss.mse_workspace_bytes(x.view()));
  kernels().loss.mse(stream, Reduction::mean, x.view(), t.view(), loss.view(), workspace.data());
  EXPECT_TRUE(std::isnan(loss.values()[0]));
  kernels().loss.mse(stream, Reduction::sum, x.view(), t.view(), loss.view(), workspace.data());
  EXPECT_EQ(loss.values()[0], 0);
}

}  // namespace
}  // namespace weft::testing
