// Charts as SVG text: a run's losses over its steps, and lines on logarithmic axes.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/compiler.h"

namespace weft::train {

/// A curve for loss_picture: a value for each step, and its name in the legend.
struct Curve {
  std::string name;
  std::span<const double> values;
};

/// The loss over the steps: every value faintly, and on top, for each step, the mean over a
/// fiftieth of the run around it (over fewer values at both ends); below 100 steps a line through
/// the values. The axis is logarithmic if the values span more than a factor of 20. The line has a
/// gap where no value is finite.
std::string loss_picture(std::span<const double> losses, const std::string& title);
/// Several losses on the same axes, each in its colour, with a legend. Throws InvalidArgument
/// without curves.
std::string loss_picture(std::span<const Curve> curves, const std::string& title);

/// A line through points whose coordinates are above 0.
struct PointCurve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct LogLogChart {
  std::string title;
  std::string x_name, y_name;  ///< with units; "logarithmic" is added
  std::vector<PointCurve> curves;
};

/// Charts below each other: lines through points on two logarithmic axes, so that y proportional to
/// x is a straight line for every factor. Each line has its colour, with a legend, and each x has a
/// tick. Points that are not above 0 or not finite are left out. Throws InvalidArgument for a chart
/// without a curve.
std::string log_log_picture(std::span<const LogLogChart> charts);

/// Round numbers that divide [low, high] into about `wanted` parts: 1, 2 or 5 times a power of ten.
std::vector<double> axis_ticks(double low, double high, int wanted);

}  // namespace weft::train
