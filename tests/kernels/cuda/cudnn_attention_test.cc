// cuDNN's attention for GPUs that are not here (deviceless_test.cc). A plan is made by compiling
// kernels for that GPU with NVRTC, which takes a second, and cuDNN does that only where there is a
// driver: here one without a GPU.
#include "weft/kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/families.h"
#include "weft/tests/every_case.h"
#include "weft/tests/kernels/cuda/absent_gpu.h"

namespace weft::cuda {
namespace {

/// q [a,b,l,e], k and v [a,b,s,e], in memory as [a,l,b,e], as a layer's projections are.
AttentionArgs args_of(std::int64_t a, std::int64_t b, std::int64_t l, std::int64_t s,
                      std::int64_t e, bool causal) {
  const auto view = [&](std::int64_t n) {
    return View{nullptr, DType::bf16, {a, b, n, e}, {n * b * e, e, b * e, 1}};
  };
  AttentionArgs args{view(l), view(s), view(s)};
  args.causal = causal;
  return args;
}

#ifndef WEFT_EMULATED_CUDA
/// Why cuDNN cannot be expected to compile for a GPU here; empty: it can.
std::string why_no_nvrtc() {
  const std::string name = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
  void* const library = dlopen(name.c_str(), RTLD_LAZY);
  if (!library) return dlerror();
  auto* const version_of = reinterpret_cast<int (*)(int*, int*)>(dlsym(library, "nvrtcVersion"));
  int major = 0, minor = 0;
  if (!version_of || version_of(&major, &minor) != 0) return name + " does not tell its version";
  if (1000 * major + 10 * minor >= CUDART_VERSION) return {};
  return detail::concat(name, " is version ", major, '.', minor, ", older than the toolkit's, ",
                        CUDART_VERSION / 1000, '.', CUDART_VERSION % 1000 / 10);
}
#endif

class CudnnAttention : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef WEFT_EMULATED_CUDA
    GTEST_SKIP() << "the emulated cuDNN knows no attention";
#else
    if (!cudnn_library().error().empty()) GTEST_SKIP() << cudnn_library().error();
    const std::string problem = why_no_nvrtc();
    if (!problem.empty()) GTEST_SKIP() << problem;
    ASSERT_TRUE(dlopen("tests/kernels/cuda/libcuda.so.1", RTLD_NOW)) << dlerror();
    properties_ = absent_gpu(GetParam());
#endif
  }

  std::optional<AttentionPlan> plan(const AttentionArgs& args, AttentionPass pass) const {
    return AttentionPlan::make(args, pass, {.properties = &*properties_});
  }
  void expect_plans(const AttentionArgs& args) const {
    SCOPED_TRACE(::testing::Message()
                 << args.q.shape << " " << args.k.shape << (args.causal ? " causal" : ""));
    EXPECT_TRUE(fits_cudnn(args));
    EXPECT_TRUE(plan(args, AttentionPass::forward));
    EXPECT_TRUE(plan(args, AttentionPass::backward));
  }

  std::optional<BackendDescriptor> properties_;
};

// examples/char_transformer.h: 4 heads of 16 numbers; training, the last texts of a test, and the
// beginning of a text.
TEST_P(CudnnAttention, EachOfTheTransformersHasAPlan) {
  expect_plans(args_of(32, 4, 64, 64, 16, true));
  if (!testing::every_case()) return;
  expect_plans(args_of(7, 4, 64, 64, 16, true));
  expect_plans(args_of(1, 4, 5, 5, 16, true));
}

TEST_P(CudnnAttention, SoHaveOthers) {
  if (!testing::every_case()) {
    expect_plans(args_of(2, 3, 100, 100, 64, true));
    return expect_plans(args_of(2, 3, 8192, 8192, 128, false));
  }
  for (const std::int64_t width : {64, 128}) {
    for (const std::int64_t length : {2, 64, 100, 1024, 8192}) {
      for (const bool causal : {false, true}) {
        expect_plans(args_of(2, 3, length, length, width, causal));
      }
    }
  }
}

