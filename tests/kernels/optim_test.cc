// Optimiser updates against torch/optim's formulas in f64, several steps long.
#include <atomic>
#include <memory>
#include <thread>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

// Parameters of a small net and two that cross the borders of threads; an empty one, too.
constexpr std::int64_t kSizes[] = {1, 10, 0, 16, 17, 33, 1000, 30001, 5, 12345};

/// The slots of some parameters, with the same values on the device and in f64.
struct Parameters {
  struct One {
    Buffer param, grad, state1, state2;
    std::vector<double> p, g, m, v;
  };
  std::vector<std::unique_ptr<One>> all;
  std::vector<OptimSlot> slots;

  Parameters(Device device, DType dtype, bool fresh_state) {
    std::uint64_t seed = 1;
    for (const std::int64_t n : kSizes) {
      auto one = std::unique_ptr<One>(new One{{device, dtype, {n}},
                                              {device, dtype, {n}},
                                              {device, dtype, {n}},
                                              {device, dtype, {n}},
                                              {},
                                              {},
                                              {},
                                              {}});
      one->p = values_for(dtype, n, -1, 1, ++seed);
      one->g = values_for(dtype, n, -1, 1, ++seed);
      one->m.assign(static_cast<std::size_t>(n), 0);
      one->v.assign(static_cast<std::size_t>(n), 0);
      one->param.set(one->p);
      one->grad.set(one->g);
      if (fresh_state) {
        one->state1.set(one->m);
        one->state2.set(one->v);
      }
      slots.push_back({one->param.view().data, one->grad.view().data, one->state1.view().data,
                       one->state2.view().data, nullptr, n});
      all.push_back(std::move(one));
    }
  }
};

/// A scalar where the device can read it.
template <class T>
class OnDevice {
 public:
  OnDevice(Device device, T value) : bytes_(device, sizeof(T)) {
    bytes_.upload({reinterpret_cast<const unsigned char*>(&value), sizeof(T)});
  }
  const T* get() const { return static_cast<const T*>(bytes_.data()); }
  T value() const {
    T v;
    std::memcpy(&v, bytes_.download().data(), sizeof v);
    return v;
  }

 private:
  DeviceBytes bytes_;
};

class Optim : public TargetTest {
 protected:
  // Each step rounds parameter and state a few times, all below 4 in size; what a step gets wrong
  // the next one carries on. bf16 keeps 8 bits of each stored number, so there each step may move
  // the comparison by the roundings of p, m and v.
  static double bound(DType dtype, int steps) { return 16.0 * steps * unit_roundoff(dtype); }

  void check_sgd(DType dtype, SgdParams p) {
    Parameters params(device(), dtype, false);  // the first step must not read the buffer
    const OnDevice<double> lr(device(), 0.05);
    p.lr = lr.get();
    for (std::int64_t t = 1; t <= 3; ++t) {
      const OnDevice<std::int64_t> step(device(), t);
      p.step = step.get();
      auto slots = params.slots;
      if (p.momentum == 0) {
        for (OptimSlot& s : slots) s.state1 = nullptr;
      }
      kernels().optim.sgd(stream, dtype, p, slots);
      synchronize();
      for (const auto& one : params.all) {
        for (std::size_t i = 0; i < one->p.size(); ++i) {
          double g = (p.maximize ? -one->g[i] : one->g[i]) + p.weight_decay * one->p[i];
          if (p.momentum != 0) {
            double& buffer = one->m[i];
            buffer = t == 1 ? g : p.momentum * buffer + (1 - p.dampening) * g;
            g = p.nesterov ? g + p.momentum * buffer : buffer;
          }
          one->p[i] -= 0.05 * g;
        }
        const auto near = [&](double) { return bound(dtype, static_cast<int>(t)); };
        expect_close(one->param.values(), one->p, near);
        if (p.momentum != 0) expect_close(one->state1.values(), one->m, near);
        expect_equal(one->grad.values(), one->g);
      }
    }
  }

