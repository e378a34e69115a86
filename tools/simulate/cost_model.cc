#include "weft/tools/simulate/cost_model.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/parallel/balance.h"

namespace weft::simulator {
namespace {

using weft::detail::concat;

constexpr const char* kOp = "simulate";

}  // namespace

Curve Curve::affine(double fixed, double per_row) { return {{{0, fixed}, {1, fixed + per_row}}}; }

double Curve::at(double rows) const {
  WEFT_CHECK(!points.empty() && std::ranges::is_sorted(points, std::ranges::less_equal(),
                                                       &std::pair<double, double>::first),
             InvalidArgument, kOp, "a curve needs points of ascending rows");
  if (points.size() == 1) return points[0].second;
  std::size_t i = 1;
  while (i + 1 < points.size() && points[i].first < rows) ++i;
  const auto [r0, v0] = points[i - 1];
  const auto [r1, v1] = points[i];
  return std::max(0.0, v0 + (rows - r0) / (r1 - r0) * (v1 - v0));
}

double Curve::within(double rows) const {
  return points.empty() ? at(rows)
                        : at(std::clamp(rows, points.front().first, points.back().first));
}

double Costs::parameter_bytes() const {
  double sum = 0;
  for (const LayerCost& layer : layers) {
    for (const double bytes : layer.parameter_bytes) sum += bytes;
  }
  return sum;
}

std::string to_string(const Way& way) {
  if (way.engine != "pipeline") return way.engine;
  return concat("pipeline ", way.schedule, ", checkpoint ", way.checkpoint, ", ", way.chunks,
                " chunks");
}

double Prediction::seconds() const {
  double sum = 0;
  for (const Term& term : terms) sum += term.seconds;
  return sum;
}

std::vector<std::size_t> balanced_ends(const std::vector<double>& seconds, int parts) {
  std::vector<std::size_t> ends = {0};
  for (const std::size_t size : parallel::balanced(seconds, static_cast<std::size_t>(parts))) {
    ends.push_back(ends.back() + size);
  }
  return ends;
}

}  // namespace weft::simulator
