// The pictures that a run writes.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/io/png.h"
#include "weft/tensor/tensor.h"

namespace weft::train {

/// Three rows for the first `count` examples: input, code as a strip of coloured cells (dark to
/// bright from the smallest to the largest value of all shown), reconstruction.
/// inputs, outputs [N,1,H,W] with values 0 to 1; codes [N,C]; any device, any floating dtype.
/// Throws Shape when they do not fit together.
io::Image compare_picture(const Tensor& inputs, const Tensor& codes, const Tensor& outputs,
                          int count = 5);

/// Images side by side, `columns` in a row, in the order they come, as torchvision's make_grid.
/// images [N,C,H,W] with values 0 to 1, C = 1 (grey) or 3; any device, any floating dtype. Small
/// images are enlarged by a whole factor; the caption is above. Throws Shape for other shapes and
/// for no images, InvalidArgument for less than one column.
io::Image image_grid(const Tensor& images, int columns = 8, const std::string& caption = "");

/// A curve for loss_picture: a value for each step, and its name in the legend.
struct Curve {
  std::string name;
  std::span<const double> values;
};

/// The loss over the steps: every value faintly, and on top, for each step, the mean over a
/// fiftieth of the run around it (over fewer values at both ends); below 100 steps a line through
/// the values. The axis is logarithmic if the values span more than a factor of 20. Values that are
/// not finite are left out.
io::Image loss_picture(std::span<const double> losses, const std::string& title);
/// Several losses on the same axes, each in its colour, with a legend. Throws InvalidArgument for
/// none.
io::Image loss_picture(std::span<const Curve> curves, const std::string& title);

/// A line through points, each of both coordinates above 0.
struct PointCurve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

/// Lines through points on two logarithmic axes, so that y proportional to x is a straight line
/// whatever the factor; each in its colour, with a legend, and a tick below each x there is. Points
/// not above 0 or not finite are left out. Throws InvalidArgument for no curve.
io::Image log_log_picture(std::span<const PointCurve> curves, const std::string& title,
                          const std::string& x_name);

/// Pictures of one width below each other. Throws Shape for none, and for other widths or channels.
io::Image stacked(std::span<const io::Image> pictures);

/// Round numbers that divide [low, high] into about `wanted` parts: 1, 2 or 5 times a power of ten.
std::vector<double> axis_ticks(double low, double high, int wanted);

}  // namespace weft::train
