// Inference in a program outside weft: `classify WEIGHTS IMAGE` says to which of the ten
// classes a 28x28 picture (PNG or JPEG) belongs, with the weights that `./weft run mlp` has saved.
#include <cstdio>
#include <vector>

#include "weft/examples/mlp.h"
#include "weft/weft.h"

using namespace weft;

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: classify WEIGHTS IMAGE\n", stderr), 2;
  nn::Sequential model = examples::mlp();
  model.load_state_dict(nn::strip_wrappers(io::load_state_dict(argv[1])));
  model.eval();
  const NoGrad no_grad;  // nothing is recorded or kept
  const io::Image image = io::read_image(argv[2]);
  WEFT_CHECK(image.width == 28 && image.height == 28, Shape, "classify", argv[2], ": ", image.width,
             " x ", image.height, " pixels, expected 28 x 28");
  std::vector<float> pixels;  // the first of three equal channels
  for (std::size_t i = 0; i < image.pixels.size(); i += 3)
    pixels.push_back(image.pixels[i] / 255.F);
  const Tensor p = softmax(model(from_vector(pixels, {1, 1, 28, 28})), 1);
  const auto best = argmax(p, 1).item<std::int64_t>();
  std::printf("class %d, %.1f %%\n", static_cast<int>(best), 100 * p[0][best].item<double>());
} catch (const Error& error) {
  return std::fprintf(stderr, "classify: %s\n", error.what()), 1;
}
