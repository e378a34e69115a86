// ResNet-18 with weights that PyTorch saved under torchvision's names, compared with PyTorch.
#include <cstdio>
#include <cstdlib>

#include "weft/examples/resnet.h"
#include "weft/tests/examples/difference.h"
#include "weft/tests/io/files.h"
#include "weft/weft.h"

namespace weft {
namespace {

TEST(ResNetWeightsPeer, LogitsArePyTorchs) {
  const char* python = std::getenv("WEFT_PEER");
  if (python == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and torchvision";
  testing::TempFolder folder;
  const std::string path = folder.path("resnet18.pth");
  ASSERT_EQ(std::system(
                (std::string(python) + " tests/examples/write_resnet_weights.py " + path).c_str()),
            0);
  const io::PickleValue file = io::load_pickle(path);
  const Tensor images = file.at("images").tensor(), exact = file.at("f64").tensor();
  const NoGrad no_grad;
  const auto logits = [&](DType dtype) {
    examples::ResNet model = examples::resnet18();
    model.load_state_dict(io::load_state_dict(path + ":state_dict"));
    model.to(dtype);
    model.eval();
    return model(images.to(dtype));
  };
  const double f64 = testing::largest_difference(logits(DType::f64), exact);
  const double f32 = testing::largest_difference(logits(DType::f32), exact);
  const double peer = testing::largest_difference(file.at("f32").tensor(), exact);
  std::printf("logits up to %.3g; f64: %.3g; f32: %.3g, PyTorch's %.3g\n",
              testing::largest_difference(exact, zeros(exact.shape())), f64, f32, peer);
  EXPECT_LT(f64, 1e-10);
  EXPECT_LT(f32, 2 * peer);
}

}  // namespace
}  // namespace weft
