// nn::summary compared with numbers computed by hand.
#include "weft/nn/summary.h"

#include <gtest/gtest.h>

#include "weft/examples/autoencoder.h"
#include "weft/examples/resnet.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

const nn::SummaryRow& row_of(const nn::Summary& summary, const std::string& path) {
  for (const nn::SummaryRow& row : summary.rows) {
    if (row.path == path) return row;
  }
  ADD_FAILURE() << "no row " << path;
  return summary.rows.front();
}

TEST(Summary, OfTheAutoencoder) {
  examples::Autoencoder model;
  const nn::Summary summary = nn::summary(model, {1, 1, 28, 28});
  const struct {
    const char* path;
    const char* type;
    Shape output;
    std::int64_t parameters, macs;
  } kExpected[] = {
      {"", "Autoencoder", {1, 1, 28, 28}, 0, 0},
      {"encoder", "Encoder", {1, 32}, 0, 0},
      {"encoder.conv1", "Conv2d", {1, 8, 26, 26}, 8 * 9 + 8, 26 * 26 * 8 * 9},
      {"encoder.conv2", "Conv2d", {1, 64, 24, 24}, 64 * 8 * 9 + 64, 24 * 24 * 64 * 8 * 9},
      {"encoder.fc", "Linear", {1, 32}, 36864 * 32 + 32, 36864 * 32},
      {"decoder", "Decoder", {1, 1, 28, 28}, 0, 0},
      {"decoder.fc", "Linear", {1, 36864}, 32 * 36864 + 36864, 32 * 36864},
      {"decoder.conv2", "ConvTranspose2d", {1, 8, 26, 26}, 64 * 8 * 9 + 8, 24 * 24 * 64 * 8 * 9},
      {"decoder.conv1", "ConvTranspose2d", {1, 1, 28, 28}, 8 * 9 + 1, 26 * 26 * 8 * 9},
  };
  ASSERT_EQ(summary.rows.size(), std::size(kExpected));
  std::int64_t activations = 0;
  for (std::size_t i = 0; i < std::size(kExpected); ++i) {
    const nn::SummaryRow& row = summary.rows[i];
    EXPECT_EQ(row.path, kExpected[i].path);
    EXPECT_EQ(row.type, kExpected[i].type);
    ASSERT_FALSE(row.outputs.empty()) << row.path;
    EXPECT_EQ(row.outputs[0], kExpected[i].output) << row.path;
    EXPECT_EQ(row.parameters, kExpected[i].parameters) << row.path;
    EXPECT_EQ(row.trainable, kExpected[i].parameters) << row.path;
    EXPECT_EQ(row.macs, kExpected[i].macs) << row.path;
    const std::int64_t bytes = kExpected[i].parameters ? 4 * numel(kExpected[i].output) : 0;
    EXPECT_EQ(row.activation_bytes, bytes) << row.path;
    activations += bytes;
  }
  EXPECT_EQ(summary.rows[0].outputs[1], (Shape{1, 32}));  // the code
  EXPECT_EQ(summary.parameters, 2'405'633);
  EXPECT_EQ(summary.trainable, 2'405'633);
  EXPECT_EQ(summary.parameter_bytes, 4 * 2'405'633);
  EXPECT_EQ(summary.macs, 7'765'056);
  EXPECT_EQ(summary.activation_bytes, activations);

  model.to(DType::f64);
  const nn::Summary doubles = nn::summary(model, {32, 1, 28, 28});
  EXPECT_EQ(doubles.macs, 32 * 7'765'056);
  EXPECT_EQ(doubles.parameter_bytes, 8 * 2'405'633);
  EXPECT_EQ(doubles.activation_bytes, 32 * 2 * activations);
}

