// Every way to convolve and to multiply on the CPU, on small odd shapes, for teams of 1, 2 and 3:
// the results must be right, and no byte outside operands, result and workspace may be written
// (Buffer and DeviceBytes check their guards). Two environment variables change the test:
//   WEFT_CASES  random shapes per test (100)       WEFT_SEED  the seed (1)
#include "weft/kernels/cpu/conv/conv.h"
#include "weft/kernels/cpu/matmul/matmul.h"
#include "weft/tests/core/draw.h"
#include "weft/tests/kernels/conv_trial.h"
#include "weft/tests/kernels/matmul_trial.h"
#include "weft/tests/kernels/plans.h"

namespace weft {
namespace {

using testing::ConvCase;
using testing::ConvTrial;
using testing::Draw;
using testing::from_environment;
using testing::Lay;
using testing::MatmulCase;
using testing::MatmulTrial;

class RandomShapes : public ::testing::Test {
 protected:
  void TearDown() override {
    set_simd_level(best_simd_level());
    RecordProperty("runs", runs_);
  }

  /// Calls run(plan, name) for every candidate that can be built, for each team.
  template <class Args, class Run>
  void run_candidates(const Args& args, const Run& run) {
    for (const int team : {1, 2, 3}) {
      const Scoped threads(&ThreadState::num_threads, team);
      for (const auto& candidate : testing::candidates_of(args)) {
        const auto made = candidate.make();
        if (!made) continue;
        SCOPED_TRACE(detail::concat("candidate ", candidate.name, ", team of ", team));
        run(*made, candidate.name);
        ++runs_;
      }
    }
  }

  void check(const ConvTrial& trial) {
    const bool whole_sums = trial.dtype != DType::bf16;  // exact only up to 256
    run_candidates(trial.args, [&](const cpu::ConvPlan& plan, const std::string& name) {
      const bool winograd = name == "winograd";
      trial.expect(trial.run(stream_, cpu::conv_kernels(), plan), whole_sums || winograd,
                   winograd ? trial.transform_bound() : 0);
    });
  }

  void check(const ConvCase& c, DType dtype, ConvPass pass, MemoryFormat xf, MemoryFormat yf,
             bool bias, std::uint64_t seed) {
    const ConvTrial trial(Device(), dtype, c, pass, xf, yf, bias,
                          [&](std::int64_t n, std::uint64_t which) {
                            return testing::whole_values(n, 2, seed + which);
                          });
    const auto nhwc = [](MemoryFormat f) { return f == MemoryFormat::nhwc ? " nhwc" : " nchw"; };
    SCOPED_TRACE(detail::concat(ConvProblem(trial.args).text(), ", x", nhwc(xf), ", y", nhwc(yf),
                                bias ? ", bias" : ""));
    check(trial);
  }

  void check(const MatmulCase& c, DType dtype, std::uint64_t seed) {
    const int most = dtype == DType::bf16 ? 1 : 4;
    const auto values = [&](std::int64_t n) { return testing::whole_values(n, most, ++seed); };
    MatmulTrial trial(Device(), dtype, c, values(c.batch * c.m * c.k), values(c.batch * c.k * c.n),
                      values(c.batch * c.m * c.n), values(c.n));
    SCOPED_TRACE(::testing::PrintToString(c) + " " + to_string(dtype));
    // bf16 represents integers exactly up to 256.
    const bool exact = dtype != DType::bf16 || c.k < 256;
    run_candidates(trial.args, [&](const cpu::MatmulPlan& plan, const std::string&) {
      trial.expect(trial.run(stream_, cpu::matmul_kernels(), plan), dtype, c.k, exact);
    });
  }

