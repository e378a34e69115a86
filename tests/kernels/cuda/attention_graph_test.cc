// What the graphs of cuDNN's attention compute, read literally (literal_cudnn.cc), against the
// definition. How cuDNN's kernels compute it, only a GPU can show.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "weft/kernels/cuda/cudnn_attention.h"
#include "weft/tests/kernels/targets.h"

namespace weft::cuda {
namespace {

using testing::Buffer;
using testing::DeviceBytes;

/// The operands and results of q [a,b,l,e], k [a,b,s,e], v [a,b,s,ev], in host memory. The operands
/// lie as [a,n,b,width].
struct Buffers {
  Buffers(DType dtype, std::int64_t a, std::int64_t b, std::int64_t l, std::int64_t s,
          std::int64_t e, std::int64_t ev, bool causal)
      : q(rows(dtype, a, b, l, e, 1)),
        k(rows(dtype, a, b, s, e, 2)),
        v(rows(dtype, a, b, s, ev, 3)),
        y(Device(), dtype, {a, b, l, ev}),
        grad_y(Device(), dtype, {a, b, l, ev},
               testing::values_for(DType::bf16, a * b * l * ev, -1, 1, 4)),
        log_sums(Device(), dtype == DType::f64 ? DType::f64 : DType::f32, {a, b, l}),
        grad_q(Device(), dtype, {a, b, l, e}),
        grad_k(Device(), dtype, {a, b, s, e}),
        grad_v(Device(), dtype, {a, b, s, ev}),
        args{q.view(), k.view(), v.view()} {
    args.causal = causal;
    args.scale = 0.4;
  }
  static Buffer rows(DType dtype, std::int64_t a, std::int64_t b, std::int64_t n,
                     std::int64_t width, std::uint64_t seed) {
    return {Device(),
            dtype,
            {a, b, n, width},
            {n * b * width, width, b * width, 1},
            testing::values_for(DType::bf16, a * b * n * width, -1, 1, seed)};
  }
  AttentionGradArgs grads() const {
    return {grad_y.view(), y.view(), log_sums.view(), grad_q.view(), grad_k.view(), grad_v.view()};
  }

  Buffer q, k, v, y, grad_y, log_sums, grad_q, grad_k, grad_v;
  AttentionArgs args;
};

/// Weights, gradients of scores and results are rounded to bf16, all else to f32: by 2^-9 of each
/// term of a sum, and of the sum. For the values of this test the terms of no sum have magnitudes
/// that add up to more than four times the largest result.
void expect_near(const Buffer& got, const Buffer& want) {
  const std::vector<double> expected = want.values();
  double most = 0;
  for (const double x : expected) most = std::max(most, std::abs(x));
  testing::expect_close(got.values(), expected,
                        [&](double x) { return 0x1p-9 * (std::abs(x) + 4 * most); });
}

class AttentionGraph : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef WEFT_EMULATED_CUDA
    GTEST_SKIP() << "the emulated cuDNN knows no attention";
#else
    // Before the real one, under its name.
    ASSERT_TRUE(dlopen("tests/kernels/cuda/libcudnn.so.9", RTLD_NOW)) << dlerror();
    ASSERT_EQ(cudnn_library().error(), "");
#endif
  }

  void check_forward(const Buffers& got, const Buffers& want) const {
    const auto plan = AttentionPlan::make(got.args, AttentionPass::forward, {});
    ASSERT_TRUE(plan);
    const DeviceBytes memory(Device(), plan->workspace_bytes());
    ASSERT_EQ(plan->forward(nullptr, got.args, got.y.view(), got.log_sums.view(), memory.data()),
              CUDNN_STATUS_SUCCESS);
    const DeviceBytes own(Device(), defined.workspace_bytes(want.args));
    defined.forward(host, want.args, want.y.view(), want.log_sums.view(), own.data());
    expect_near(got.y, want.y);
    testing::expect_close(got.log_sums.values(), want.log_sums.values(),
                          [](double x) { return 0x1p-20 * (1 + std::abs(x)); });
  }

  void check_backward(const Buffers& got, Buffers& want) const {
    const auto plan = AttentionPlan::make(got.args, AttentionPass::backward, {});
    ASSERT_TRUE(plan);
    const DeviceBytes memory(Device(), plan->workspace_bytes());
    ASSERT_EQ(plan->backward(nullptr, got.args, got.grads(), memory.data()), CUDNN_STATUS_SUCCESS);
    // From the same y, as a gradient of a score is the difference of two numbers.
    want.y.set(got.y.values());
    want.log_sums.set(got.log_sums.values());
    const DeviceBytes own(Device(), defined.backward_workspace_bytes(want.args));
    defined.backward(host, want.args, want.grads(), own.data());
    expect_near(got.grad_q, want.grad_q);
    expect_near(got.grad_k, want.grad_k);
    expect_near(got.grad_v, want.grad_v);
  }

  const AttentionKernels& defined = reference_kernels().attention;
  const Stream host = current_stream(Device());
};

TEST_F(AttentionGraph, IsTheDefinition) {
  const std::int64_t sizes[][6] = {
      {2, 3, 5, 5, 8, 8}, {1, 2, 9, 4, 16, 8}, {2, 1, 4, 9, 8, 24}, {1, 1, 1, 1, 8, 8}};
  for (const auto& [a, b, l, s, e, ev] : sizes) {
    for (const bool causal : {false, true}) {
      const Shape all{a, b, l, s, e, ev};
      SCOPED_TRACE(detail::concat(all, causal ? " causal" : ""));
      const Buffers got(DType::bf16, a, b, l, s, e, ev, causal);
      Buffers want(DType::f64, a, b, l, s, e, ev, causal);
      check_forward(got, want);
      check_backward(got, want);
    }
  }
}

}  // namespace
}  // namespace weft::cuda
