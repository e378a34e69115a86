// cuDNN's attention against weft's own, and the time of both. Only in what `./weft gpu-pack` packs,
// and only a GPU can run it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "weft/kernels/cuda/cudnn_attention.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/tests/kernels/targets.h"

namespace weft::cuda {
namespace {

using testing::Buffer;
using testing::DeviceBytes;
using Values = std::vector<double>;

const Device kGpu(DeviceType::cuda, 0);

/// q [a,b,l,e], k and v [a,b,s,e]
struct Problem {
  std::int64_t a, b, l, s, e;
  bool causal;
};

std::string to_string(const Problem& p) {
  return detail::concat(Shape{p.a, p.b, p.l, p.e}, " of ", p.s, " keys",
                        p.causal ? ", causal" : "");
}

/// What one problem reads, in memory as [a,l,b,e].
struct Inputs {
  explicit Inputs(const Problem& p)
      : q(rows(p, p.l, 1)),
        k(rows(p, p.s, 2)),
        v(rows(p, p.s, 3)),
        grad_y(kGpu, DType::bf16, {p.a, p.b, p.l, p.e}, values(p, p.l, 4)),
        args{q.view(), k.view(), v.view()} {
    args.causal = p.causal;
    args.scale = 1 / std::sqrt(double(p.e));
  }
  static Values values(const Problem& p, std::int64_t n, std::uint64_t seed) {
    return testing::values_for(DType::bf16, p.a * p.b * n * p.e, -1, 1, seed);
  }
  static Buffer rows(const Problem& p, std::int64_t n, std::uint64_t seed) {
    const Strides strides{n * p.b * p.e, p.e, p.b * p.e, 1};
    return {kGpu, DType::bf16, {p.a, p.b, n, p.e}, strides, values(p, n, seed)};
  }

  Buffer q, k, v, grad_y;
  AttentionArgs args;
};

/// What one implementation writes.
struct Outputs {
  explicit Outputs(const Problem& p)
      : y(kGpu, DType::bf16, {p.a, p.b, p.l, p.e}),
        log_sums(kGpu, DType::f32, {p.a, p.b, p.l}),
        grad_q(kGpu, DType::bf16, {p.a, p.b, p.l, p.e}),
        grad_k(kGpu, DType::bf16, {p.a, p.b, p.s, p.e}),
        grad_v(kGpu, DType::bf16, {p.a, p.b, p.s, p.e}) {}

  Buffer y, log_sums, grad_q, grad_k, grad_v;
};

/// Runs passes of one implementation. Memory of exactly the size that it asks for.
class Runner {
 public:
  Runner(const AttentionKernels& kernels, const Stream& stream, const Inputs& in)
      : kernels_(kernels),
        stream_(stream),
        in_(in),
        forward_(kGpu, kernels.workspace_bytes(in.args)),
        backward_(kGpu, kernels.backward_workspace_bytes(in.args)) {}

  void forward(const Outputs& out) const {
    kernels_.forward(stream_, in_.args, out.y.view(), out.log_sums.view(), forward_.data());
  }
  /// With y and log_sums of `from`.
  void backward(const Outputs& from, const Outputs& to) const {
    kernels_.backward(stream_, in_.args,
                      {in_.grad_y.view(), from.y.view(), from.log_sums.view(), to.grad_q.view(),
                       to.grad_k.view(), to.grad_v.view()},
                      backward_.data());
  }

 private:
  const AttentionKernels& kernels_;
  const Stream& stream_;
  const Inputs& in_;
  DeviceBytes forward_, backward_;
};

double norm(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

class CudnnAttention : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (std::getenv("WEFT_CUDNN_ATTENTION")) GTEST_SKIP() << "needs weft's own attention, too";
    own = kernels().attention;
    library = with_cudnn_attention(own);
    int major = 0;
    WEFT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < 8 || cudnnGetVersion() < kOldestCudnn) {
      GTEST_SKIP() << "cuDNN " << cudnnGetVersion() << " on compute capability " << major << ".x";
    }
  }

