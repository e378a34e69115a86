// Inference from a file of weights, compared with the model in this process.
#include <cstdio>
#include <string>
#include <vector>

#include "weft/examples/mlp.h"
#include "weft/tests/examples/launched.h"
#include "weft/weft.h"

namespace weft {
namespace {

class ClassifyRun : public testing::LaunchedTest {
 protected:
  ClassifyRun() : LaunchedTest("") {}
  int classify(const std::string& arguments) const {
    return status_of("examples/classify " + arguments + " >" + folder.path("log") + " 2>&1");
  }
};

TEST_F(ClassifyRun, SaysWhatTheModelSays) {
  succeed("out", false, "mlp", "--epochs 3 --batch-size 4 --lr 0.5");
  nn::Sequential model = examples::mlp();
  model.load_state_dict(io::load_safetensors(folder.path("out/model.safetensors")).tensors);
  const NoGrad no_grad;
  for (int seed = 0; seed < 4; ++seed) {
    Generator generator(static_cast<std::uint64_t>(seed));
    io::Image image{28, 28, 3, {}};
    std::vector<float> pixels;
    for (int i = 0; i < 28 * 28; ++i) {
      const auto level = static_cast<std::uint8_t>(generator.random32() % 256);
      image.pixels.insert(image.pixels.end(), 3, level);
      pixels.push_back(static_cast<float>(level) / 255.F);
    }
    io::write_png(folder.path("x.png"), image);
    const Tensor p = softmax(model(from_vector(pixels, {1, 1, 28, 28})), 1);
    const auto best = argmax(p, 1).item<std::int64_t>();
    char expected[64];
    std::snprintf(expected, sizeof expected, "class %d, %.1f %%\n", static_cast<int>(best),
                  100 * p[0][best].item<double>());
    ASSERT_EQ(classify(folder.path("out/model.safetensors ") + folder.path("x.png")), 0) << log();
    EXPECT_EQ(log(), expected);
  }
}

// As DataParallel saves them; the name of the file says nothing.
TEST_F(ClassifyRun, ReadsPyTorchsFiles) {
  const nn::Sequential model = examples::mlp();
  io::NamedTensors wrapped;
  for (const auto& [name, x] : model.state_dict()) wrapped.emplace_back("module." + name, x);
  io::save_safetensors(folder.path("plain"), model.state_dict());
  io::save_pickle(folder.path("wrapped"), io::PickleValue::state_dict(wrapped));
  io::write_png(folder.path("x.png"), {28, 28, 3, std::vector<std::uint8_t>(28 * 28 * 3, 99)});
  ASSERT_EQ(classify(folder.path("plain ") + folder.path("x.png")), 0) << log();
  const std::string expected = log();
  ASSERT_EQ(classify(folder.path("wrapped ") + folder.path("x.png")), 0) << log();
  EXPECT_EQ(log(), expected);
}

TEST_F(ClassifyRun, SaysWhatIsWrong) {
  EXPECT_EQ(classify(""), 2);
  EXPECT_HAS(log(), "usage: classify");
  EXPECT_EQ(classify(folder.path("none ") + folder.path("x.png")), 1);
  EXPECT_HAS(log(), "classify: ");
  EXPECT_HAS(log(), "none");
}

}  // namespace
}  // namespace weft
