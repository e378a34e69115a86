// Optimiser updates over several steps against their definition in f64. tests/optim holds both
// against PyTorch.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <thread>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

// Parameters of a small net, two that are divided between threads, and an empty one.
constexpr std::int64_t kSizes[] = {1, 10, 0, 16, 17, 33, 1000, 30001, 5, 12345};

/// The slots of some parameters: param, grad and the three states, all with values unless
/// `fresh_state` is false, which leaves the states as they are in memory.
struct Parameters {
  std::vector<std::array<std::unique_ptr<Buffer>, 5>> arrays;
  std::vector<OptimSlot> slots;

  /// Values are those of `values_of`, in the dtype `dtype`.
  Parameters(Device device, DType dtype, DType values_of, bool fresh_state) {
    std::uint64_t seed = 1;
    for (const std::int64_t n : kSizes) {
      auto& [param, grad, state1, state2, state3] = arrays.emplace_back();
      for (auto* array : {&param, &grad, &state1, &state2, &state3}) {
        *array = std::make_unique<Buffer>(device, dtype, Shape{n});
      }
      param->set(values_for(values_of, n, -1, 1, ++seed));
      grad->set(values_for(values_of, n, -1, 1, ++seed));
      if (fresh_state) {
        for (const auto* state : {&state1, &state2}) {
          (*state)->set(std::vector<double>(static_cast<std::size_t>(n), 0));
        }
        // As the largest v, some are above all v, some below, some in between.
        state3->set(values_for(values_of, n, 0, 0.01, 77 + seed));
      }
      slots.push_back({param->view().data, grad->view().data, state1->view().data,
                       state2->view().data, state3->view().data, n});
    }
  }
  std::vector<double> gradient(std::size_t k) const { return arrays[k][1]->values(); }
  std::vector<double> param(std::size_t k) const { return arrays[k][0]->values(); }
};

