// Cross-entropy and squared error against their definitions in f64.
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

struct CrossEntropyResult {
  std::vector<double> log_probs, losses, grad;
  long double loss = 0;  // a plain f64 sum would be less exact than the kernel's
  double count = 0;
};

CrossEntropyResult reference(const CrossEntropyParams& p, std::int64_t rows, std::int64_t classes,
                             const std::vector<double>& x, const std::vector<double>& target,
                             const std::vector<double>& grad_loss) {
  CrossEntropyResult r;
  for (std::int64_t i = 0; i < rows; ++i) {
    r.count += target[static_cast<std::size_t>(i)] != static_cast<double>(p.ignore_index);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* row = x.data() + i * classes;
    double largest = row[0], sum = 0, all = 0;
    for (std::int64_t c = 1; c < classes; ++c) largest = std::max(largest, row[c]);
    for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
    for (std::int64_t c = 0; c < classes; ++c) {
      r.log_probs.push_back(row[c] - largest - std::log(sum));
      all -= r.log_probs.back();
    }
    const bool counts = target[static_cast<std::size_t>(i)] != static_cast<double>(p.ignore_index);
    const auto hit = static_cast<std::int64_t>(target[static_cast<std::size_t>(i)]);
    const double smooth = p.label_smoothing / static_cast<double>(classes);
    const double nll = counts ? -r.log_probs[static_cast<std::size_t>(i * classes + hit)] : 0;
    r.losses.push_back(counts ? (1 - p.label_smoothing) * nll + smooth * all : 0);
    r.loss += r.losses.back();
    double g = grad_loss[p.reduction == Reduction::none ? static_cast<std::size_t>(i) : 0];
    if (p.reduction == Reduction::mean) g /= r.count;
    for (std::int64_t c = 0; c < classes; ++c) {
      const double softmax = std::exp(r.log_probs[static_cast<std::size_t>(i * classes + c)]);
      const double wanted = (c == hit ? 1 - p.label_smoothing : 0) + smooth;
      r.grad.push_back(counts ? g * (softmax - wanted) : 0);
    }
  }
  if (p.reduction == Reduction::mean) r.loss /= r.count;
  return r;
}

class Loss : public TargetTest {
 protected:
  /// The relative error of a sum of n terms: the definition adds one after the other, in f64.
  static double plain_sum(std::int64_t n) {
    return GetParam().reference ? static_cast<double>(n) * 0x1p-53 : 0;
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
    const CrossEntropyResult want = reference(p, rows, classes, x, target, grad_loss);

    const Shape scalar, loss_shape = per_row ? Shape{rows} : scalar;
    const Buffer logits(device(), dtype, {rows, classes}, x),
        labels(device(), DType::i64, {rows}, target);
    Buffer log_probs(device(), dtype, {rows, classes}), loss(device(), dtype, loss_shape);
    Buffer count(device(), DType::f64, scalar);
    kernels().loss.cross_entropy(stream, p, logits.view(), labels.view(), log_probs.view(),
                                 loss.view(), count.view());
    // |x| < 8, so x - max loses up to 16 u, exp and log 2 ulp each, their sum up to 16 u again;
    // what is stored rounds once more, and the loss sums stored values.
    const double u = compute_roundoff(dtype), stored = unit_roundoff(dtype);
    const double slack = 64 * u + 16 * plain_sum(rows + classes);
    const auto near = [&](double v) { return slack + 1.01 * stored * std::abs(v); };
    expect_close(log_probs.values(), want.log_probs, near);
    const auto near_loss = [&](double v) { return slack + 2.1 * stored * (std::abs(v) + 16); };
    if (per_row)
      expect_close(loss.values(), want.losses, near_loss);
    else if (p.reduction == Reduction::mean)
      expect_close(loss.values(), {static_cast<double>(want.loss)}, near_loss);
    else
      expect_close(loss.values(), {static_cast<double>(want.loss)},
                   [&](double v) { return near_loss(v) * static_cast<double>(rows); });
    expect_equal(count.values(), {want.count});

    // Backward starts from the stored log-probabilities: an error of theirs is a relative error of
    // the softmax, at most 1; then the product and the difference round. Ignored rows are exact.
    Buffer grad(device(), dtype, {rows, classes});
    const Buffer g(device(), dtype, loss_shape, grad_loss);
    kernels().loss.cross_entropy_backward(stream, p, g.view(), log_probs.view(), labels.view(),
                                          count.view(), grad.view());
    const double scale = 2 / (p.reduction == Reduction::mean ? want.count : 1);
    expect_close(grad.values(), want.grad, [&](double v) {
      return v == 0 ? 0 : scale * (slack + 20 * stored) + 1.01 * stored * std::abs(v);
    });
  }
};
WEFT_ON_EVERY_TARGET(Loss);

