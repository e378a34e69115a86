#include "weft/train/pictures.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

using Color = std::array<std::uint8_t, 3>;

Color at(const io::Image& image, int x, int y) {
  const std::uint8_t* p = &image.pixels[static_cast<std::size_t>((y * image.width + x) * 3)];
  return {p[0], p[1], p[2]};
}

constexpr Color kBlack{0, 0, 0};

int count(const io::Image& image, Color color) {
  int n = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) n += at(image, x, y) == color;
  }
  return n;
}

TEST(Pictures, CompareShowsInputCodeAndReconstruction) {
  const Tensor input = zeros({6, 1, 28, 28}), output = ones({6, 1, 28, 28});
  const io::Image image = compare_picture(input, zeros({6, 32}), output);
  EXPECT_EQ(image.channels, 3);
  EXPECT_EQ(count(image, kBlack), 5 * 224 * 224);  // five inputs of 224 x 224 pixels
  // White reconstructions on white ground have an edge.
  EXPECT_EQ(count(image, Color{232, 232, 236}), 5 * (2 * 4 * 225 + 2 * 225 + 2 * 43));
  // Two of three dimensions are one picture wide for one example.
  const io::Image one = compare_picture(input, zeros({6, 32}), output, 1);
  EXPECT_EQ(image.width - one.width, 4 * (224 + 22));
  EXPECT_EQ(image.height, one.height);
  EXPECT_EQ(compare_picture(zeros({2, 1, 28, 28}), zeros({2, 32}), zeros({2, 1, 28, 28})).width,
            one.width + 246);
}

TEST(Pictures, CompareTakesOtherSizesAndDtypes) {
  compare_picture(zeros({1, 1, 5, 300}, DType::f64), zeros({1, 1000}, DType::f64),
                  zeros({1, 1, 5, 300}, DType::f64));
  compare_picture(full({1, 1, 2, 2}, NAN), full({1, 3}, NAN), full({1, 1, 2, 2}, -7.0));
}

TEST(Pictures, CompareRefusesWhatDoesNotFit) {
  const Tensor x = zeros({2, 1, 4, 4});
  EXPECT_WEFT_ERROR(compare_picture(x, zeros({3, 8}), x), Shape, "got [2,1,4,4], [2,1,4,4], [3,8]");
  EXPECT_WEFT_ERROR(compare_picture(x, zeros({2, 8}), zeros({2, 1, 4, 5})), Shape,
                    "compare_picture");
  EXPECT_WEFT_ERROR(compare_picture(zeros({2, 3, 4, 4}), zeros({2, 8}), zeros({2, 3, 4, 4})), Shape,
                    "");
}

TEST(Pictures, GridShowsImagesInOrder) {
  // Seven images, each with a single grey from 0 to 6 tenths, three in a row.
  Tensor images = zeros({7, 1, 32, 48});
  for (int i = 0; i < 7; ++i) raw::fill_(raw::narrow(images, 0, i, 1), i / 10.0);
  const io::Image grid = image_grid(images, 3);
  EXPECT_EQ(grid.width, 3 * 2 * 48 + 4 * 4);  // twice the size, with gaps of 4
  EXPECT_EQ(grid.height, 3 * 2 * 32 + 4 * 4);
  for (int i = 0; i < 7; ++i) {
    const auto grey = static_cast<std::uint8_t>(std::lround(i * 25.5));
    EXPECT_EQ(count(grid, Color{grey, grey, grey}), 96 * 64) << i;
    EXPECT_TRUE(at(grid, 4 + i % 3 * 100, 4 + i / 3 * 68) == (Color{grey, grey, grey})) << i;
  }
  EXPECT_EQ(image_grid(zeros({2, 1, 32, 32})).width, 2 * 96 + 3 * 4);  // no empty columns

  const Tensor color = zeros({1, 3, 100, 100}, DType::f64);
  raw::fill_(raw::narrow(color, 1, 2, 1), 1);
  EXPECT_EQ(count(image_grid(color), Color{0, 0, 255}), 100 * 100);

  EXPECT_WEFT_ERROR(image_grid(zeros({2, 2, 4, 4})), Shape, "got [2,2,4,4]");
  EXPECT_WEFT_ERROR(image_grid(zeros({0, 1, 4, 4})), Shape, "got [0,1,4,4]");
  EXPECT_WEFT_ERROR(image_grid(zeros({1, 1, 4, 4}), 0), InvalidArgument, "1 column, got 0");
}

}  // namespace
}  // namespace weft::train
