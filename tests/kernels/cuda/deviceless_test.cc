// What the real cuDNN offers for GPUs that are not here: their properties, as JSON, take the place
// of a handle, so heuristics and plans need neither a GPU nor a driver. Only a GPU can run the
// plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/kernels/cuda/conv_graph.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/kernels/cuda/absent_gpu.h"

namespace weft::cuda {
namespace {

/// Convolutions of one size. w [k,c/groups,r,s] in all of them.
struct Sizes {
  const char* program;
  std::int64_t n, c, h, w, k, r, s;
  Conv2dParams params = {};
};

// Each distinct one of the programs, transposed ones by the convolution whose gradient they are.
const Sizes kPrograms[] = {
    {"autoencoder conv1, deconv2", 32, 1, 28, 28, 8, 3, 3},
    {"autoencoder conv2, deconv1", 32, 8, 26, 26, 64, 3, 3},
    {"cnn conv1", 64, 1, 28, 28, 32, 3, 3},
    {"cnn conv2", 64, 32, 26, 26, 64, 3, 3},
    {"dcgan 64x64, 3 channels", 128, 3, 64, 64, 64, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}},
    {"dcgan 32x32", 128, 64, 32, 32, 128, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}},
    {"dcgan 16x16", 128, 128, 16, 16, 256, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}},
    {"dcgan 8x8", 128, 256, 8, 8, 512, 4, 4, {.stride = {2, 2}, .padding = {1, 1}}},
    {"dcgan 4x4, to one score", 128, 512, 4, 4, 1, 4, 4},
    {"dcgan 4x4, from 100 values", 128, 512, 4, 4, 100, 4, 4},
    {"resnet conv1", 256, 3, 224, 224, 64, 7, 7, {.stride = {2, 2}, .padding = {3, 3}}},
    {"resnet layer1 3x3", 256, 64, 56, 56, 64, 3, 3, {.padding = {1, 1}}},
    {"resnet layer1 1x1", 256, 64, 56, 56, 256, 1, 1},
    {"resnet layer1 1x1 back", 256, 256, 56, 56, 64, 1, 1},
    {"resnet layer2 3x3", 256, 128, 56, 56, 128, 3, 3, {.stride = {2, 2}, .padding = {1, 1}}},
    {"resnet layer2 downsample", 256, 256, 56, 56, 512, 1, 1, {.stride = {2, 2}}},
    {"resnet layer3 3x3", 256, 256, 14, 14, 256, 3, 3, {.padding = {1, 1}}},
    {"resnet layer4 3x3", 256, 512, 7, 7, 512, 3, 3, {.padding = {1, 1}}},
    {"resnet layer4 1x1", 256, 512, 7, 7, 2048, 1, 1},
};

// What users may ask for.
const Sizes kOthers[] = {
    {"one pixel, one channel", 1, 1, 1, 1, 1, 1, 1},
    {"three channels, five filters", 3, 3, 17, 11, 5, 3, 5, {.stride = {2, 3}, .padding = {2, 1}}},
    {"dilated", 2, 8, 20, 20, 8, 3, 3, {.padding = {2, 3}, .dilation = {2, 3}}},
    {"groups", 2, 8, 15, 20, 12, 3, 2, {.padding = {1, 1}, .groups = 4}},
    {"depthwise", 2, 32, 14, 14, 32, 3, 3, {.stride = {2, 2}, .padding = {1, 1}, .groups = 32}},
    {"dilated groups", 2, 6, 16, 16, 4, 3, 3, {.dilation = {2, 2}, .groups = 2}},
};

Conv2dArgs args_of(const Sizes& z, ConvPass pass, DType dtype, MemoryFormat format,
                   bool with_bias) {
  const auto out = [&](std::int64_t length, std::int64_t kernel, std::size_t axis) {
    return (length + 2 * z.params.padding[axis] - z.params.dilation[axis] * (kernel - 1) - 1) /
               z.params.stride[axis] +
           1;
  };
  const auto view = [&](const Shape& shape) {
    return View{nullptr, dtype, shape, format_strides(shape, format)};
  };
  Conv2dArgs args;
  args.pass = pass;
  args.params = z.params;
  args.x = view({z.n, z.c, z.h, z.w});
  args.w = view({z.k, z.c / z.params.groups, z.r, z.s});
  args.y = view({z.n, z.k, out(z.h, z.r, 0), out(z.w, z.s, 1)});
  // An address is all that says there is a bias.
  if (with_bias) args.bias = View{reinterpret_cast<void*>(256), dtype, {z.k}, {1}};
  return args;
}

