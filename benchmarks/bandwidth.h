// What nccl-tests computes from a collective's size and time, and a fit of Hockney's model to it.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace weft::bench {

/// The collectives that are timed. `bytes` is the size of the larger tensor: of a rank's data,
/// times the number of ranks if each rank gets or gives a part of its own.
inline constexpr const char* kCollectives[] = {"all_reduce",     "broadcast", "reduce",
                                               "all_gather",     "gather",    "scatter",
                                               "reduce_scatter", "all_to_all"};

/// Whether `bytes` are divided among the ranks, so that the count in the call is that of one part.
bool is_divided(const std::string& collective);
/// Whether it computes sums.
bool is_reduction(const std::string& collective);

/// In 10^9 bytes per second.
double gb_per_second(double bytes, double us);

/// nccl-tests' factor from bytes / time to the bus bandwidth, which can be compared with the
/// hardware's for any number of ranks (its doc/PERFORMANCE.md): all_reduce 2(n-1)/n; broadcast and
/// reduce 1; the others (n-1)/n. Throws InvalidArgument.
double bus_factor(const std::string& collective, int ranks);

struct Point {
  double bytes, us;
};

/// us = alpha + bus_factor * bytes / bandwidth
struct AlphaBeta {
  double alpha_us;
  double gb_per_second;  ///< the bandwidth of the bus
  double worst_error;    ///< the largest error of a point, relative to its time
};

/// Fits by least squares of the errors relative to the times, so that small sizes count as much as
/// large ones. Nothing for fewer than two sizes.
std::optional<AlphaBeta> fit_alpha_beta(std::span<const Point> points, double bus_factor);

}  // namespace weft::bench