  void check_adam(DType dtype, AdamParams p) {
    Parameters params(device(), dtype, true);
    std::vector<std::unique_ptr<Buffer>> buffers;  // state3: the largest v, of one each
    std::vector<std::vector<double>> largest;
    for (std::size_t k = 0; k < params.all.size(); ++k) {
      const std::int64_t n = params.slots[k].n;
      // Some above all v, some below, some in between.
      largest.push_back(values_for(dtype, n, 0, 0.01, 77 + k));
      buffers.push_back(std::make_unique<Buffer>(device(), dtype, Shape{n}, largest.back()));
      if (p.amsgrad) params.slots[k].state3 = buffers.back()->view().data;
    }
    const double rate = 0.01;
    const OnDevice<double> lr(device(), rate);
    p.lr = lr.get();
    for (std::int64_t t = 1; t <= 3; ++t) {
      const OnDevice<std::int64_t> step(device(), t);
      p.step = step.get();
      kernels().optim.adam(stream, dtype, p, params.slots);
      synchronize();
      const double correction1 = 1 - std::pow(p.beta1, t), correction2 = 1 - std::pow(p.beta2, t);
      for (std::size_t k = 0; k < params.all.size(); ++k) {
        const auto& one = params.all[k];
        for (std::size_t i = 0; i < one->p.size(); ++i) {
          if (p.decoupled) one->p[i] *= 1 - rate * p.weight_decay;
          const double g = (p.maximize ? -one->g[i] : one->g[i]) +
                           (p.decoupled ? 0 : p.weight_decay * one->p[i]);
          one->m[i] += (1 - p.beta1) * (g - one->m[i]);
          one->v[i] = p.beta2 * one->v[i] + (1 - p.beta2) * g * g;
          if (p.amsgrad) largest[k][i] = std::max(largest[k][i], one->v[i]);
          one->p[i] -=
              rate / correction1 * one->m[i] /
              (std::sqrt(p.amsgrad ? largest[k][i] : one->v[i]) / std::sqrt(correction2) + p.eps);
        }
        const auto near = [&](double) { return bound(dtype, static_cast<int>(t)); };
        expect_close(one->param.values(), one->p, near);
        expect_close(one->state1.values(), one->m, near);
        expect_close(one->state2.values(), one->v, near);
        expect_close(buffers[k]->values(), largest[k], near);
        // The next step starts from what is stored.
        if (dtype == DType::bf16) {
          one->p = one->param.values();
          one->m = one->state1.values();
          one->v = one->state2.values();
          largest[k] = buffers[k]->values();
        }
      }
    }
  }