struct Rules {
  const char* name;
  DType dtype;
  bool tf32 = false, deterministic = false;
};
constexpr Rules kRules[] = {
    {"f32", DType::f32},        {"f32 deterministic", DType::f32, false, true},
    {"tf32", DType::f32, true}, {"tf32 deterministic", DType::f32, true, true},
    {"f64", DType::f64},        {"f64 deterministic", DType::f64, false, true},
    {"bf16", DType::bf16},      {"bf16 deterministic", DType::bf16, false, true},
};

class Deviceless : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef WEFT_EMULATED_CUDA
    GTEST_SKIP() << "the emulated cuDNN knows no other GPUs";
#else
    if (!cudnn_library().error().empty()) GTEST_SKIP() << cudnn_library().error();
    properties_ = absent_gpu(GetParam());
#endif
  }

  PlanDevice device() const { return {.properties = &*properties_}; }

  /// What the rules admit, in the order in which weft tries it.
  std::vector<EngineConfig> admitted(const ConvGraph& graph, const Rules& rules) const {
    std::vector<EngineConfig> out;
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      for (EngineConfig& config : graph.offered(mode)) {
        if (admissible(config, rules.dtype, rules.tf32, rules.deterministic)) {
          out.push_back(std::move(config));
        }
      }
    }
    return out;
  }

  void expect_plans(const Sizes& sizes, MemoryFormat format) const {
    for (const Rules& rules : kRules) {
      for (const ConvPass pass :
           {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
        const CudnnProblem p(args_of(sizes, pass, rules.dtype, format, false));
        SCOPED_TRACE(std::string(sizes.program) + ", " + rules.name + ", " + p.text() +
                     (format == MemoryFormat::nhwc ? " nhwc" : " nchw"));
        const auto configs = admitted(ConvGraph(p, format, {}, device()), rules);
        ASSERT_FALSE(configs.empty());
        EXPECT_TRUE(any_plan(configs)) << configs.size() << " configurations";
      }
    }
  }

  bool any_plan(const std::vector<EngineConfig>& configs) const {
    return std::ranges::any_of(configs, [this](const EngineConfig& config) {
      return EnginePlan::make(config, device()).has_value();
    });
  }

  std::optional<BackendDescriptor> properties_;
};

TEST_P(Deviceless, EveryConvolutionOfEveryProgramHasAPlan) {
  for (const Sizes& sizes : kPrograms) expect_plans(sizes, MemoryFormat::nhwc);
}

TEST_P(Deviceless, SoHaveOthersInBothFormats) {
  for (const Sizes& sizes : kOthers) {
    expect_plans(sizes, MemoryFormat::nhwc);
    expect_plans(sizes, MemoryFormat::nchw);
  }
}

// With an output padding of a stride or more the library's small image is larger than weft's.
TEST_P(Deviceless, AgreesOnOutputPadding) {
  for (const std::int64_t padding : {0, 1, 2, 3, 4}) {
    Conv2dArgs args;
    args.params = {.stride = {2, 1},
                   .padding = {1, 2},
                   .dilation = {5, 5},
                   .output_padding = {padding, padding},
                   .transposed = true};
    args.x = View{nullptr, DType::f32, {2, 3, 4, 6}, {}};
    args.w = View{nullptr, DType::f32, {3, 4, 3, 2}, {}};
    args.y = View{nullptr, DType::f32, {2, 4, 15 + padding, 7 + padding}, {}};
    EXPECT_NO_THROW(ConvGraph(CudnnProblem(args), MemoryFormat::nchw, {}, device())) << padding;
  }
}

