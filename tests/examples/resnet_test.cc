// ResNet-18 and ResNet-50 against PyTorch, in f64: names, logits, gradients, training.
#include "weft/examples/resnet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft {
namespace {

using nlohmann::json;

const json& goldens(const std::string& name) {
  static const json all = json::parse(std::ifstream("tests/examples/resnet_goldens.json"));
  return all[name];
}

examples::ResNet make(const std::string& name, const examples::ResNetOptions& options = {}) {
  return name == "resnet18" ? examples::resnet18(options) : examples::resnet50(options);
}

// The formula of write_resnet_goldens.py.
Tensor made_up(std::uint32_t number, const Shape& shape, double scale = 1, double offset = 0) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 2654435761U + number * 40503U;
    h = (h ^ h >> 15) * 2246822519U;
    h = (h ^ h >> 13) * 3266489917U;
    h ^= h >> 16;
    values[i] = (h / 2147483648.0 - 1) * scale + offset;
  }
  return from_vector(values, shape);
}

void set_weights(examples::ResNet& model) {
  std::uint32_t number = 0;
  for (const auto& [name, p] : model.named_parameters()) {
    const Shape& s = p.shape();
    if (p.dim() == 4) {
      raw::copy_(p, made_up(number, s, std::sqrt(6.0 / static_cast<double>(s[0] * s[2] * s[3]))));
    } else if (p.dim() == 2) {
      raw::copy_(p, made_up(number, s, std::sqrt(3.0 / static_cast<double>(s[1]))));
    } else {
      raw::copy_(p, made_up(number, s, 0.2, name.ends_with("weight") ? 1 : 0));
    }
    if (name.ends_with("bn3.weight")) raw::mul_(p, 0.25);
    ++number;
  }
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

void expect_close(const Tensor& got, const json& expected, double tolerance, const char* what) {
  const auto want = expected.get<std::vector<double>>();
  const std::vector<double> values = got.to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], want[i], tolerance * norm_of(want)) << what << " element " << i;
}

// Checks norm, sum and samples of a tensor. In the sum, an error of `tolerance` times the norm may
// add up sqrt(numel) times.
void expect_figures(const Tensor& got, const json& expected, double tolerance,
                    const std::string& name) {
  const auto want = expected.get<std::vector<double>>();
  const std::vector<double> values = raw::to(got, DType::f64).to_vector<double>();
  const double n = static_cast<double>(values.size()), slack = tolerance * want[0];
  double sum = 0;
  for (const double v : values) sum += v;
  EXPECT_NEAR(norm_of(values), want[0], slack) << name;
  EXPECT_NEAR(sum, want[1], slack * std::sqrt(n)) << name;
  const std::size_t samples = want.size() - 2;
  for (std::size_t i = 0; i < samples; ++i)
    EXPECT_NEAR(values[i * (values.size() - 1) / (samples - 1)], want[2 + i], slack) << name;
}

class ResNetTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ResNetTest, StateDictHasTorchvisionsNamesAndShapes) {
  const json& shapes = goldens(GetParam())["shapes"];
  const auto state = make(GetParam()).state_dict();
  EXPECT_EQ(state.size(), shapes.size());
  for (const auto& [name, tensor] : state) {
    ASSERT_TRUE(shapes.contains(name)) << name;
    EXPECT_EQ(json(std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end())),
              shapes[name])
        << name;
  }
}

// Tolerances: each of the 50 layers rounds by about 1e-16, and normalising over 8 values at the end
// multiplies the error; an error in one step affects all later ones.
TEST_P(ResNetTest, TrainsAsPyTorchDoes) {
  const json& golden = goldens(GetParam());
  examples::ResNet model = make(GetParam(), {.num_classes = 10});
  model.to(DType::f64);
  set_weights(model);
  const Tensor x = made_up(1000, {2, 3, 64, 64});
  const Tensor label = from_vector(std::vector<std::int64_t>{3, 7}, {2});
  optim::SGD sgd(model.parameters(), {.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4});
  const std::size_t steps = testing::kSanitized ? 1 : golden["losses"].size();
  for (std::size_t step = 0; step < steps; ++step) {
    sgd.zero_grad();
    const Tensor logits = model(x);
    const Tensor loss = nn::cross_entropy(logits, label);
    loss.backward();
    if (step == 0) {
      expect_close(logits.detach(), golden["logits"], 1e-12, "logits");
      for (const auto& [name, p] : model.named_parameters())
        expect_figures(p.grad(), golden["gradients"][name], 1e-11, name);
    }
    sgd.step();
    EXPECT_NEAR(loss.item<double>(), golden["losses"][step].get<double>(), 1e-10) << step;
  }
  if (testing::kSanitized) return;
  for (const auto& [name, tensor] : model.state_dict())
    expect_figures(tensor, golden["state"][name], 1e-10, name);
  model.eval();
  const NoGrad no_grad;
  expect_close(model(x), golden["evaluated"], 1e-9, "evaluated");
}

