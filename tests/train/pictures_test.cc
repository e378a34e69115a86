#include "weft/train/pictures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/train/canvas.h"

namespace weft::train {
namespace {

Color at(const io::Image& image, int x, int y) {
  const std::uint8_t* p = &image.pixels[static_cast<std::size_t>((y * image.width + x) * 3)];
  return {p[0], p[1], p[2]};
}

bool operator==(Color a, Color b) { return a.r == b.r && a.g == b.g && a.b == b.b; }

constexpr Color kBlack{0, 0, 0};
constexpr Color kWhite{255, 255, 255};

int count(const io::Image& image, Color color) {
  int n = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) n += at(image, x, y) == color;
  }
  return n;
}

TEST(Canvas, DrawsInsideAndCutsOffOutside) {
  Canvas canvas(20, 10, kWhite);
  canvas.fill(18, 8, 5, 5, kBlack);
  EXPECT_EQ(count(canvas.image(), kBlack), 4);
  canvas.line(-50, 5, 50, 5, 2, kBlack);
  EXPECT_TRUE(at(canvas.image(), 0, 4) == kBlack);
  EXPECT_TRUE(at(canvas.image(), 10, 5) == kBlack);
  EXPECT_TRUE(at(canvas.image(), 10, 2) == kWhite);
  canvas.line(NAN, 0, 5, 5, 2, kBlack);
  canvas.text(-4, -4, "edge", kBlack);
  canvas.text(18, 8, "edge", kBlack);
}

TEST(Canvas, WritesText) {
  Canvas canvas(200, 30, kWhite);
  canvas.text(5, 5, "loss 0.25", kBlack);
  EXPECT_GT(count(canvas.image(), kBlack), 40);
  EXPECT_EQ(Canvas::text_width("ab"), Canvas::text_width("a") + Canvas::text_width("b"));
  EXPECT_EQ(Canvas::text_width("\x01"), Canvas::text_width("?"));
  EXPECT_EQ(Canvas::text_width("\xc3"), Canvas::text_width("?"));
}

TEST(Pictures, TicksAreRound) {
  const auto expect = [](std::vector<double> got, std::vector<double> wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12);
  };
  expect(axis_ticks(0, 10, 5), {0, 2, 4, 6, 8, 10});
  expect(axis_ticks(0, 1875, 8), {0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800});
  expect(axis_ticks(0.013, 0.171, 6), {0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16});
  expect(axis_ticks(-1, 1, 4), {-1, -0.5, 0, 0.5, 1});
}

