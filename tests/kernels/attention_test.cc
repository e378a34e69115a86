// Attention, forward and backward, against its definition in f64.
#include <cmath>
#include <optional>

#include "weft/core/runtime/parallel.h"
#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

enum class Hide { nothing, later, by_bool, by_number };

/// q [a,b,l,e], k [a,b,s,e], v [a,b,s,ev]
struct Case {
  std::int64_t a, b, l, s, e, ev;
  Hide hide = Hide::nothing;
  bool dropout = false;
  bool strided = false;
};

std::string to_string(const Case& c) {
  std::string text;
  for (const std::int64_t n : {c.a, c.b, c.l, c.s, c.e, c.ev}) text += std::to_string(n) + " ";
  return text + "hide " + std::to_string(static_cast<int>(c.hide)) + (c.dropout ? " dropout" : "") +
         (c.strided ? " strided" : "");
}

DType type_of_sums(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

using Values = std::vector<double>;

/// The operands and results of one case in one dtype on one device.
struct Buffers {
  Buffers(const Case& c, Device device, DType dtype)
      : q(device, dtype, {c.a, c.b, c.l, c.e}, rows(c, c.b, c.l, c.e)),
        k(device, dtype, {c.a, c.b, c.s, c.e}, rows(c, 0, c.s, c.e)),
        v(device, dtype, {c.a, c.b, c.s, c.ev}, rows(c, c.b, c.s, c.ev)),
        y(device, dtype, {c.a, c.b, c.l, c.ev}),
        log_sums(device, type_of_sums(dtype), {c.a, c.b, c.l}),
        grad_y(device, dtype, {c.a, c.b, c.l, c.ev}),
        grad_q(device, dtype, {c.a, c.b, c.l, c.e}),
        grad_k(device, dtype, {c.a, c.b, c.s, c.e}),
        grad_v(device, dtype, {c.a, c.b, c.s, c.ev}) {
    const Shape scores{c.a, c.b, c.l, c.s};
    // With strides: one mask for all of dimension b.
    const Strides shared{c.l * c.s, 0, c.s, 1};
    if (c.hide == Hide::by_bool || c.hide == Hide::by_number) {
      mask.emplace(device, c.hide == Hide::by_bool ? DType::boolean : type_of_sums(dtype), scores,
                   c.strided ? shared : contiguous_strides(scores));
    }
    if (c.dropout) kept.emplace(device, DType::boolean, scores);
  }

  /// Dense, or as [a, n, b, width] with gaps between rows; with b = 0 one matrix for all of b.
  static Strides rows(const Case& c, std::int64_t b, std::int64_t n, std::int64_t width) {
    if (!c.strided) return contiguous_strides({c.a, c.b, n, width});
    const std::int64_t step = width + 3;
    return b == 0 ? Strides{n * step, 0, step, 1} : Strides{n * b * step, step, b * step, 1};
  }

  AttentionArgs args(const Case& c) const {
    AttentionArgs args{q.view(), k.view(), v.view()};
    if (mask) args.mask = mask->view();
    if (kept) args.kept = kept->view();
    args.causal = c.hide == Hide::later;
    args.scale = 0.4;
    args.keep_scale = c.dropout ? 1 / 0.75 : 1;
    return args;
  }

  Buffer q, k, v, y, log_sums, grad_y, grad_q, grad_k, grad_v;
  std::optional<Buffer> mask, kept;
};

/// Every fifth row hides all keys.
Values mask_values(const Case& c) {
  const std::int64_t n = c.a * c.b * c.l * c.s;
  Values values = random_values(n, -1, 1, 8);
  for (std::int64_t i = 0; i < n; ++i) {
    double& x = values[std::size_t(i)];
    const bool hidden = x < -0.5 || i / c.s % 5 == 3;
    if (c.hide == Hide::by_bool) x = hidden ? 0 : 1;
    if (c.hide == Hide::by_number) x = hidden ? -kInf : rounded(DType::f32, x);
  }
  return values;
}

void fill(const Case& c, DType dtype, Buffers& to) {
  to.q.set(values_for(dtype, to.q.numel(), -2, 2, 1));
  to.k.set(values_for(dtype, to.k.numel(), -2, 2, 2));
  to.v.set(values_for(dtype, to.v.numel(), -1, 1, 3));
  to.grad_y.set(values_for(dtype, to.grad_y.numel(), -1, 1, 4));
  if (to.mask) to.mask->set(mask_values(c));
  if (to.kept) {
    Values draws = random_values(to.kept->numel(), 0, 1, 5);
    for (double& x : draws) x = x < 0.75;
    to.kept->set(draws);
  }
}

/// Memory of exactly the size that the kernel asks for, between guards.
class Scratch {
 public:
  Scratch(Device device, std::size_t bytes) : bytes_(device, bytes) {}
  void* data() const { return bytes_.data(); }

 private:
  DeviceBytes bytes_;
};

void run_forward(const AttentionKernels& kernels, const Stream& stream, Device device,
                 const Case& c, const Buffers& x) {
  const AttentionArgs args = x.args(c);
  const Scratch scratch(device, kernels.workspace_bytes(args));
  kernels.forward(stream, args, x.y.view(), x.log_sums.view(), scratch.data());
  backend(device).runtime->synchronize(stream);
}

void run_backward(const AttentionKernels& kernels, const Stream& stream, Device device,
                  const Case& c, const Buffers& x) {
  const AttentionArgs args = x.args(c);
  const Scratch scratch(device, kernels.backward_workspace_bytes(args));
  kernels.backward(stream, args,
                   {x.grad_y.view(), x.y.view(), x.log_sums.view(), x.grad_q.view(),
                    x.grad_k.view(), x.grad_v.view()},
                   scratch.data());
  backend(device).runtime->synchronize(stream);
}

/// The most that the queries' weights of one key add up to, without dropout.
double most_of_a_key(Case c, DType dtype) {
  c.dropout = false;
  Buffers x(c, Device(), DType::f64);
  fill(c, dtype, x);
  x.grad_y.set(Values(std::size_t(x.grad_y.numel()), 1));
  const AttentionKernels& defined = reference_kernels().attention;
  run_forward(defined, current_stream(Device()), Device(), c, x);
  run_backward(defined, current_stream(Device()), Device(), c, x);
  double most = 0;
  for (const double sum : x.grad_v.values()) most = std::max(most, sum);
  return most;
}

class Attention : public TargetTest {
 protected:
  void SetUp() override {
    TargetTest::SetUp();
    if (!IsSkipped() && kernels().attention.forward == nullptr) GTEST_SKIP() << "not here yet";
  }

  void check(const Case& c, DType dtype) {
    SCOPED_TRACE(to_string(c) + " " + weft::to_string(dtype));
    Buffers got(c, device(), dtype), want(c, Device(), DType::f64);
    fill(c, dtype, got);
    fill(c, dtype, want);
    const AttentionKernels& defined = reference_kernels().attention;
    const Stream host = current_stream(Device());
    run_forward(defined, host, Device(), c, want);
    run_forward(kernels().attention, stream, device(), c, got);

    // |q k| <= 4 e, so a score has an error of at most ds, also by the rounding of the mask and of
    // the difference to the maximum. A weight has a relative error of 2 ds and that of exp and of
    // its sum. A sum of n terms adds n roundings, and the last one is that of the stored value.
    const double u = compute_roundoff(dtype);
    const auto n = [](std::int64_t size) { return static_cast<double>(size); };
    const double most = 0.4 * 4 * n(c.e) + 1, ds = (n(c.e) + 6) * u * most;
    const double keep = got.args(c).keep_scale, of_weight = 2 * ds + (n(c.s) + 16) * u;
    const auto near = [&](const Buffer& a, const Buffer& b, double bound) {
      expect_close(a.values(), b.values(),
                   [&](double x) { return bound + 1.01 * unit_roundoff(a.dtype()) * std::abs(x); });
    };
    near(got.y, want.y, keep * of_weight);
    near(got.log_sums, want.log_sums, of_weight);

    // From the stored y and log_sums, like the kernel. A gradient of a score is at most the weight
    // times g. Gradients of keys and values are sums over all queries, whose weights are seldom 1.
    want.y.set(got.y.values());
    want.log_sums.set(got.log_sums.values());
    run_backward(defined, host, Device(), c, want);
    run_backward(kernels().attention, stream, device(), c, got);
    // log_sums differ from those of exact scores: by that, weights may add up to more than 1.
    const double g = 2 * keep * n(c.ev), more = 1 + of_weight + 2 * u * (most + n(c.s));
    const double of_grad = g * more * (of_weight + (n(c.ev) + 16) * u);
    near(got.grad_q, want.grad_q, 0.4 * 2 * (of_grad + g * (n(c.s) + 4) * u));
    const double weights = more * most_of_a_key(c, dtype);
    near(got.grad_k, want.grad_k, 0.4 * 2 * weights * (of_grad + g * (n(c.l) + 4) * u));
    near(got.grad_v, want.grad_v, keep * weights * (of_weight + (n(c.l) + 4) * u));
  }

  Values all_results(const Case& c, DType dtype, int threads) {
    const Scoped<int> team(&ThreadState::num_threads, threads);
    Buffers x(c, device(), dtype);
    fill(c, dtype, x);
    run_forward(kernels().attention, stream, device(), c, x);
    run_backward(kernels().attention, stream, device(), c, x);
    Values all;
    for (const Buffer* b : {&x.y, &x.log_sums, &x.grad_q, &x.grad_k, &x.grad_v}) {
      for (const double value : b->values()) all.push_back(value);
    }
    return all;
  }
};
WEFT_ON_EVERY_TARGET(Attention);

// Around the sizes of the CPU's blocks (96 queries, 256 keys), of CUDA's (32 or 64), of tiles, and
// of the few queries that use none.
TEST_P(Attention, ForwardAndBackward) {
  const Case cases[] = {
      {1, 1, 1, 1, 1, 1},      {2, 3, 5, 7, 4, 3},     {1, 2, 96, 256, 16, 16},
      {1, 1, 97, 257, 33, 17}, {2, 1, 95, 63, 64, 64}, {1, 1, 200, 130, 40, 24},
      {1, 1, 2, 261, 20, 70},  {1, 2, 4, 17, 9, 5},    {1, 2, 130, 1, 3, 2},
      {1, 1, 1, 700, 64, 64},  {1, 1, 33, 255, 5, 8},  {1, 1, 300, 5, 2, 1},
      {3, 2, 9, 33, 7, 80},
  };
  // Every run has each pair of size, mask and dtype, and each mask and dtype with dropout, strided,
  // and without.
  int turn = 0;
  for (const Case& sizes : cases) {
    ++turn;
    for (const Hide hide : {Hide::nothing, Hide::later, Hide::by_bool, Hide::by_number}) {
      for (const DType dtype : kFloating) {
        ++turn;
        for (const bool other : {false, true}) {
          if (other != (turn % 2 == 0) && !every_case()) continue;
          Case c = sizes;
          c.hide = hide;
          c.dropout = other;
          c.strided = other;
          check(c, dtype);
        }
      }
    }
  }
}

TEST_P(Attention, OfNothing) {
  check({1, 2, 3, 4, 5, 6}, DType::f32);  // a block's memory is then not what it was at first
  for (const Case& sizes : {Case{0, 2, 3, 4, 5, 6}, Case{2, 0, 3, 4, 5, 6}, Case{1, 2, 0, 4, 5, 6},
                            Case{1, 2, 3, 0, 5, 6}, Case{1, 2, 3, 4, 0, 6}, Case{1, 2, 3, 4, 5, 0},
                            Case{1, 1, 40, 70, 0, 6}}) {
    for (const Hide hide : {Hide::nothing, Hide::later, Hide::by_bool}) {
      Case c = sizes;
      c.hide = hide;
      check(c, DType::f32);
      check(c, DType::bf16);
    }
  }
}

// On CUDA a block then goes on to a second tile.
TEST_P(Attention, MoreTilesThanBlocks) {
  const Case c{16'400, 1, 1, 1, 1, 4};
  Buffers x(c, device(), DType::f32);
  fill(c, DType::f32, x);
  run_forward(kernels().attention, stream, device(), c, x);
  EXPECT_EQ(x.y.values(), x.v.values());  // there is one key
}

TEST_P(Attention, HasTheSameBitsWithAnyNumberOfThreads) {
  if (!device().is_cpu()) GTEST_SKIP() << "of the CPU";
  for (const Case& c : {Case{1, 2, 200, 300, 32, 32}, Case{1, 1, 500, 700, 16, 40, Hide::later},
                        Case{5, 4, 60, 150, 30, 20, Hide::by_number, true, true}}) {
    for (const DType dtype : kFloating) {
      EXPECT_EQ(all_results(c, dtype, 1), all_results(c, dtype, 3)) << to_string(c);
    }
  }
}

TEST_P(Attention, UnwantedGradientsAreLeftOut) {
  const Case c{1, 2, 50, 140, 8, 24};
  Buffers all(c, device(), DType::f32), some(c, device(), DType::f32);
  for (Buffers* x : {&all, &some}) {
    fill(c, DType::f32, *x);
    run_forward(kernels().attention, stream, device(), c, *x);
  }
  run_backward(kernels().attention, stream, device(), c, all);
  const auto grads = [&] {
    return AttentionGradArgs{some.grad_y.view(), some.y.view(), some.log_sums.view(), {}, {}, {}};
  };
  const auto run = [&](const AttentionGradArgs& wanted) {
    const AttentionArgs args = some.args(c);
    const Scratch scratch(device(), kernels().attention.backward_workspace_bytes(args));
    kernels().attention.backward(stream, args, wanted, scratch.data());
    synchronize();
  };
  AttentionGradArgs only = grads();
  only.grad_q = some.grad_q.view();
  run(only);
  EXPECT_EQ(some.grad_q.values(), all.grad_q.values());
  only = grads();
  only.grad_k = some.grad_k.view();
  run(only);
  EXPECT_EQ(some.grad_k.values(), all.grad_k.values());
  only = grads();
  only.grad_v = some.grad_v.view();
  run(only);
  EXPECT_EQ(some.grad_v.values(), all.grad_v.values());
}

// Scores that are infinite or NaN by themselves count as in softmax; hidden rows are 0 in any case.
TEST_P(Attention, InfiniteScores) {
  const Case c{1, 1, 5, 3, 1, 1, Hide::by_number};
  for (const DType dtype : kFloating) {
    Buffers x(c, device(), dtype);
    x.q.set({1, 1e10, -1e10, kNaN, kNaN});
    x.k.set({1, 1e10, 2});
    x.v.set({1, 2, 3});
    x.mask->set({0, 0, 0, 0, -kInf, 0, 0, 0, 0, 0, 0, 0, -kInf, -kInf, -kInf});
    x.grad_y.set({1, 1, 1, 1, 1});
    run_forward(kernels().attention, stream, device(), c, x);
    const Values y = x.y.values(), log_sums = x.log_sums.values();
    EXPECT_EQ(y[0], 2);
    EXPECT_EQ(y[1], 3);
    EXPECT_EQ(y[2], 1);
    EXPECT_TRUE(std::isnan(y[3]) && std::isnan(log_sums[3]));
    EXPECT_EQ(y[4], 0);
    EXPECT_EQ(log_sums[4], kInf);
    // -infinity by itself hides nothing: the sum of weights is 0.
    x.q.set({-kInf, -kInf, kInf, 1, 1});
    run_forward(kernels().attention, stream, device(), c, x);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(x.y.values()[std::size_t(i)])) << i;
  }
}

TEST_P(Attention, CausalHidesLaterKeysOfAnyValue) {
  const Case c{1, 1, 3, 3, 1, 1, Hide::later};
  for (const DType dtype : kFloating) {
    Buffers x(c, device(), dtype);
    x.q.set({1, 1, 1});
    x.k.set({1, 1, kNaN});
    x.v.set({1, 3, 5});
    run_forward(kernels().attention, stream, device(), c, x);
    EXPECT_EQ(x.y.values()[0], 1);
    EXPECT_EQ(x.y.values()[1], 2);
  }
}

// Few queries are multiplied in another order in forward: a weight must not exceed 1 for that.
TEST_P(Attention, WeightsOfLargeScores) {
  const Case c{1, 1, 1, 1, 40, 1};
  Buffers x(c, device(), DType::f32);
  fill(c, DType::f32, x);
  Values q = x.q.values();
  for (double& value : q) value *= 1e6;
  x.q.set(q);
  x.grad_y.set({1});
  run_forward(kernels().attention, stream, device(), c, x);
  run_backward(kernels().attention, stream, device(), c, x);
  EXPECT_LE(x.grad_v.values()[0], 1);
  EXPECT_GT(x.grad_v.values()[0], 0);
}

}  // namespace
}  // namespace weft::testing
