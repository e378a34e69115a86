#include "weft/train/charts.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <regex>
#include <sstream>

#include "weft/tests/core/expect_error.h"

namespace weft::train {
namespace {

constexpr const char* kFirst = "#1f5ab4";
constexpr const char* kSecond = "#d66014";
constexpr const char* kThird = "#288c46";
constexpr double kLeft = 72, kRight = 696, kTop = 66, kBottom = 362;  // the axes' ends

using Matches = std::vector<std::smatch>;

Matches matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), regex), {}};
}

std::vector<std::string> texts(const std::string& svg) {
  std::vector<std::string> found;
  for (const std::smatch& match : matches(svg, ">([^<]*)</text>")) found.push_back(match[1]);
  return found;
}

struct Path {
  std::string commands;
  double width, opacity;

  /// The points to which M and L go.
  std::vector<std::pair<double, double>> points() const {
    std::vector<std::pair<double, double>> found;
    for (const std::smatch& match : matches(commands, "[ML]([-.0-9]+) ([-.0-9]+)"))
      found.emplace_back(std::stod(match[1]), std::stod(match[2]));
    return found;
  }
};

std::string attribute(const std::string& element, const std::string& name) {
  const std::size_t begin = element.find(' ' + name + "=\"") + name.size() + 3;
  return element.substr(begin, element.find('"', begin) - begin);
}

std::vector<Path> paths(const std::string& svg, const std::string& color) {
  std::vector<Path> found;
  std::istringstream lines(svg);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("<path ") || attribute(line, "stroke") != color) continue;
    found.push_back({attribute(line, "d"), std::stod(attribute(line, "stroke-width")),
                     std::stod(attribute(line, "stroke-opacity"))});
  }
  return found;
}

/// The curve of a colour, without its legend and the faint values.
Path curve(const std::string& svg, const std::string& color) {
  for (const Path& path : paths(svg, color)) {
    if (path.width == 2) return path;
  }
  return {};
}

TEST(Charts, TicksAreRound) {
  const auto expect = [](std::vector<double> got, std::vector<double> wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12);
  };
  expect(axis_ticks(0, 10, 5), {0, 2, 4, 6, 8, 10});
  expect(axis_ticks(0, 1875, 8), {0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800});
  expect(axis_ticks(0.013, 0.171, 6), {0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16});
  expect(axis_ticks(-1, 1, 4), {-1, -0.5, 0, 0.5, 1});
}

