// What the real cuDNN offers for GPUs that are not here: their properties, as JSON, take the place
// of a handle, so heuristics and plans need neither a GPU nor a driver. Only a GPU can run the
// plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/kernels/cuda/conv_graph.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/every_case.h"
#include "weft/tests/kernels/cuda/absent_gpu.h"

namespace weft::cuda {
namespace {

/// Convolutions of one size. w [k,c/groups,r,s] in all of them.
struct Sizes {
  const char* program;
  std::int64_t n, c, h, w, k, r, s;
  Conv2dParams params = {};
};

constexpr Conv2dParams kSame3 = {.padding = {1, 1}},
                       kHalve3 = {.stride = {2, 2}, .padding = {1, 1}};
constexpr Conv2dParams kSame5 = {.padding = {2, 2}}, kHalve1 = {.stride = {2, 2}};

// Each distinct one of the programs, transposed ones by the convolution whose gradient they are.
// First those of every run, which have little in common: one channel or filter, three, hundreds to
// thousands, strides, and tensors so large that their copies exceed a gibibyte.
constexpr std::size_t kInEveryRun = 9;
const Sizes kPrograms[] = {
    {"autoencoder conv1, deconv2", 32, 1, 28, 28, 8, 3, 3},
    {"resnet conv1", 256, 3, 224, 224, 64, 7, 7, {.stride = {2, 2}, .padding = {3, 3}}},
    {"resnet layer1 3x3", 256, 64, 56, 56, 64, 3, 3, kSame3},
    {"resnet50 layer2 1x1, first", 256, 256, 56, 56, 128, 1, 1},
    {"resnet50 layer2 downsample", 256, 256, 56, 56, 512, 1, 1, kHalve1},
    {"resnet50 layer4 3x3 halves", 256, 512, 14, 14, 512, 3, 3, kHalve3},
    {"cnn conv6", 64, 2048, 8, 8, 4096, 5, 5, kSame5},
    {"dcgan 32x32, 1 channel", 64, 1, 32, 32, 16, 4, 4, kHalve3},
    {"dcgan 4x4, to one score", 64, 64, 4, 4, 1, 4, 4},

    {"autoencoder conv2, deconv1", 32, 8, 26, 26, 64, 3, 3},
    {"cnn conv1", 64, 3, 32, 32, 32, 5, 5, kSame5},
    {"cnn conv2", 64, 32, 32, 32, 64, 5, 5, kSame5},
    {"cnn conv3", 64, 64, 32, 32, 512, 5, 5, kSame5},
    {"cnn conv4", 64, 512, 16, 16, 1024, 5, 5, kSame5},
    {"cnn conv5", 64, 1024, 8, 8, 2048, 5, 5, kSame5},

    // dcgan and wgan_gp: images of 32x32 with --width 16, and of 64x64 with 64
    {"dcgan 32x32: 16x16", 64, 16, 16, 16, 32, 4, 4, kHalve3},
    {"dcgan 32x32: 8x8", 64, 32, 8, 8, 64, 4, 4, kHalve3},
    {"dcgan 32x32: from 100 values", 64, 64, 4, 4, 100, 4, 4},
    {"dcgan 64x64, 1 channel", 64, 1, 64, 64, 64, 4, 4, kHalve3},
    {"dcgan 64x64: 32x32", 64, 64, 32, 32, 128, 4, 4, kHalve3},
    {"dcgan 64x64: 16x16", 64, 128, 16, 16, 256, 4, 4, kHalve3},
    {"dcgan 64x64: 8x8", 64, 256, 8, 8, 512, 4, 4, kHalve3},
    {"dcgan 64x64: to one score", 64, 512, 4, 4, 1, 4, 4},
    {"dcgan 64x64: from 100 values", 64, 512, 4, 4, 100, 4, 4},

    {"gan_style 8x8, 1 channel", 64, 1, 8, 8, 16, 3, 3, kSame3},
    {"gan_style 16x16", 64, 16, 16, 16, 16, 3, 3, kSame3},
    {"gan_style 32x32", 64, 16, 32, 32, 16, 3, 3, kSame3},
    {"gan_style 32x32, to 1 channel", 64, 16, 32, 32, 1, 3, 3, kSame3},
    {"vgg of width 8, 1", 64, 3, 32, 32, 8, 3, 3, kSame3},
    {"vgg of width 8, 2", 64, 8, 32, 32, 8, 3, 3, kSame3},
    {"vgg of width 8, 3", 64, 8, 16, 16, 16, 3, 3, kSame3},
    {"vgg of width 8, 4", 64, 16, 8, 8, 32, 3, 3, kSame3},
    {"vgg of width 8, 5", 64, 32, 8, 8, 32, 3, 3, kSame3},
    {"vgg16, 1", 64, 3, 32, 32, 64, 3, 3, kSame3},
    {"vgg16, 2", 64, 64, 32, 32, 64, 3, 3, kSame3},
    {"vgg16, 3", 64, 64, 16, 16, 128, 3, 3, kSame3},
    {"vgg16, 4", 64, 128, 16, 16, 128, 3, 3, kSame3},
    {"vgg16, 5", 64, 128, 8, 8, 256, 3, 3, kSame3},
    {"vgg16, 6", 64, 256, 8, 8, 256, 3, 3, kSame3},

    {"resnet50 layer1 1x1, first", 256, 64, 56, 56, 64, 1, 1},
    {"resnet50 layer1 1x1 wider, downsample", 256, 64, 56, 56, 256, 1, 1},
    {"resnet50 layer1 1x1 narrower", 256, 256, 56, 56, 64, 1, 1},
    {"resnet50 layer2 3x3 halves", 256, 128, 56, 56, 128, 3, 3, kHalve3},
    {"resnet layer2 3x3", 256, 128, 28, 28, 128, 3, 3, kSame3},
    {"resnet50 layer2 1x1 wider", 256, 128, 28, 28, 512, 1, 1},
    {"resnet50 layer2 1x1 narrower", 256, 512, 28, 28, 128, 1, 1},
    {"resnet50 layer3 1x1, first", 256, 512, 28, 28, 256, 1, 1},
    {"resnet50 layer3 3x3 halves", 256, 256, 28, 28, 256, 3, 3, kHalve3},
    {"resnet50 layer3 downsample", 256, 512, 28, 28, 1024, 1, 1, kHalve1},
    {"resnet layer3 3x3", 256, 256, 14, 14, 256, 3, 3, kSame3},
    {"resnet50 layer3 1x1 wider", 256, 256, 14, 14, 1024, 1, 1},
    {"resnet50 layer3 1x1 narrower", 256, 1024, 14, 14, 256, 1, 1},
    {"resnet50 layer4 1x1, first", 256, 1024, 14, 14, 512, 1, 1},
    {"resnet50 layer4 downsample", 256, 1024, 14, 14, 2048, 1, 1, kHalve1},
    {"resnet layer4 3x3", 256, 512, 7, 7, 512, 3, 3, kSame3},
    {"resnet50 layer4 1x1 wider", 256, 512, 7, 7, 2048, 1, 1},
    {"resnet50 layer4 1x1 narrower", 256, 2048, 7, 7, 512, 1, 1},
    {"resnet18 layer2 3x3 halves", 256, 64, 56, 56, 128, 3, 3, kHalve3},
    {"resnet18 layer2 downsample", 256, 64, 56, 56, 128, 1, 1, kHalve1},
    {"resnet18 layer3 3x3 halves", 256, 128, 28, 28, 256, 3, 3, kHalve3},
    {"resnet18 layer3 downsample", 256, 128, 28, 28, 256, 1, 1, kHalve1},
    {"resnet18 layer4 3x3 halves", 256, 256, 14, 14, 512, 3, 3, kHalve3},
    {"resnet18 layer4 downsample", 256, 256, 14, 14, 512, 1, 1, kHalve1},
};

/// Those of this run: a soak (WEFT_EVERY_CASE) has all.
std::span<const Sizes> programs() {
  const std::span<const Sizes> all = kPrograms;
  return testing::every_case() ? all : all.first(kInEveryRun);
}
const Sizes& layer1_3x3() { return kPrograms[2]; }

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
  std::vector<EngineConfig> admitted(const ConvGraph& graph, const Rules& rules,
                                     bool with_fallback = true) const {
    std::vector<EngineConfig> out;
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      if (mode == CUDNN_HEUR_MODE_FALLBACK && !with_fallback) break;
      for (EngineConfig& config : graph.offered(mode)) {
        if (admissible(config, rules.dtype, rules.tf32, rules.deterministic) &&
            std::ranges::find(out, config.name, &EngineConfig::name) == out.end()) {
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
        EXPECT_TRUE(any_plan(p, configs)) << configs.size() << " configurations";
      }
    }
  }

