#include "weft/data/picture.h"

#include <utility>

namespace weft::data {

void Picture::swap(io::Image& image) {
  pixels.swap(image.pixels);
  height = std::exchange(image.height, 0);
  width = std::exchange(image.width, 0);
  planes = 1;
  depth = image.channels;
}

void Picture::take_spare(int new_height, int new_width) {
  pixels.swap(spare);
  height = new_height;
  width = new_width;
}

}  // namespace weft::data
