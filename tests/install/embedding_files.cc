// Writes what the programs of docs/embedding.md read: weights and a picture.
#include <cstdint>
#include <vector>

#include "weft/weft.h"

using namespace weft;

int main() {
  // The mean of the first channel, where it is positive, is the evidence of class 3.
  Tensor conv = zeros({8, 3, 3, 3}), classes = zeros({10, 8});
  conv[0][0][1][1].fill_(1);
  classes[3][0].fill_(5);
  io::save_pickle("net.pt", io::PickleValue::state_dict({{"module.conv.weight", conv},
                                                         {"module.conv.bias", zeros({8})},
                                                         {"module.fc.weight", classes},
                                                         {"module.fc.bias", zeros({10})}}));
  io::save_safetensors("net.safetensors", {{"fc.weight", tensor({1, 0, 0, 2}).reshape({2, 2})},
                                           {"fc.bias", zeros({2})}});
  io::save_safetensors("nearest.safetensors",
                       {{"project.weight", tensor({1, 0, 0, 0, 1, 0}).reshape({2, 3})}});

  io::Image red{.width = 80, .height = 100, .pixels = std::vector<std::uint8_t>(3 * 80 * 100)};
  for (std::size_t i = 0; i < red.pixels.size(); i += 3) red.pixels[i] = 255;
  io::write_png("red.png", red);
}