  bool any_plan(const CudnnProblem& p, const std::vector<EngineConfig>& configs) const {
    return std::ranges::any_of(configs, [&](const EngineConfig& config) {
      const auto plan = EnginePlan::make(config, device());
      return plan && plan->workspace_bytes() <= p.most_workspace();
    });
  }

  std::optional<BackendDescriptor> properties_;
};

TEST_P(Deviceless, EveryConvolutionOfEveryProgramHasAPlan) {
  for (const Sizes& sizes : programs()) expect_plans(sizes, MemoryFormat::nhwc);
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
  for (const Sizes& sizes : programs()) {
    for (const Rules& rules : kRules) {
      if (rules.deterministic) continue;  // then it is added as everywhere else
      // For f64, and f32 without tensor cores, cuDNN offers no engine with a bias for the largest.
      if (rules.dtype != DType::bf16 && !rules.tf32) continue;
      const CudnnProblem p(
          args_of(sizes, ConvPass::forward, rules.dtype, MemoryFormat::nhwc, true));
      SCOPED_TRACE(std::string(sizes.program) + ", " + rules.name + ", " + p.text());
      ASSERT_TRUE(p.fusable_bias);
      const auto configs =
          admitted(ConvGraph(p, MemoryFormat::nhwc, {.bias = true}, device()), rules, false);
      EXPECT_TRUE(any_plan(p, configs)) << configs.size() << " configurations";
    }
  }
}

// A plan with a relu is found by the name of the one without.
TEST_P(Deviceless, AReluJoinsTheBiasInTheSameEngine) {
  for (const Sizes& sizes : programs()) {
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
      args_of(layer1_3x3(), ConvPass::forward, DType::f32, MemoryFormat::nhwc, false));
  const auto offered = ConvGraph(p, MemoryFormat::nhwc, {}, device()).offered(CUDNN_HEUR_MODE_A);
  ASSERT_FALSE(offered.empty());
  EXPECT_TRUE(offered[0].has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  EXPECT_FALSE(admissible(offered[0], DType::f32, false, false));
  EXPECT_TRUE(admissible(offered[0], DType::f32, true, false));
}

// Where channels fill them. cuDNN's first choice is another engine where they are few, or where
// reading the image takes most of the time.
TEST_P(Deviceless, Bf16ConvolvesOnTensorCores) {
  for (const Sizes& sizes : programs()) {
    if (sizes.c % 8 != 0 || sizes.k % 8 != 0) continue;
    const CudnnProblem p(args_of(sizes, ConvPass::forward, DType::bf16, MemoryFormat::nhwc, false));
    const auto configs =
        admitted(ConvGraph(p, MemoryFormat::nhwc, {}, device()), {"", DType::bf16});
    EXPECT_TRUE(std::ranges::any_of(configs | std::views::take(kTimed), [](const auto& config) {
      return config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    })) << sizes.program;
  }
}

TEST_P(Deviceless, NamesTellConfigurationsApart) {
  const CudnnProblem p(
      args_of(layer1_3x3(), ConvPass::forward, DType::bf16, MemoryFormat::nhwc, false));
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
                    "cudnnBackendFinalize(get()) failed");
}

INSTANTIATE_TEST_SUITE_P(Gpus, Deviceless, ::testing::Values("h100", "h200", "a100"));

}  // namespace
}  // namespace weft::cuda