TEST_P(CudnnAttention, QueriesNeedNotBeAsManyAsKeys) {
  expect_plans(args_of(1, 2, 100, 300, 64, true));
  if (!testing::every_case()) return;
  expect_plans(args_of(1, 2, 300, 100, 64, false));
}

TEST_P(CudnnAttention, BackwardNeedsNoMemoryForAllWeights) {
  const auto made = plan(args_of(2, 3, 8192, 8192, 64, true), AttentionPass::backward);
  ASSERT_TRUE(made);
  EXPECT_LT(made->workspace_bytes(), std::size_t{1} << 25);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnAttention, ::testing::Values("h100", "h200", "a100"));

TEST(CudnnAttentionFits, WhatCudnnIsNotAskedAboutIsLeftToWeft) {
  const AttentionArgs good = args_of(2, 3, 100, 100, 64, true);
  EXPECT_TRUE(fits_cudnn(good));
  float number = 0;
  const auto bad = [&](const char* what, auto&& change) {
    AttentionArgs args = good;
    change(args);
    EXPECT_FALSE(fits_cudnn(args)) << what;
  };
  bad("mask", [&](AttentionArgs& args) { args.mask.data = &number; });
  bad("dropout", [&](AttentionArgs& args) { args.kept.data = &number; });
  bad("f32", [](AttentionArgs& args) { args.q.dtype = DType::f32; });
  bad("no keys", [](AttentionArgs& args) { args.k.shape[2] = args.v.shape[2] = 0; });
  bad("width", [](AttentionArgs& args) { args = args_of(2, 3, 100, 100, 56, true); });
  bad("wide values", [](AttentionArgs& args) { args.v = args_of(2, 3, 100, 100, 128, true).v; });
  bad("one weight", [](AttentionArgs& args) { args = args_of(2, 3, 1, 1, 64, true); });
  bad("too wide", [](AttentionArgs& args) { args = args_of(2, 3, 100, 100, 136, true); });
  bad("one key for all heads", [](AttentionArgs& args) { args.k.strides[1] = 0; });
  bad("row stride", [](AttentionArgs& args) { args.v.strides[2] += 1; });
  bad("last stride", [](AttentionArgs& args) { args.v.strides[3] = 2; });
}

// The stride of a dimension of length 1 says nothing.
TEST(CudnnAttentionFits, AnyStrideWhereThereIsOneElement) {
  AttentionArgs args = args_of(1, 1, 1, 2, 64, false);
  args.q.strides = {0, 3, 0, 1};
  EXPECT_TRUE(fits_cudnn(args));
}

TEST(CudnnAttentionSwitch, OffUnlessTheEnvironmentSaysSo) {
  const AttentionKernels own{
      .workspace_bytes = [](const AttentionArgs&) { return std::size_t{7}; }};
  ASSERT_EQ(unsetenv("WEFT_CUDNN_ATTENTION"), 0);
  EXPECT_EQ(chosen_attention(own).workspace_bytes, own.workspace_bytes);
  ASSERT_EQ(setenv("WEFT_CUDNN_ATTENTION", "1", 1), 0);
  const AttentionKernels chosen = chosen_attention(own);
  EXPECT_NE(chosen.workspace_bytes, own.workspace_bytes);
  // What does not fit goes to weft's own.
  AttentionArgs args = args_of(2, 3, 100, 100, 60, true);
  EXPECT_EQ(chosen.workspace_bytes(args), 7U);
  // So does all where a step must repeat to the bit.
  const Scoped<bool> scope(&ThreadState::deterministic, true);
  EXPECT_EQ(chosen.workspace_bytes(args_of(2, 3, 100, 100, 64, true)), 7U);
}

}  // namespace
}  // namespace weft::cuda