TEST(Pictures, CompareShowsInputCodeAndReconstruction) {
  const Tensor input = zeros({6, 1, 28, 28}), output = ones({6, 1, 28, 28});
  const io::Image image = compare_picture(input, zeros({6, 32}), output);
  EXPECT_EQ(image.channels, 3);
  EXPECT_GE(count(image, kBlack), 5 * 224 * 224);  // five inputs of 224 x 224 pixels
  EXPECT_LT(count(image, kBlack), 5 * 224 * 224 + 200);
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

TEST(Pictures, LossDrawsAnythingOfAnyLength) {
  const auto draws = [](const std::vector<double>& losses) {
    const io::Image image = loss_picture(losses, "t");
    EXPECT_EQ(image.width, 960);
    std::set<std::array<int, 3>> colors;
    for (int y = 0; y < image.height; ++y) {
      for (int x = 0; x < image.width; ++x) {
        const Color c = at(image, x, y);
        colors.insert({c.r, c.g, c.b});
      }
    }
    return colors.contains({31, 90, 180});  // the curve
  };
  std::vector<double> falling(5000);
  for (std::size_t i = 0; i < falling.size(); ++i)
    falling[i] = 0.2 * std::exp(-0.001 * static_cast<double>(i)) + 0.01;
  EXPECT_TRUE(draws(falling));
  EXPECT_TRUE(draws({1, 0.5}));
  EXPECT_TRUE(draws({2, 2, 2, 2}));
  EXPECT_TRUE(draws({0, 0, 0}));
  EXPECT_TRUE(draws({-3, 4, -5}));
  EXPECT_TRUE(draws({1, NAN, 0.5, INFINITY, 0.2}));
  EXPECT_TRUE(draws({1e-9, 1, 1e9, 0}));
  EXPECT_FALSE(draws({}));
  EXPECT_FALSE(draws({NAN, NAN}));
  draws({1});
}

TEST(Pictures, GridShowsImagesInOrder) {
  // Seven images of one grey each, 0 to 6 tenths, three in a row.
  Tensor images = zeros({7, 1, 32, 48});
  for (int i = 0; i < 7; ++i) raw::fill_(raw::narrow(images, 0, i, 1), i / 10.0);
  const io::Image grid = image_grid(images, 3);
  EXPECT_EQ(grid.width, 3 * 2 * 48 + 4 * 4);  // twice the size, gaps of 4
  EXPECT_EQ(grid.height, 3 * 2 * 32 + 4 * 4);
  for (int i = 0; i < 7; ++i) {
    const auto grey = static_cast<std::uint8_t>(std::lround(i * 25.5));
    EXPECT_EQ(count(grid, Color{grey, grey, grey}), 96 * 64) << i;
    EXPECT_TRUE(at(grid, 4 + i % 3 * 100, 4 + i / 3 * 68) == (Color{grey, grey, grey})) << i;
  }
  EXPECT_EQ(image_grid(zeros({2, 1, 32, 32})).width, 2 * 96 + 3 * 4);  // no empty columns

  const io::Image with_caption = image_grid(images, 3, "seven");
  EXPECT_GT(with_caption.height, grid.height);
  EXPECT_TRUE(std::equal(grid.pixels.rbegin(), grid.pixels.rend() - 4 * 3 * grid.width,
                         with_caption.pixels.rbegin()));

  const Tensor color = zeros({1, 3, 100, 100}, DType::f64);
  raw::fill_(raw::narrow(color, 1, 2, 1), 1);
  EXPECT_EQ(count(image_grid(color), Color{0, 0, 255}), 100 * 100);

  EXPECT_WEFT_ERROR(image_grid(zeros({2, 2, 4, 4})), Shape, "got [2,2,4,4]");
  EXPECT_WEFT_ERROR(image_grid(zeros({0, 1, 4, 4})), Shape, "got [0,1,4,4]");
  EXPECT_WEFT_ERROR(image_grid(zeros({1, 1, 4, 4}), 0), InvalidArgument, "1 column, got 0");
}

// Below 100 steps the values are the line; above, a legend tells the mean from them. A jump at the
// end raises the mean of the last steps half way, and does not stand alone.
TEST(Pictures, LossIsAPlainLineForAShortRunAndTheMeanOfALongOne) {
  constexpr Color kCurve{31, 90, 180};
  const auto in_row = [&](const io::Image& image, int y) {
    int found = 0;
    for (int x = 84; x < 960 - 28; ++x) found += at(image, x, y) == kCurve;
    return found;
  };
  const std::vector<double> few(99, 1.0), many(1000, 1.0);
  const io::Image plain = loss_picture(few, "t"), mean = loss_picture(many, "t");
  const auto legend = [&](const io::Image& image) {
    int found = 0;
    for (int y = 0; y < 50; ++y) found += in_row(image, y);
    return found;
  };
  EXPECT_EQ(legend(plain), 0);
  EXPECT_GT(legend(mean), 20);
  std::vector<double> jump(1000, 1.0);
  jump.back() = 3;  // of the 11 last values
  const io::Image image = loss_picture(jump, "t");
  int highest = image.height;
  for (int y = image.height - 1; y >= 56; --y) {
    if (in_row(image, y) > 0) highest = y;
  }
  // The axis goes from 0 to 3.15, from row 480 up to row 56; the mean there is (10 + 3) / 11.
  EXPECT_NEAR(highest, 480 - (13.0 / 11) / 3.15 * (480 - 56), 3);
}

TEST(Pictures, LossDrawsSeveralCurves) {
  const std::vector<double> low(300, 1.0), high(300, 2.0), three(100, 3.0);
  const io::Image one = loss_picture(low, "title");
  const Curve alone{"", low};
  EXPECT_EQ(loss_picture(std::span(&alone, 1), "title").pixels, one.pixels);

  const std::vector<Curve> curves = {{"first", low}, {"second", high}, {"third", three}};
  const io::Image all = loss_picture(curves, "title");
  constexpr Color kFirst{31, 90, 180}, kSecond{214, 96, 20}, kThird{40, 140, 70};
  const int whole = 960 - 84 - 28;
  EXPECT_GT(count(all, kFirst), whole);  // a line, and its place in the legend
  EXPECT_GT(count(all, kSecond), whole);
  EXPECT_GT(count(all, kThird), whole / 4);  // it ends after a third of the steps
  EXPECT_LT(count(all, kThird), whole);
  EXPECT_WEFT_ERROR(loss_picture(std::span<const Curve>(), "title"), InvalidArgument, "no curve");
}

TEST(Pictures, ProportionalIsStraightOnLogarithmicAxes) {
  // y = 3 x and y = x / 100: parallel lines, the second of which lies where the first does, moved.
  std::vector<PointCurve> curves(2);
  for (int x = 1; x <= 64; x *= 2) {
    curves[0].points.emplace_back(x, 3 * x);
    curves[1].points.emplace_back(x, x / 100.0);
  }
  const io::Image image = log_log_picture(curves, "title", "batch");
  const auto height = [&](Color color, int x) {
    for (int y = 60; y < image.height - 60; ++y) {
      if (at(image, x, y) == color) return y;
    }
    return -1;
  };
  const Color first{31, 90, 180}, second{214, 96, 20};
  const int apart = height(second, 300) - height(first, 300);
  EXPECT_GT(apart, 100);
  for (const int x : {200, 500, 800}) {
    EXPECT_NEAR(height(second, x) - height(first, x), apart, 2) << x;
    EXPECT_NEAR(height(first, x) - height(first, x + 50), height(first, 300) - height(first, 350),
                2);
  }
}

TEST(Pictures, StackedStandBelowEachOther) {
  const io::Image dark{2, 1, 3, {1, 2, 3, 4, 5, 6}},
      bright{2, 2, 3, std::vector<std::uint8_t>(12, 9)};
  const io::Image both = stacked(std::vector{dark, bright});
  EXPECT_EQ(both.width, 2);
  EXPECT_EQ(both.height, 3);
  std::vector<std::uint8_t> pixels = dark.pixels;
  pixels.insert(pixels.end(), bright.pixels.begin(), bright.pixels.end());
  EXPECT_EQ(both.pixels, pixels);
  EXPECT_WEFT_ERROR(stacked({}), Shape, "no picture");
  EXPECT_WEFT_ERROR(stacked(std::vector{dark, io::Image{1, 1, 3, {0, 0, 0}}}), Shape,
                    "a picture is 1 wide and has 3 channels, the first 2 and 3");
}

TEST(Pictures, LogLogLeavesOutWhatHasNoLogarithm) {
  const PointCurve odd{"odd", {{1, 2}, {2, 0}, {-1, 3}, {4, NAN}, {0, 1}, {8, INFINITY}}};
  EXPECT_EQ(log_log_picture(std::vector{odd}, "", "").width, 960);
  EXPECT_EQ(log_log_picture(std::vector{PointCurve()}, "", "").width, 960);
  EXPECT_WEFT_ERROR(log_log_picture({}, "", ""), InvalidArgument, "no curve");
}

}  // namespace
}  // namespace weft::train