INSTANTIATE_TEST_SUITE_P(Depths, ResNetTest, ::testing::Values("resnet18", "resnet50"),
                         [](const auto& info) { return std::string(info.param); });

// The counts of torchvision.
TEST(ResNet, HasAsManyParametersAsTorchvisions) {
  EXPECT_EQ(examples::resnet18().parameter_count(), 11'689'512);
  EXPECT_EQ(examples::resnet(34).parameter_count(), 21'797'672);
  EXPECT_EQ(examples::resnet50().parameter_count(), 25'557'032);
  EXPECT_EQ(examples::resnet(101).parameter_count(), 44'549'160);
  EXPECT_WEFT_ERROR(examples::resnet(20), InvalidArgument, "depth: got 20");
}

TEST(ResNet, ZeroInitResidualMakesEveryBlockTheIdentity) {
  const auto zero_weights = [](examples::ResNet model) {
    std::map<std::string, int> found;  // indexed by the last two parts of the name
    for (const auto& [name, p] : model.named_parameters()) {
      const double norm = norm_of(p.to_vector<double>());
      if (norm == 0 && name.ends_with("weight")) ++found[name.substr(name.find('.', 7) + 1)];
    }
    return found;
  };
  using Found = std::map<std::string, int>;
  EXPECT_EQ(zero_weights(examples::resnet18({.zero_init_residual = true})),
            (Found{{"bn2.weight", 8}}));
  EXPECT_EQ(zero_weights(examples::resnet50({.zero_init_residual = true})),
            (Found{{"bn3.weight", 16}}));
  EXPECT_EQ(zero_weights(examples::resnet18()), Found());

  examples::BasicBlock block(4, 4, 1);
  nn::init::zeros_(block.bn2.weight);
  const Tensor x = made_up(0, {2, 4, 6, 6}, 0.5, 0.5);
  EXPECT_EQ(block(raw::to(x, DType::f32)).to_vector<float>(),
            raw::to(x, DType::f32).to_vector<float>());
}

// A block whose author forgot that conv1 has doubled the channels when the net has 256.
struct WrongBlock : nn::Module<WrongBlock> {
  static constexpr int expansion = 1;
  static constexpr const char* last_norm = ".conv2.weight";
  nn::Conv2d conv1, conv2;
  WrongBlock(std::int64_t in, std::int64_t planes, int stride)
      : conv1(child("conv1", examples::conv3x3(in, planes, stride))),
        conv2(child("conv2", examples::conv3x3(planes == 256 ? in : planes, planes))) {}
  Tensor forward(const Tensor& x) { return conv2(relu(conv1(x))); }
};

TEST(ResNet, WrongShapesNameTheModule) {
  examples::ResNet model = examples::resnet18();
  EXPECT_WEFT_ERROR(model(zeros({2, 1, 32, 32})), Shape, "in conv1");
  EXPECT_WEFT_ERROR(model(zeros({3, 32, 32})), Shape, "in bn1");
  // For an image of 32 x 32 layer4 leaves one value per channel, which has no variance.
  EXPECT_WEFT_ERROR(model(zeros({1, 3, 32, 32})), Shape, "in layer4.0.bn1");
  examples::ResNet wrong(std::type_identity<WrongBlock>(), {1, 1, 2, 1}, {});
  EXPECT_WEFT_ERROR(wrong(zeros({2, 3, 64, 64})), Shape,
                    "[conv2d] input channels: got 256, weight expects 128");
  EXPECT_WEFT_ERROR(wrong(zeros({2, 3, 64, 64})), Shape, "in layer3.0.conv2 at");
}

// Backward runs each rule with the path of the call to which it belongs.
TEST(ResNet, ErrorsInBackwardNameTheModule) {
  examples::ResNet model = examples::resnet18();
  const Tensor loss = model(rand({2, 3, 64, 64})).sum();
  for (const auto& [name, p] : model.named_parameters()) {
    if (name == "layer3.0.conv2.weight") raw::mul_(p, 2);
  }
  EXPECT_WEFT_ERROR(loss.backward(), InvalidArgument, "in layer3.0.conv2 at");
}

}  // namespace
}  // namespace weft