// torchvision states 25,557,032 parameters and 4.09 GFLOPS (multiply-adds), counted by fvcore.
TEST(Summary, OfResNet50) {
  examples::ResNet model = examples::resnet50();
  nn::Summary summary = nn::summary(model, {1, 3, 224, 224});
  EXPECT_EQ(summary.parameters, 25'557'032);
  EXPECT_EQ(summary.trainable, 25'557'032);
  EXPECT_EQ(summary.macs, 4'089'184'256);
  EXPECT_EQ(row_of(summary, "conv1").macs, 112 * 112 * 64 * 3 * 49);
  EXPECT_EQ(row_of(summary, "layer3.0.conv2").macs, 14 * 14 * 256 * 256 * 9);
  EXPECT_EQ(row_of(summary, "layer3.0.downsample.0").outputs[0], (Shape{1, 1024, 14, 14}));
  EXPECT_EQ(row_of(summary, "layer3.0.bn2").parameters, 2 * 256);

  model.requires_grad(false);
  model.fc.requires_grad(true);
  summary = nn::summary(model, {1, 3, 64, 64});
  EXPECT_EQ(summary.trainable, 2048 * 1000 + 1000);
  EXPECT_EQ(summary.frozen(), 25'557'032 - 2'049'000);
  EXPECT_EQ(row_of(summary, "conv1").trainable, 0);
  EXPECT_EQ(row_of(summary, "conv1").parameters, 64 * 3 * 49);
  const std::string text = summary.to_string();
  EXPECT_NE(text.find("trainable         2,049,000\n"), std::string::npos) << text;
  EXPECT_NE(text.find("frozen            23,508,032\n"), std::string::npos) << text;
}

// Groups, strides and padding: weight [6,2,3,3] at 4 x 3 positions; transposed: weight [6,2,3,2] at
// the input's 4 x 3.
TEST(Summary, CountsGroups) {
  nn::Sequential net{nn::Conv2d(4, 6, 3, {.stride = 2, .padding = 1, .groups = 2}),
                     nn::ConvTranspose2d(6, 4, {3, 2}, {.stride = 2, .groups = 2, .bias = false})};
  const nn::Summary summary = nn::summary(net, {5, 4, 8, 6});
  EXPECT_EQ(summary.rows[1].outputs[0], (Shape{5, 6, 4, 3}));
  EXPECT_EQ(summary.rows[1].macs, 5 * 4 * 3 * 6 * 2 * 9);
  EXPECT_EQ(summary.rows[2].macs, 5 * 4 * 3 * 6 * 2 * 6);
}

struct Twice : nn::Module<Twice> {
  nn::Linear fc = child("fc", nn::Linear(4, 4));
  nn::Parameter scale = parameter("scale", ones({4, 4}));
  nn::Linear tied = child("tied", nn::Linear(4, 2, false));
  nn::Linear unused = child("unused", nn::Linear(4, 7));
  Tensor forward(const Tensor& x) { return tied(fc(matmul(fc(x), scale))); }
};

TEST(Summary, OfAModelThatReadsNumbersOfWords) {
  nn::Sequential net{nn::Embedding(5, 4), nn::Linear(4, 5)};
  EXPECT_WEFT_ERROR(nn::summary(net, {1, 3}), Dtype, "expected i64 or i32");
  const nn::Summary summary = nn::summary(net, {1, 3}, DType::i64);
  EXPECT_EQ(summary.dtype, DType::i64);
  EXPECT_EQ(summary.macs, 3 * 4 * 5);
}

TEST(Summary, ParametersCountOnceAndMacsInEachCall) {
  Twice model;
  const nn::Summary summary = nn::summary(model, {3, 4});
  ASSERT_EQ(summary.rows.size(), 4u);
  EXPECT_EQ(summary.rows[0].parameters, 16);
  EXPECT_EQ(summary.rows[0].macs, 3 * 4 * 4);  // of the product in forward itself
  EXPECT_EQ(summary.rows[1].parameters, 20);
  EXPECT_FALSE(summary.rows[1].recursive);
  EXPECT_EQ(summary.rows[2].path, "fc");
  EXPECT_EQ(summary.rows[2].parameters, 0);
  EXPECT_TRUE(summary.rows[2].recursive);
  EXPECT_EQ(summary.rows[2].macs, 3 * 4 * 4);
  EXPECT_EQ(summary.macs, 3 * (16 + 16 + 16 + 8));
  EXPECT_EQ(summary.parameters, 16 + 20 + 8 + 35);
  EXPECT_EQ(summary.activation_bytes, 4 * 3 * (4 + 4 + 2));
}

TEST(Summary, AParameterOfTwoModulesCountsInTheFirst) {
  struct Own : nn::Module<Own> {
    nn::Parameter w;
    explicit Own(const Tensor& value) : w(parameter("w", value)) {}
    Tensor forward(const Tensor& x) { return matmul(x, w); }
  };
  const Tensor w = ones({4, 4});
  nn::Sequential net{Own(w), Own(w)};
  const nn::Summary summary = nn::summary(net, {1, 4});
  EXPECT_EQ(summary.rows[1].parameters, 16);
  EXPECT_EQ(summary.rows[2].parameters, 0);
  EXPECT_TRUE(summary.rows[2].recursive);
  EXPECT_EQ(summary.parameters, 16);
  EXPECT_EQ(summary.macs, 32);
}

TEST(Summary, LeavesTheModelAsItWas) {
  nn::Sequential net{nn::Conv2d(1, 3, 3), nn::BatchNorm2d(3), nn::ReLU(),
                     nn::Dropout(),       nn::Flatten(),      nn::Linear(3 * 16, 2)};
  net(rand({4, 1, 6, 6})).sum().backward();
  std::vector<nn::ModuleBase> modules;
  net.apply([&](nn::ModuleBase& m) { modules.push_back(m); });
  modules[1].eval();  // as in fine-tuning
  const auto values = [&] {
    std::vector<std::vector<double>> result;
    for (const auto& [name, tensor] : net.state_dict()) {
      result.push_back(tensor.to_vector<double>());
      if (tensor.requires_grad()) result.push_back(tensor.grad().to_vector<double>());
    }
    return result;
  };
  const auto before = values();
  const std::string generator = default_generator().state();
  const nn::Summary summary = nn::summary(net, {4, 1, 6, 6});
  EXPECT_EQ(values(), before);
  EXPECT_EQ(default_generator().state(), generator);
  for (std::size_t i = 0; i < modules.size(); ++i) EXPECT_EQ(modules[i].is_training(), i != 1);
  // ReLU worked in place, and Dropout did nothing; Flatten copies a tensor with channels last.
  for (const int i : {3, 4}) EXPECT_EQ(summary.rows[i].activation_bytes, 0) << i;
  EXPECT_EQ(summary.rows[5].activation_bytes, 4 * 48 * 4);

  EXPECT_WEFT_ERROR(nn::summary(net, {4, 2, 6, 6}), Shape, "in 0 at");
  EXPECT_TRUE(net.is_training());
  EXPECT_TRUE(thread_state().grad_enabled);
  EXPECT_EQ(thread_state().multiply_adds, nullptr);
}

TEST(Summary, SeesTheTensorsOfAnyResult) {
  struct Many : nn::Module<Many> {
    std::tuple<std::vector<Tensor>, int, nn::Parameter> forward(const Tensor& x) {
      return {{x, x + 1}, 3, nn::Parameter(x * 2)};
    }
  };
  const nn::Summary summary = nn::summary(Many(), {2, 5});
  EXPECT_EQ(summary.rows[0].outputs, (std::vector<Shape>{{2, 5}, {2, 5}, {2, 5}}));
  EXPECT_EQ(summary.activation_bytes, 2 * 40);  // the first result is the input itself
  struct None : nn::Module<None> {
    void forward(const Tensor&) {}
  };
  EXPECT_TRUE(nn::summary(None(), {1}).rows[0].outputs.empty());
}

TEST(Summary, PrintsATable) {
  nn::Sequential net{nn::Flatten(), nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)};
  EXPECT_EQ(nn::summary(net, {64, 1, 28, 28}).to_string(),
            "module   type        output    parameters  trainable       MACs  activation bytes\n"
            "---------------------------------------------------------------------------------\n"
            "(model)  Sequential  [64,10]            -          -          -                 -\n"
            "0        Flatten     [64,784]           -          -          -                 -\n"
            "1        Linear      [64,128]     100,480    100,480  6,422,528            32,768\n"
            "2        ReLU        [64,128]           -          -          -                 -\n"
            "3        Linear      [64,10]        1,290      1,290     81,920             2,560\n"
            "---------------------------------------------------------------------------------\n"
            "input               [64,1,28,28] f32\n"
            "parameters          101,770 (0.388 MiB)\n"
            "  trainable         101,770\n"
            "  frozen            0\n"
            "MACs                6,504,448 (0.007 GMAC)\n"
            "activations         0.034 MiB\n");
}

}  // namespace
}  // namespace weft