TEST_P(Loss, CrossEntropy) {
  for (const DType dtype : kFloating) {
    for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const auto& [rows, classes] : std::vector<std::pair<int, int>>{{1, 1},
                                                                            {1, 10},
                                                                            {64, 10},
                                                                            {7, 16},
                                                                            {5, 100},
                                                                            {3, 1000},
                                                                            {2, 1025},
                                                                            {3, 3000},
                                                                            {300, 1000},
                                                                            {5000, 10}}) {
          check_cross_entropy(dtype, {.label_smoothing = smoothing, .reduction = reduction}, rows,
                              classes);
        }
      }
    }
  }
}

TEST_P(Loss, CrossEntropyIgnoresWhatIsToldTo) {
  check_cross_entropy(DType::f64, {.ignore_index = 2}, 20, 5);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Buffer logits(device(), DType::f32, {2, 3}, std::vector<double>{1, 2, 3, 4, 5, 6});
  const Buffer labels(device(), DType::i64, {2}, std::vector<double>{-100, -100});
  Buffer log_probs(device(), DType::f32, {2, 3}), loss(device(), DType::f32, {});
  Buffer count(device(), DType::f64, {}), grad(device(), DType::f32, {2, 3});
  const Buffer one(device(), DType::f32, {}, std::vector<double>{1});
  kernels().loss.cross_entropy(stream, {}, logits.view(), labels.view(), log_probs.view(),
                               loss.view(), count.view());
  expect_equal(loss.values(), {nan});
  expect_equal(count.values(), {0});
  kernels().loss.cross_entropy_backward(stream, {}, one.view(), log_probs.view(), labels.view(),
                                        count.view(), grad.view());
  expect_equal(grad.values(), {0, 0, 0, 0, 0, 0});
}

// The CPU is asked only after the targets were looked at; on CUDA that would stop the queue.
// Nothing is read at such a position, however far off.
TEST_P(Loss, CrossEntropyOfATargetThatIsNoClassIsNaNOnCuda) {
  if (device().is_cpu()) GTEST_SKIP() << "the caller checks";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Shape scalar;
  for (const DType dtype : kFloating) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const double bad : {-1.0, 3.0, 0x1p60}) {
        const Buffer logits(device(), dtype, {2, 3}, std::vector<double>{1, 1, 1, 2, 2, 2});
        const Buffer labels(device(), DType::i64, {2}, std::vector<double>{1, bad});
        Buffer log_probs(device(), dtype, {2, 3}), losses(device(), dtype, {2});
        Buffer loss(device(), dtype, scalar), count(device(), DType::f64, scalar);
        const Buffer ones(device(), dtype, {2}, std::vector<double>{1, 1});
        Buffer grad(device(), dtype, {2, 3});
        CrossEntropyParams p{.label_smoothing = smoothing, .reduction = Reduction::none};
        kernels().loss.cross_entropy(stream, p, logits.view(), labels.view(), log_probs.view(),
                                     losses.view(), count.view());
        EXPECT_NEAR(losses.values()[0], std::log(3), 0.01);
        EXPECT_TRUE(std::isnan(losses.values()[1]));
        kernels().loss.cross_entropy_backward(stream, p, ones.view(), log_probs.view(),
                                              labels.view(), count.view(), grad.view());
        const std::vector<double> g = grad.values();
        EXPECT_TRUE(std::isfinite(g[0]) && std::isfinite(g[1]) && std::isfinite(g[2]));
        EXPECT_TRUE(std::isnan(g[3]) && std::isnan(g[4]) && std::isnan(g[5]));
        p.reduction = Reduction::mean;
        kernels().loss.cross_entropy(stream, p, logits.view(), labels.view(), log_probs.view(),
                                     loss.view(), count.view());
        expect_equal(loss.values(), {nan});
      }
    }
  }
}

TEST_P(Loss, CrossEntropyOfHugeLogitsStaysFinite) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Buffer logits(device(), dtype, {2, 2}, std::vector<double>{1e30, -1e30, 3, 3});
    const Buffer labels(device(), DType::i64, {2}, std::vector<double>{0, 1});
    Buffer log_probs(device(), dtype, {2, 2}), loss(device(), dtype, {2});
    Buffer count(device(), DType::f64, {});
    kernels().loss.cross_entropy(stream, {.reduction = Reduction::none}, logits.view(),
                                 labels.view(), log_probs.view(), loss.view(), count.view());
    expect_close(loss.values(), {0, std::log(2)}, [](double) { return 1e-7; });
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