  const std::int64_t cases_ = from_environment("WEFT_CASES", 100);
  const std::uint64_t seed_ = std::uint64_t(from_environment("WEFT_SEED", 1));
  const Stream stream_ = current_stream(Device());
  int runs_ = 0;
};

/// A shape small enough for the reference. Half of the shapes are pointwise or suit Winograd's
/// algorithm, for which libraries have special kernels.
ConvCase draw_conv(Draw& draw) {
  const auto channels = [&] {
    return draw.of<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64});
  };
  for (;;) {
    ConvCase c{"random",
               draw.between(1, 3),
               channels(),
               draw.between(1, 14),
               draw.between(1, 14),
               channels(),
               1,
               1};
    Conv2dParams& p = c.params;
    p.transposed = draw.one_in(4);
    const std::int64_t kind = draw.between(1, 8);
    if (kind <= 3) {
      p.stride = {draw.between(1, 3), draw.between(1, 3)};
      if (kind == 1)
        c.h = p.stride[0] * draw.between(1, 20), c.w = p.stride[1] * draw.between(1, 20);
    } else if (kind == 4) {
      c.c = 16 * draw.between(1, 3), c.k = 16 * draw.between(1, 3);
      c.r = c.s = draw.of<std::int64_t>({3, 4, 5});
      p.stride = c.r == 4 ? std::array<std::int64_t, 2>{2, 2} : std::array<std::int64_t, 2>{1, 1};
      p.padding = {draw.between(0, 2), draw.between(0, 2)};
      if (c.r != 4)
        p.dilation = {draw.of<std::int64_t>({1, 1, 2, 3}), draw.of<std::int64_t>({1, 2})};
    } else {
      c.r = draw.between(1, 5), c.s = draw.between(1, 5);
      for (int i = 0; i < 2; ++i) {
        p.stride[i] = draw.of<std::int64_t>({1, 1, 2, 3});
        p.padding[i] = draw.between(0, 3);
        p.dilation[i] = draw.of<std::int64_t>({1, 1, 1, 2});
      }
      if (draw.one_in(3)) {
        p.groups = draw.of<std::int64_t>({2, 3, 4, 8, 16});
        c.c = p.groups * draw.between(1, 3), c.k = p.groups * draw.between(1, 3);
      }
    }
    if (p.transposed) {
      for (int i = 0; i < 2; ++i) p.output_padding[i] = draw.between(0, p.stride[i] - 1);
    }
    const Shape y = c.y_shape();
    if (y[2] < 1 || y[3] < 1) continue;
    const auto fits = [&](int axis, std::int64_t size, std::int64_t taps) {
      return size + 2 * p.padding[axis] > p.dilation[axis] * (taps - 1);
    };
    if (!p.transposed && !(fits(0, c.h, c.r) && fits(1, c.w, c.s))) continue;
    const std::int64_t pixels = p.transposed ? c.h * c.w : y[2] * y[3];
    if (c.n * numel(c.w_shape()) * pixels <= 300'000) return c;
  }
}

TEST_F(RandomShapes, Convolutions) {
  Draw draw(seed_);
  for (std::int64_t i = 0; i < cases_ && !HasFailure(); ++i) {
    const ConvCase c = draw_conv(draw);
    const DType dtype = draw.of({DType::f32, DType::f32, DType::f32, DType::bf16, DType::f64});
    const auto pass =
        draw.of({ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights});
    const auto format = [&] { return draw.one_in(3) ? MemoryFormat::nchw : MemoryFormat::nhwc; };
    const MemoryFormat xf = format(), yf = format();
    const bool bias = pass != ConvPass::backward_data && draw.one_in(2);
    set_simd_level(SimdLevel(draw.between(0, int(best_simd_level()))));
    check(c, dtype, pass, xf, yf, bias, draw.seed());
  }
}

TEST_F(RandomShapes, Products) {
  Draw draw(seed_);
  for (std::int64_t i = 0; i < cases_ && !HasFailure(); ++i) {
    const auto size = [&] {
      return draw.one_in(3) ? draw.of<std::int64_t>({1, 2, 8, 16, 32, 48, 64})
                            : draw.between(1, 70);
    };
    const auto lay = [&](bool shared) {
      if (shared && draw.one_in(4)) return Lay::shared;
      return draw.of({Lay::rows, Lay::cols, Lay::rows_padded, Lay::cols_padded});
    };
    MatmulCase c{draw.one_in(2) ? 1 : draw.between(2, 5), size(), size(), size()};
    if (draw.one_in(8)) c.batch = 1, c.m = draw.between(1, 9), c.k = draw.between(4096, 5000);
    c.a = lay(c.batch > 1), c.b = lay(c.batch > 1);
    c.bias = draw.one_in(2);
    c.accumulate = !c.bias && draw.one_in(3);
    const DType dtype = draw.of({DType::f32, DType::f32, DType::f32, DType::bf16, DType::f64});
    set_simd_level(SimdLevel(draw.between(0, int(best_simd_level()))));
    check(c, dtype, draw.seed());
  }
}

// Errors of oneDNN found earlier: see is_sound() of conv/dnnl.cc and matmul/dnnl.cc.
TEST_F(RandomShapes, ConvolutionsOnceWrong) {
  const ConvCase cases[] = {
      {"8x8", 1, 3, 8, 8, 16, 1, 1, {.stride = {2, 2}}},
      {"12x12", 1, 4, 12, 12, 16, 1, 1, {.stride = {1, 3}}},
      {"64x64", 1, 3, 64, 64, 16, 1, 1, {.stride = {2, 2}}},
      {"16x16", 2, 12, 16, 16, 24, 1, 1, {.stride = {2, 2}}},
      {"odd channels", 2, 7, 30, 9, 1, 1, 1, {.stride = {3, 1}}},
      {"odd channels", 3, 17, 3, 10, 64, 1, 1, {.transposed = true}},
      {"one column", 2, 33, 14, 1, 4, 5, 3, {.stride = {1, 3}, .padding = {0, 1}}},
      {"one column", 1, 4, 9, 1, 32, 1, 1, {.stride = {2, 2}}},
      {"one column", 3, 32, 4, 1, 16, 4, 4, {.stride = {2, 2}, .padding = {0, 2}}},
      {"two columns", 2, 48, 7, 2, 32, 4, 4, {.stride = {1, 3}, .padding = {1, 3}, .groups = 16}},
  };
  for (const ConvCase& c : cases) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const ConvPass pass :
           {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
        check(c, dtype, pass, MemoryFormat::nhwc, MemoryFormat::nhwc, false, seed_);
      }
    }
  }
}

TEST_F(RandomShapes, ProductsOnceWrong) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check({1, 32, 10, 2048, Lay::rows, Lay::cols}, dtype, seed_);
    check({1, 6, 7, 4288, Lay::cols, Lay::rows}, dtype, seed_);
    check({1, 9, 16, 2100}, dtype, seed_);
  }
}

}  // namespace
}  // namespace weft