TEST(Charts, LossHasAxesWithNumbersAndATitle) {
  const std::string svg = loss_picture(std::vector<double>{1, 0.5, 0.25}, "mlp: <loss> & more");
  EXPECT_EQ(texts(svg), (std::vector<std::string>{"mlp: &lt;loss> &amp; more", "0", "0.2", "0.4",
                                                  "0.6", "0.8", "1", "0", "1", "2", "step"}));
  // The axis of values goes from 0 to 1.05.
  const std::vector<std::pair<double, double>> points = curve(svg, kFirst).points();
  ASSERT_EQ(points.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(points[i + 1].first, kLeft + (kRight - kLeft) / 2 * static_cast<double>(i), 0.06);
    EXPECT_NEAR(points[i + 1].second, kBottom - std::pow(0.5, i) / 1.05 * (kBottom - kTop), 0.06);
  }
  EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 420\""), 0U);
  EXPECT_HAS(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(Charts, LossDrawsAnythingOfAnyLength) {
  const auto draws = [](const std::vector<double>& losses) {
    const std::string svg = loss_picture(losses, "t");
    EXPECT_LACKS(svg, "nan");
    EXPECT_LACKS(svg, "inf");
    EXPECT_LT(svg.size(), 50'000U);
    return !curve(svg, kFirst).commands.empty();
  };
  std::vector<double> falling(100'000);
  for (std::size_t i = 0; i < falling.size(); ++i)
    falling[i] = 0.2 * std::exp(-0.0001 * static_cast<double>(i)) + 0.01;
  EXPECT_TRUE(draws(falling));
  EXPECT_TRUE(draws({1, 0.5}));
  EXPECT_TRUE(draws({2, 2, 2, 2}));
  EXPECT_TRUE(draws({0, 0, 0}));
  EXPECT_TRUE(draws({-3, 4, -5}));
  EXPECT_TRUE(draws({1, NAN, 0.5, INFINITY, 0.2}));
  EXPECT_TRUE(draws({1e-9, 1, 1e9, 0}));
  EXPECT_TRUE(draws({1}));
  EXPECT_FALSE(draws({}));
  EXPECT_FALSE(draws({NAN, NAN}));
  // Neighbours in f64, and its largest and least numbers.
  const double half = std::log(2.0), next = std::nextafter(half, 1.0);
  EXPECT_TRUE(draws({half, next}));
  EXPECT_TRUE(draws({1e16, 1e16 + 2}));
  EXPECT_TRUE(draws({5e-324, 1}));
  EXPECT_TRUE(draws({-1e300, 1e300}));
  EXPECT_TRUE(draws({1, DBL_MAX}));
  EXPECT_TRUE(draws({1, 1e30, 1, 2}));
  EXPECT_FALSE(draws({DBL_MAX, -DBL_MAX}));
  EXPECT_LE(axis_ticks(half, next, 6).size(), 1u);
}

TEST(Charts, ALossIsDrawnWhereItIsAlsoAfterAHugeOne) {
  const auto points = curve(loss_picture(std::vector<double>{2, 1e30, 2}, "t"), kFirst).points();
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points[3].second, points[1].second);
}

// Of a run that diverges.
TEST(Charts, NumbersOfManyDecadesDoNotOverlap) {
  for (const double last : {1e6, 1e13, 1e35, 1e300}) {
    const std::string svg = loss_picture(std::vector<double>{1, last}, "t");
    std::vector<double> heights;
    for (const std::smatch& match : matches(svg, "y=\"([-.0-9]+)\" text-anchor=\"end\"")) {
      heights.push_back(std::stod(match[1]));
    }
    ASSERT_GE(heights.size(), 5U) << last;
    for (std::size_t i = 1; i < heights.size(); ++i) EXPECT_GT(heights[i - 1] - heights[i], 15);
  }
}

TEST(Charts, LossLeavesAGapWhereItIsNotFinite) {
  const std::string svg = loss_picture(std::vector<double>{1, 1, NAN, 1, INFINITY, 1, 1}, "t");
  // Each part begins with a move to its first value; the one between two gaps is a dot.
  const std::string commands = curve(svg, kFirst).commands;
  EXPECT_EQ(std::regex_replace(commands, std::regex(" [.0-9]+"), ""),
            "M72L72L176M384L384M592L592L696");
}

// Below 100 steps the values are the line; above, a legend tells the mean from them. A jump at the
// end raises the mean of the last steps half way, and does not stand alone.
TEST(Charts, LossIsAPlainLineForAShortRunAndTheMeanOfALongOne) {
  const std::vector<double> few(99, 1.0);
  const std::string plain = loss_picture(few, "t");
  EXPECT_EQ(paths(plain, kFirst).size(), 1U);
  EXPECT_EQ(texts(plain).back(), "step");
  std::vector<double> jump(1000, 1.0);
  jump.back() = 3;  // of the 11 last values
  const std::string mean = loss_picture(jump, "t");
  const std::vector<std::string> said = texts(mean);
  EXPECT_EQ(said[said.size() - 2], "mean of 21 steps");
  EXPECT_EQ(said.back(), "each step");
  const std::vector<Path> drawn = paths(mean, kFirst);
  ASSERT_EQ(drawn.size(), 4U);  // the values, the mean, and both in the legend
  EXPECT_EQ(drawn[0].opacity, 0.28);
  EXPECT_EQ(matches(drawn[0].commands, "M").size(), 624U);  // one for each column of pixels
  // The axis goes from 0 to 3.15; the mean at the end is (10 + 3) / 11.
  const auto at = [](double loss) { return kBottom - loss / 3.15 * (kBottom - kTop); };
  EXPECT_NEAR(drawn[1].points().back().second, at(13.0 / 11), 2);
  EXPECT_NEAR(std::stod(drawn[0].commands.substr(drawn[0].commands.rfind('V') + 1)), at(3), 0.1);
}

TEST(Charts, LossDrawsSeveralCurves) {
  const std::vector<double> low(300, 1.0), high(300, 2.0), three(100, 3.0);
  const std::string one = loss_picture(low, "title");
  const Curve alone{"", low};
  EXPECT_EQ(loss_picture(std::span(&alone, 1), "title"), one);

  const std::vector<Curve> curves = {{"first", low}, {"second", high}, {"third", three}};
  const std::string all = loss_picture(curves, "title");
  const std::vector<std::string> said = texts(all);
  EXPECT_EQ(std::vector(said.end() - 5, said.end()),
            (std::vector<std::string>{"step", "first", "second", "third", "each step"}));
  const auto end = [&](const char* color) { return curve(all, color).points().back().first; };
  EXPECT_NEAR(end(kFirst), kRight, 1);
  EXPECT_NEAR(end(kSecond), kRight, 1);
  EXPECT_NEAR(end(kThird), kLeft + (kRight - kLeft) * 99 / 299, 1);
  EXPECT_WEFT_ERROR(loss_picture(std::span<const Curve>(), "title"), InvalidArgument, "no curve");
}

TEST(Charts, ProportionalIsStraightOnLogarithmicAxes) {
  // y = 3 x and y = x / 100: parallel lines, the second of which lies where the first does, moved.
  LogLogChart chart{"title", "batch", "ms", {{"three", {}}, {"hundredth", {}}}};
  for (int x = 1; x <= 64; x *= 2) {
    chart.curves[0].points.emplace_back(x, 3 * x);
    chart.curves[1].points.emplace_back(x, x / 100.0);
  }
  const std::string svg = log_log_picture(std::span(&chart, 1));
  EXPECT_EQ(texts(svg),
            (std::vector<std::string>{"title", "0.01", "0.1", "1", "10", "100", "1", "2", "4", "8",
                                      "16", "32", "64", "batch, logarithmic", "ms, logarithmic",
                                      "three", "hundredth"}));
  const auto first = curve(svg, kFirst).points(), second = curve(svg, kSecond).points();
  ASSERT_EQ(first.size(), 8U);
  ASSERT_EQ(second.size(), 8U);
  EXPECT_GT(second[1].second - first[1].second, 100);
  for (std::size_t i = 1; i < 8; ++i) {
    EXPECT_NEAR(first[i].first, second[i].first, 0.01);
    EXPECT_NEAR(second[i].second - first[i].second, second[1].second - first[1].second, 0.11);
  }
  for (std::size_t i = 2; i < 8; ++i) {
    EXPECT_NEAR(first[i].first - first[i - 1].first, first[2].first - first[1].first, 0.11);
    EXPECT_NEAR(first[i].second - first[i - 1].second, first[2].second - first[1].second, 0.11);
  }
}

TEST(Charts, AShortLogarithmicAxisHasRoundNumbers) {
  const LogLogChart chart{"title", "x", "y", {{"", {{1, 22}, {2, 38}}}}};
  const std::vector<std::string> labels = texts(log_log_picture(std::span(&chart, 1)));
  EXPECT_EQ(std::vector(labels.begin() + 1, labels.end() - 4),
            (std::vector<std::string>{"20", "25", "30", "35", "40"}));
}

TEST(Charts, LogLogChartsStandBelowEachOther) {
  const LogLogChart chart{"one", "", "", {{"", {{1, 2}}}}};
  const std::string svg = log_log_picture(std::vector{chart, chart});
  EXPECT_HAS(svg, "viewBox=\"0 0 720 840\" width=\"720\" height=\"840\"");
  EXPECT_HAS(svg, "<g transform=\"translate(0 420)\">");
  EXPECT_EQ(matches(svg, ">one</text>").size(), 2U);
}

TEST(Charts, LogLogLeavesOutWhatHasNoLogarithm) {
  const auto dots = [](const PointCurve& curve) {
    const LogLogChart chart{"", "", "", {curve}};
    const std::vector<Path> drawn = paths(log_log_picture(std::span(&chart, 1)), kFirst);
    return drawn.empty() ? 0 : matches(drawn[1].commands, "M").size();
  };
  EXPECT_EQ(dots({"", {{1, 2}, {2, 0}, {-1, 3}, {4, NAN}, {0, 1}, {8, INFINITY}}}), 1U);
  EXPECT_EQ(dots({}), 0U);
  EXPECT_WEFT_ERROR(log_log_picture(std::vector{LogLogChart()}), InvalidArgument, "no curve");
}

}  // namespace
}  // namespace weft::train