/// A scalar in the device's memory.
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
  // Each step rounds parameter and state a few times, all below 4 in size, and later steps carry an
  // error on. bf16 is computed in f32 and rounded once to be stored, and there each step of the
  // definition starts from the stored numbers.
  static double bound(DType dtype, int steps, double size, double value) {
    if (dtype != DType::bf16) return 16.0 * steps * unit_roundoff(dtype) * size;
    return 16.0 * compute_roundoff(dtype) * size + 1.01 * unit_roundoff(dtype) * std::abs(value);
  }

  /// Three steps of an update, as the definition in f64 makes them. run(kernels, stream, dtype, lr,
  /// step, slots) makes one; `used` says which states it has.
  template <class Run>
  void check(DType dtype, double rate, bool fresh_state, const std::array<bool, 3>& used, Run run,
             double of_state2 = 0) {
    const Parameters got(device(), dtype, dtype, fresh_state);
    const Parameters want(Device(), DType::f64, dtype, fresh_state);
    const auto slots_of = [&](const Parameters& params) {
      auto slots = params.slots;
      for (OptimSlot& s : slots) {
        if (!used[0]) s.state1 = nullptr;
        if (!used[1]) s.state2 = nullptr;
        if (!used[2]) s.state3 = nullptr;
      }
      return slots;
    };
    const OnDevice<double> lr(device(), rate);
    for (std::int64_t t = 1; t <= 3; ++t) {
      const OnDevice<std::int64_t> step(device(), t);
      run(kernels().optim, stream, dtype, lr.get(), step.get(), slots_of(got));
      synchronize();
      run(reference_kernels().optim, current_stream(Device()), DType::f64, &rate, &t,
          slots_of(want));
      for (std::size_t k = 0; k < got.arrays.size(); ++k) {
        for (std::size_t a = 0; a < 5; ++a) {
          if (a >= 2 && !used[a - 2]) continue;
          const std::vector<double> values = got.arrays[k][a]->values();
          expect_close(values, want.arrays[k][a]->values(), [&](double v) {
            const double size = a == 3 && of_state2 != 0 ? of_state2 + std::abs(v) : 1;
            return a == 1 ? 0 : bound(dtype, static_cast<int>(t), size, v);
          });
          // The next step starts from the stored values.
          if (dtype == DType::bf16) want.arrays[k][a]->set(values);
        }
      }
    }
  }

  void check_sgd(DType dtype, SgdParams p) {
    // The first step must not read the buffer.
    check(dtype, 0.05, false, {p.momentum != 0, false, false},
          [p](const OptimKernels& kernels, const Stream& on, DType type, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) mutable {
            p.lr = lr, p.step = step;
            kernels.sgd(on, type, p, slots);
          });
  }

  void check_adam(DType dtype, AdamParams p) {
    check(dtype, 0.01, true, {true, true, p.amsgrad},
          [p](const OptimKernels& kernels, const Stream& on, DType type, const double* lr,
              const std::int64_t* step, std::span<const OptimSlot> slots) mutable {
            p.lr = lr, p.step = step;
            kernels.adam(on, type, p, slots);
          });
  }

  void check_rmsprop(DType dtype, RmspropParams p) {
    // Updates reach 1 / sqrt(1 - alpha), and the buffer contains several of them.
    check(
        dtype, 0.01, true, {true, p.momentum != 0, p.centered},
        [p](const OptimKernels& kernels, const Stream& on, DType type, const double* lr,
            const std::int64_t*, std::span<const OptimSlot> slots) mutable {
          p.lr = lr;
          kernels.rmsprop(on, type, p, slots);
        },
        4);
  }

  void check_adadelta(DType dtype, AdadeltaParams p) {
    check(dtype, 0.5, true, {true, true, false},
          [p](const OptimKernels& kernels, const Stream& on, DType type, const double* lr,
              const std::int64_t*, std::span<const OptimSlot> slots) mutable {
            p.lr = lr;
            kernels.adadelta(on, type, p, slots);
          });
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
    // eps keeps quotients of small gradients from amplifying their rounding errors.
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

TEST_P(Optim, Adadelta) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    // eps keeps quotients of small gradients from amplifying their rounding errors.
    check_adadelta(dtype, {.eps = 1e-1});
    check_adadelta(dtype, {.rho = 0.7, .eps = 1e-1, .weight_decay = 0.1});
    check_adadelta(dtype, {.eps = 1e-1, .weight_decay = 0.1, .maximize = true});
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

// As in torch.maximum: a NaN stays the largest, and so does an infinite v.
TEST_P(Optim, AmsgradKeepsNaN) {
  for (const DType dtype : kFloating) {
    // 9 elements: whole vectors and a rest.
    const std::vector<double> zeros(9, 0);
    Buffer grad(device(), dtype, {9}, std::vector<double>{kNaN, 1, 1, kInf, 0, 0, 0, 0, kNaN});
    Buffer param(device(), dtype, {9}, zeros), m(device(), dtype, {9}, zeros);
    Buffer v(device(), dtype, {9}, zeros);
    Buffer largest(device(), dtype, {9}, std::vector<double>{1, kNaN, 4, 0, 0.5, 0, 0, kNaN, 0});
    const OnDevice<double> lr(device(), 0.5);
    const OnDevice<std::int64_t> step(device(), 1);
    const OptimSlot slot{param.view().data, grad.view().data,    m.view().data,
                         v.view().data,     largest.view().data, 9};
    AdamParams p{.lr = lr.get(), .step = step.get(), .beta2 = 0.5, .amsgrad = true};
    kernels().optim.adam(stream, dtype, p, {&slot, 1});
    synchronize();
    expect_equal(largest.values(), {kNaN, kNaN, 4, kInf, 0.5, 0, 0, kNaN, kNaN});
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

// As in torch.lerp: a factor of 0 removes the old value completely, however large it was. m + (g -
// m) would give 0 here.
TEST_P(Optim, FactorsOfZeroForgetLargeMoments) {
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    const std::vector<double> large(9, 1e20), ones(9, 1), zeros(9, 0);  // whole vectors and a rest
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

// Where gradients have become 0. Denormal numbers, at which rounding would stop a mean from
// shrinking, are slow on some processors; GPUs and the definition keep them.
TEST_P(Optim, MeansOfNoGradientsEndAtZero) {
  const bool keeps_denormals = GetParam().reference || GetParam().device == DeviceType::cuda;
  for (const DType dtype : kFloating) {
    SCOPED_TRACE(to_string(dtype));
    const double small = dtype == DType::f64 ? 1e-307 : 1e-37;
    const std::vector<double> ones(9, 1), zeros(9, 0);  // whole vectors and a rest
    const Buffer grad(device(), dtype, {9}, zeros);
    Buffer param(device(), dtype, {9}, ones), square(device(), dtype, {9}, zeros);
    Buffer mean(device(), dtype, {9}), momentum(device(), dtype, {9});
    const OnDevice<double> lr(device(), 0.5);
    const OnDevice<std::int64_t> step(device(), 3);
    const auto expect_end = [&](const OptimSlot& slot, auto kernel, const auto& p,
                                std::initializer_list<const Buffer*> ends) {
      mean.set(std::vector<double>(9, small));
      momentum.set(std::vector<double>(9, -small));
      for (int i = 0; i < 100; ++i) kernel(stream, dtype, p, std::span(&slot, 1));
      synchronize();
      for (const Buffer* end : ends) {
        for (const double x : end->values()) {
          EXPECT_LE(std::abs(x), keeps_denormals ? small / 2 : 0);
        }
      }
      expect_equal(param.values(), ones);
    };
    void* const p = param.view().data;
    void* const m = mean.view().data;
    const OptimKernels& optim = kernels().optim;
    expect_end({p, grad.view().data, m, square.view().data, nullptr, 9}, optim.adam,
               AdamParams{.lr = lr.get(), .step = step.get()}, {&mean});
    expect_end({p, grad.view().data, m, nullptr, nullptr, 9}, optim.sgd,
               SgdParams{.lr = lr.get(), .step = step.get(), .momentum = 0.9}, {&mean});
    expect_end({p, grad.view().data, square.view().data, momentum.view().data, m, 9}, optim.rmsprop,
               RmspropParams{.lr = lr.get(), .alpha = 0.9, .momentum = 0.9, .centered = true},
               {&momentum, &mean});
  }
}

TEST_P(Optim, SumOfSquaresInF64) {
  for (const DType dtype : kFloating) {
    const Parameters params(device(), dtype, dtype, false);
    const OnDevice<double> out(device(), -1);
    kernels().optim.sum_of_squares(stream, dtype, params.slots, const_cast<double*>(out.get()));
    synchronize();
    double want = 0;
    for (std::size_t k = 0; k < params.arrays.size(); ++k) {
      for (const double g : params.gradient(k)) want += g * g;
    }
    // At most two f64 roundings per term and n additions.
    EXPECT_NEAR(out.value(), want, want * 45000 * 0x1p-53);
  }
  const OnDevice<double> out(device(), -1);
  kernels().optim.sum_of_squares(stream, DType::f32, {}, const_cast<double*>(out.get()));
  synchronize();
  EXPECT_EQ(out.value(), 0);
}

// Threads share the default stream; each gets the sum of its own gradients.
TEST_P(Optim, ThreadsOnOneStreamKeepTheirSumsApart) {
  constexpr int kThreads = 4;
  // Each starts 512 blocks of 256 threads, one after the other on an emulated GPU.
  const int rounds = device().is_cpu() || every_case() ? 100 : 15;
  std::atomic<int> wrong = 0;
  const auto work = [&](int id) {
    const std::int64_t n = 5000 * (id + 1);
    const Buffer grad(device(), DType::f32, {n},
                      std::vector<double>(static_cast<std::size_t>(n), id + 1));
    const OptimSlot slot{.grad = grad.view().data, .n = n};
    const OnDevice<double> out(device(), -1);
    const double want = static_cast<double>(n) * (id + 1) * (id + 1);  // exact
    for (int i = 0; i < rounds; ++i) {
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

TEST_P(Optim, ScaleAndClampGrads) {
  for (const DType dtype : kFloating) {
    const Parameters before(device(), dtype, dtype, false), scaled(device(), dtype, dtype, false);
    Parameters clamped(device(), dtype, dtype, false);
    Buffer odd(device(), dtype, {4}, std::vector<double>{kNaN, kInf, -2, -0.25});
    clamped.slots.push_back({.grad = odd.view().data, .n = 4});
    const OnDevice<double> factor(device(), 0.25);  // both are exact
    kernels().optim.scale_grads(stream, dtype, factor.get(), scaled.slots);
    kernels().optim.clamp_grads(stream, dtype, 0.25, clamped.slots);
    synchronize();
    for (std::size_t k = 0; k < before.arrays.size(); ++k) {
      std::vector<double> times = before.gradient(k), between = times;
      for (double& g : times) g *= 0.25;
      for (double& g : between) g = std::clamp(g, -0.25, 0.25);
      expect_equal(scaled.gradient(k), times);
      expect_equal(clamped.gradient(k), between);
      expect_equal(scaled.param(k), before.param(k));
      expect_equal(clamped.param(k), before.param(k));
    }
    expect_equal(odd.values(), {kNaN, 0.25, -0.25, -0.25});
  }
}

TEST_P(Optim, IntegersAreUnsupported) {
  EXPECT_THROW(kernels().optim.sgd(stream, DType::i64, {}, {}), Error);
  EXPECT_THROW(kernels().optim.adam(stream, DType::i64, {}, {}), Error);
  EXPECT_THROW(kernels().optim.clamp_grads(stream, DType::i64, 1, {}), Error);
}

}  // namespace
}  // namespace weft::testing
