#include "weft/benchmarks/bandwidth.h"

#include <algorithm>
#include <cmath>

#include "weft/core/base/error.h"

namespace weft::bench {

bool is_divided(const std::string& collective) {
  return collective != "all_reduce" && collective != "broadcast" && collective != "reduce";
}

bool is_reduction(const std::string& collective) {
  return collective == "all_reduce" || collective.starts_with("reduce");
}

double gb_per_second(double bytes, double us) { return bytes / us * 1e-3; }

double bus_factor(const std::string& collective, int ranks) {
  WEFT_CHECK(std::ranges::count(kCollectives, collective), InvalidArgument, "bench",
             "no collective named '", collective, "'");
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "all_reduce") return 2 * others;
  return is_divided(collective) ? others : 1;
}

std::optional<AlphaBeta> fit_alpha_beta(std::span<const Point> points, double bus_factor) {
  // Minimises sum (alpha u + beta v - 1)^2 with u = 1 / us and v = bytes / us.
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const Point& p : points) {
    const double u = 1 / p.us, v = p.bytes / p.us;
    uu += u * u, uv += u * v, vv += v * v, u1 += u, v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  const bool one_size =
      std::ranges::all_of(points, [&](const Point& p) { return p.bytes == points.front().bytes; });
  if (one_size) return {};
  const double alpha = (u1 * vv - v1 * uv) / determinant;
  const double us_per_byte = (v1 * uu - u1 * uv) / determinant;
  AlphaBeta fit{alpha, gb_per_second(bus_factor, us_per_byte), 0};
  for (const Point& p : points) {
    const double error = std::abs(alpha + us_per_byte * p.bytes - p.us) / p.us;
    fit.worst_error = std::max(fit.worst_error, error);
  }
  return fit;
}

}  // namespace weft::bench