  void check(const Problem& p) const {
    SCOPED_TRACE(to_string(p));
    const Inputs in(p);
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      ASSERT_TRUE(cudnn_takes(in.args, pass));
    }
    const Outputs want(p), got(p);
    const Runner by_weft(own, stream, in), by_cudnn(library, stream, in);
    by_weft.forward(want);
    by_cudnn.forward(got);
    expect_same_forward(p, got, want);
    by_weft.backward(want, want);
    by_cudnn.backward(want, got);
    expect_near(got.grad_q, want.grad_q);
    expect_near(got.grad_k, want.grad_k);
    expect_near(got.grad_v, want.grad_v);
  }

  /// Scores are at most sqrt(e). Both compute them and the sums in f32. cuDNN rounds a weight to
  /// bf16 before it multiplies a value, of at most 1; both round y.
  static void expect_same_forward(const Problem& p, const Outputs& got, const Outputs& want) {
    const double e = double(p.e), of_f32 = (2 * e * std::sqrt(e) + double(p.s) + 64) * 0x1p-24;
    testing::expect_close(got.log_sums.values(), want.log_sums.values(),
                          [&](double) { return of_f32; });
    testing::expect_close(got.y.values(), want.y.values(), [&](double y) {
      return 2 * of_f32 + 1.01 * 0x1p-9 * (1 + 2 * std::abs(y));
    });
  }
  /// cuDNN rounds weights and gradients of scores to bf16, by 2^-9 at most, and the terms of a sum
  /// by errors of any sign: the norm differs by less than four times that. With one key the
  /// gradients of q and k are only rounding errors of f32.
  static void expect_near(const Buffer& got, const Buffer& want) {
    const Values expected = want.values();
    Values difference = got.values();
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
    const double none = 0x1p-16 * std::sqrt(double(expected.size()));
    EXPECT_LE(norm(difference), 0x1p-7 * norm(expected) + none);
  }

  /// Prints what `.gpu/run` puts into its summary.
  void time(const Problem& p) const {
    const Inputs in(p);
    const Outputs out(p);
    const Runner by_weft(own, stream, in), by_cudnn(library, stream, in);
    const auto ms = [&](auto&& run) { return time_ms(stream, [&] { return run(), true; }); };
    const double weft_forward = ms([&] { by_weft.forward(out); });
    const double cudnn_forward = ms([&] { by_cudnn.forward(out); });
    const double weft_backward = ms([&] { by_weft.backward(out, out); });
    const double cudnn_backward = ms([&] { by_cudnn.backward(out, out); });
    std::printf("attention %s: weft %.4f + %.4f ms, cuDNN %.4f + %.4f ms\n", to_string(p).c_str(),
                weft_forward, weft_backward, cudnn_forward, cudnn_backward);
  }

  AttentionKernels own, library;
};

TEST_P(CudnnAttention, ComputesWhatWeftsDoes) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t width : {16, 64, 128}) {
      for (const std::int64_t length : {2, 5, 64, 100, 1024}) {
        check({2, 3, length, length, width, causal});
      }
    }
    check({1, 2, 8192, 8192, 64, causal});
    check({1, 2, 100, 300, 64, causal});
    check({1, 2, 300, 100, 64, causal});
  }
}

// Of the transformer's size, and where attention is most of a step.
TEST_P(CudnnAttention, TimeOfBoth) {
  time({32, 4, 64, 64, 16, true});
  time({8, 8, 1024, 1024, 64, true});
  time({1, 8, 4096, 4096, 128, true});
  time({1, 8, 4096, 4096, 128, false});
}

INSTANTIATE_TEST_SUITE_P(Devices, CudnnAttention, ::testing::Values(DeviceType::cuda),
                         [](const auto&) { return "cuda"; });

}  // namespace
}  // namespace weft::cuda