  void check_rmsprop(DType dtype, RmspropParams p) {
    Parameters params(device(), dtype, true);
    std::vector<std::unique_ptr<Buffer>> buffers;  // state2: the momentum, of one each
    std::vector<std::vector<double>> means;
    for (std::size_t k = 0; k < params.all.size(); ++k) {
      const std::int64_t n = params.slots[k].n;
      means.emplace_back(static_cast<std::size_t>(n), 0.0);
      buffers.push_back(std::make_unique<Buffer>(device(), dtype, Shape{n}, means.back()));
      params.slots[k].state3 = p.centered ? buffers.back()->view().data : nullptr;
      if (p.momentum == 0) params.slots[k].state2 = nullptr;
    }
    const double rate = 0.01;
    const OnDevice<double> lr(device(), rate);
    p.lr = lr.get();
    for (int t = 1; t <= 3; ++t) {
      kernels().optim.rmsprop(stream, dtype, p, params.slots);
      synchronize();
      for (std::size_t k = 0; k < params.all.size(); ++k) {
        auto& one = *params.all[k];
        for (std::size_t i = 0; i < one.p.size(); ++i) {
          const double g = (p.maximize ? -one.g[i] : one.g[i]) + p.weight_decay * one.p[i];
          one.m[i] = p.alpha * one.m[i] + (1 - p.alpha) * g * g;
          double spread = one.m[i];
          if (p.centered) {
            means[k][i] = p.alpha * means[k][i] + (1 - p.alpha) * g;
            spread = std::max(spread - means[k][i] * means[k][i], 0.0);
          }
          double update = g / (std::sqrt(spread) + p.eps);
          if (p.momentum != 0) update = one.v[i] = p.momentum * one.v[i] + update;
          one.p[i] -= rate * update;
        }
        // Updates reach 1 / sqrt(1 - alpha), and the buffer several of them.
        const auto near = [&](double) { return bound(dtype, t); };
        const auto near_buffer = [&](double v) { return bound(dtype, t) * (4 + std::abs(v)); };
        expect_close(one.param.values(), one.p, near);
        expect_close(one.state1.values(), one.m, near);
        if (p.momentum != 0) expect_close(one.state2.values(), one.v, near_buffer);
        if (p.centered) expect_close(buffers[k]->values(), means[k], near);
        if (dtype == DType::bf16) {
          one.p = one.param.values();
          one.m = one.state1.values();
          if (p.momentum != 0) one.v = one.state2.values();
          if (p.centered) means[k] = buffers[k]->values();
        }
      }
    }
  }
};
WEFT_ON_EVERY_TARGET(Optim);

TEST_P(Optim, Sgd) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    check_sgd(dtype, {});
    check_sgd(dtype, {.weight_decay = 0.1});
    check_sgd(dtype, {.momentum = 0.9});
    check_sgd(dtype, {.momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1});
    check_sgd(dtype, {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
    check_sgd(dtype, {.weight_decay = 0.1, .maximize = true});
    check_sgd(dtype, {.momentum = 0.9, .dampening = 0.3, .maximize = true});
  }
}

TEST_P(Optim, Rmsprop) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    // eps keeps the quotients of small gradients from magnifying their rounding.
    check_rmsprop(dtype, {.alpha = 0.9, .eps = 1e-2});
    check_rmsprop(dtype, {.alpha = 0.9, .eps = 1e-2, .weight_decay = 0.1, .momentum = 0.9});
    check_rmsprop(dtype, {.alpha = 0.9, .eps = 1e-1, .centered = true});
    check_rmsprop(dtype, {.alpha = 0.9, .eps = 1e-1, .momentum = 0.5, .centered = true});
    for (const double momentum : {0.0, 0.5}) {
      for (const bool centered : {false, true}) {
        check_rmsprop(dtype, {.alpha = 0.9,
                              .eps = 1e-1,
                              .weight_decay = 0.1,
                              .momentum = momentum,
                              .centered = centered,
                              .maximize = true});
      }
    }
  }
}

TEST_P(Optim, Adam) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    check_adam(dtype, {});
    check_adam(dtype, {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3});
    check_adam(dtype, {.weight_decay = 0.1});
    check_adam(dtype, {.weight_decay = 0.1, .decoupled = true});
    check_adam(dtype, {.weight_decay = 0.1, .maximize = true});
    check_adam(dtype, {.beta2 = 0.95, .amsgrad = true});
    check_adam(dtype, {.beta2 = 0.95, .weight_decay = 0.1, .amsgrad = true, .maximize = true});
    check_adam(dtype, {.weight_decay = 0.1, .decoupled = true, .amsgrad = true});
  }
}