TEST_P(Deviceless, ABiasJoinsTheForwardPass) {
  for (const Sizes& sizes : kPrograms) {
    for (const Rules& rules : kRules) {
      const CudnnProblem p(
          args_of(sizes, ConvPass::forward, rules.dtype, MemoryFormat::nhwc, true));
      SCOPED_TRACE(std::string(sizes.program) + ", " + rules.name + ", " + p.text());
      ASSERT_TRUE(p.fusable_bias);
      const auto configs =
          admitted(ConvGraph(p, MemoryFormat::nhwc, {.bias = true}, device()), rules);
      EXPECT_TRUE(any_plan(configs)) << configs.size() << " configurations";
    }
  }
}

// A plan with a relu is found by the name of the one without.
TEST_P(Deviceless, AReluJoinsTheBiasInTheSameEngine) {
  for (const Sizes& sizes : kPrograms) {
    for (const Rules& rules : kRules) {
      const CudnnProblem p(
          args_of(sizes, ConvPass::forward, rules.dtype, MemoryFormat::nhwc, true));
      SCOPED_TRACE(std::string(sizes.program) + ", " + rules.name + ", " + p.text());
      const auto plain =
          admitted(ConvGraph(p, MemoryFormat::nhwc, {.bias = true}, device()), rules);
      const auto with_relu =
          admitted(ConvGraph(p, MemoryFormat::nhwc, {.bias = true, .relu = true}, device()), rules);
      ASSERT_FALSE(plain.empty());
      const auto twin = std::ranges::find(with_relu, plain[0].name, &EngineConfig::name);
      ASSERT_NE(twin, with_relu.end()) << plain[0].name;
      EXPECT_EQ(EnginePlan::make(*twin, device()).has_value(),
                EnginePlan::make(plain[0], device()).has_value());
    }
  }
}

// The reason for the notes: without them f32 would be computed in TF32.
TEST_P(Deviceless, TheFirstChoiceForF32IsTensorCores) {
  const CudnnProblem p(
      args_of(kPrograms[11], ConvPass::forward, DType::f32, MemoryFormat::nhwc, false));
  const auto offered = ConvGraph(p, MemoryFormat::nhwc, {}, device()).offered(CUDNN_HEUR_MODE_A);
  ASSERT_FALSE(offered.empty());
  EXPECT_TRUE(offered[0].has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  EXPECT_FALSE(admissible(offered[0], DType::f32, false, false));
  EXPECT_TRUE(admissible(offered[0], DType::f32, true, false));
}

// Where channels fill them: for one channel cuDNN itself prefers another engine.
TEST_P(Deviceless, Bf16ConvolvesOnTensorCores) {
  for (const Sizes& sizes : kPrograms) {
    if (sizes.c % 8 != 0 || sizes.k % 8 != 0) continue;
    const CudnnProblem p(args_of(sizes, ConvPass::forward, DType::bf16, MemoryFormat::nhwc, false));
    const auto configs =
        admitted(ConvGraph(p, MemoryFormat::nhwc, {}, device()), {"", DType::bf16});
    ASSERT_FALSE(configs.empty()) << sizes.program;
    EXPECT_TRUE(configs[0].has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) << sizes.program;
  }
}

TEST_P(Deviceless, NamesTellConfigurationsApart) {
  const CudnnProblem p(
      args_of(kPrograms[11], ConvPass::forward, DType::bf16, MemoryFormat::nhwc, false));
  std::vector<std::string> names;
  for (const EngineConfig& c :
       ConvGraph(p, MemoryFormat::nhwc, {}, device()).offered(CUDNN_HEUR_MODE_A)) {
    names.push_back(c.name);
  }
  ASSERT_GT(names.size(), 4U);
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

// cuDNN's own check of the sizes: it derives those of the small image from the others.
TEST_P(Deviceless, AWrongSizeIsAnErrorThatNamesTheCall) {
  Conv2dArgs args = args_of(kPrograms[0], ConvPass::forward, DType::f32, MemoryFormat::nhwc, false);
  args.y.shape[2] += 1;
  const CudnnProblem p(args);
  EXPECT_WEFT_ERROR(ConvGraph(p, MemoryFormat::nhwc, {}, device()), Library,
                    "cudnnBackendFinalize(descriptor_) failed");
}

INSTANTIATE_TEST_SUITE_P(Gpus, Deviceless, ::testing::Values("h100", "h200", "a100"));

}  // namespace
}  // namespace weft::cuda