// As torch.maximum: a NaN once met stays the largest, and an infinite v does, too.
TEST_P(Optim, AmsgradKeepsNaN) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFloating) {
    // 9 elements: vectors and a rest.
    const std::vector<double> zeros(9, 0);
    Buffer grad(device(), dtype, {9}, std::vector<double>{nan, 1, 1, inf, 0, 0, 0, 0, nan});
    Buffer param(device(), dtype, {9}, zeros), m(device(), dtype, {9}, zeros);
    Buffer v(device(), dtype, {9}, zeros);
    Buffer largest(device(), dtype, {9}, std::vector<double>{1, nan, 4, 0, 0.5, 0, 0, nan, 0});
    const OnDevice<double> lr(device(), 0.5);
    const OnDevice<std::int64_t> step(device(), 1);
    const OptimSlot slot{param.view().data, grad.view().data,    m.view().data,
                         v.view().data,     largest.view().data, 9};
    AdamParams p{.lr = lr.get(), .step = step.get(), .beta2 = 0.5, .amsgrad = true};
    kernels().optim.adam(stream, dtype, p, {&slot, 1});
    synchronize();
    const auto got = largest.values();
    const std::vector<double> want{nan, nan, 4, inf, 0.5, 0, 0, nan, nan};
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i])
          << dtype << ' ' << i << ": " << got[i];
    }
  }
}

// The first step of Adam is lr * g / (|g| + eps'), whatever the size of g.
TEST_P(Optim, AdamsFirstStepIsTheLearningRate) {
  const Buffer grad(device(), DType::f32, {4}, std::vector<double>{1e-3, -5, 100, 0});
  Buffer param(device(), DType::f32, {4}, std::vector<double>{0, 0, 0, 2});
  Buffer m(device(), DType::f32, {4}, std::vector<double>{0, 0, 0, 0});
  Buffer v(device(), DType::f32, {4}, std::vector<double>{0, 0, 0, 0});
  const OnDevice<double> lr(device(), 0.5);
  const OnDevice<std::int64_t> step(device(), 1);
  const OptimSlot slot{param.view().data, grad.view().data, m.view().data,
                       v.view().data,     nullptr,          4};
  AdamParams p;
  p.lr = lr.get();
  p.step = step.get();
  kernels().optim.adam(stream, DType::f32, p, {&slot, 1});
  synchronize();
  expect_close(param.values(), {-0.5, 0.5, -0.5, 2}, [](double) { return 1e-5; });
}

// As torch.lerp: what a factor of 0 forgets leaves no trace, however large it was. m + (g - m)
// would be 0 here.
TEST_P(Optim, FactorsOfZeroForgetLargeMoments) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    const std::vector<double> large(9, 1e20), ones(9, 1), zeros(9, 0);  // vectors and a rest
    const Buffer grad(device(), dtype, {9}, ones);
    const OnDevice<double> lr(device(), 0.5);
    const OnDevice<std::int64_t> step(device(), 3);
    for (const bool decoupled : {false, true}) {
      for (const bool amsgrad : {false, true}) {
        Buffer param(device(), dtype, {9}, zeros), m(device(), dtype, {9}, large);
        Buffer v(device(), dtype, {9}, large), most(device(), dtype, {9}, zeros);
        const OptimSlot slot{param.view().data, grad.view().data, m.view().data,
                             v.view().data,     most.view().data, 9};
        const AdamParams p{.lr = lr.get(),
                           .step = step.get(),
                           .beta1 = 0,
                           .beta2 = 0,
                           .eps = 0,
                           .decoupled = decoupled,
                           .amsgrad = amsgrad};
        kernels().optim.adam(stream, dtype, p, {&slot, 1});
        synchronize();
        expect_equal(m.values(), ones);
        expect_equal(v.values(), ones);
        expect_equal(param.values(), std::vector<double>(9, -0.5));
      }
    }
    Buffer param(device(), dtype, {9}, zeros), square(device(), dtype, {9}, zeros);
    Buffer mean(device(), dtype, {9}, large);
    const OptimSlot slot{param.view().data, grad.view().data, square.view().data,
                         nullptr,           mean.view().data, 9};
    const RmspropParams p{.lr = lr.get(), .alpha = 0, .eps = 1, .centered = true};
    kernels().optim.rmsprop(stream, dtype, p, {&slot, 1});
    synchronize();
    expect_equal(mean.values(), ones);
    expect_equal(param.values(), std::vector<double>(9, -0.5));  // g / (sqrt(1 - 1^2) + 1)
  }
}

TEST_P(Optim, SumOfSquaresInF64) {
  for (const DType dtype : kFloating) {
    const Parameters params(device(), dtype, false);
    const OnDevice<double> out(device(), -1);
    kernels().optim.sum_of_squares(stream, dtype, params.slots, const_cast<double*>(out.get()));
    synchronize();
    double want = 0;
    for (const auto& one : params.all) {
      for (const double g : one->g) want += g * g;
    }
    // Two f64 roundings per term and n additions at worst.
    EXPECT_NEAR(out.value(), want, want * 45000 * 0x1p-53);
  }
  const OnDevice<double> out(device(), -1);
  kernels().optim.sum_of_squares(stream, DType::f32, {}, const_cast<double*>(out.get()));
  synchronize();
  EXPECT_EQ(out.value(), 0);
}

// Threads share the default stream; each gets the sum of its own gradients.
TEST_P(Optim, ThreadsOnOneStreamKeepTheirSumsApart) {
  constexpr int kThreads = 4, kRounds = 100;
  std::atomic<int> wrong = 0;
  const auto work = [&](int id) {
    const std::int64_t n = 5000 * (id + 1);
    const Buffer grad(device(), DType::f32, {n},
                      std::vector<double>(static_cast<std::size_t>(n), id + 1));
    const OptimSlot slot{.grad = grad.view().data, .n = n};
    const OnDevice<double> out(device(), -1);
    const double want = static_cast<double>(n) * (id + 1) * (id + 1);  // exact
    for (int i = 0; i < kRounds; ++i) {
      kernels().optim.sum_of_squares(stream, DType::f32, {&slot, 1},
                                     const_cast<double*>(out.get()));
      wrong += out.value() != want;
    }
  };
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) threads.emplace_back(work, id);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(Optim, ScaleGrads) {
  for (const DType dtype : kFloating) {
    const Parameters params(device(), dtype, false);
    const OnDevice<double> factor(device(), 0.25);  // exact
    kernels().optim.scale_grads(stream, dtype, factor.get(), params.slots);
    synchronize();
    for (const auto& one : params.all) {
      std::vector<double> want = one->g;
      for (double& g : want) g *= 0.25;
      expect_equal(one->grad.values(), want);
      expect_equal(one->param.values(), one->p);
    }
  }
}

TEST_P(Optim, ClampGrads) {
  const double nan = std::nan("");
  for (const DType dtype : kFloating) {
    Parameters params(device(), dtype, false);
    Buffer odd(device(), dtype, {4},
               std::vector<double>{nan, std::numeric_limits<double>::infinity(), -2, -0.25});
    params.slots.push_back({.grad = odd.view().data, .n = 4});
    kernels().optim.clamp_grads(stream, dtype, 0.25, params.slots);  // exact
    synchronize();
    for (const auto& one : params.all) {
      std::vector<double> want = one->g;
      for (double& g : want) g = std::clamp(g, -0.25, 0.25);
      expect_equal(one->grad.values(), want);
      expect_equal(one->param.values(), one->p);
    }
    const auto clamped = odd.values();
    EXPECT_TRUE(std::isnan(clamped[0]));
    EXPECT_EQ(std::vector(clamped.begin() + 1, clamped.end()),
              (std::vector<double>{0.25, -0.25, -0.25}));
  }
}

TEST_P(Optim, IntegersAreUnsupported) {
  EXPECT_THROW(kernels().optim.sgd(stream, DType::i64, {}, {}), Error);
  EXPECT_THROW(kernels().optim.adam(stream, DType::i64, {}, {}), Error);
  EXPECT_THROW(kernels().optim.clamp_grads(stream, DType::i64, 1, {}), Error);
}

}  // namespace
}  // namespace weft::testing
