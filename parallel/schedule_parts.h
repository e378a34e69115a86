// What the makers of schedules share. Private to parallel/.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::parallel {

/// Throws InvalidArgument for a number of devices that no schedule may have.
void check_devices(const char* name, int devices);

/// A schedule with empty lists of actions. Throws InvalidArgument for sizes beyond the limits.
Schedule sized(const char* name, int stages, int micro_batches, int devices);

/// Adds a B, or another `kind`, and before it an R if the micro-batch is to be recomputed.
void add_backward(std::vector<Action>& list, Action::Kind kind, int stage, int micro_batch,
                  int micro_batches, Recompute recompute);

/// "never, except_last or always"
std::string one_of(const std::vector<std::string>& words);
/// "; did you mean gpipe?", or nothing if none of them is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// A letter and a number from `begin` to `end`, in seconds.
struct DrawnBar {
  std::size_t row;
  double begin, end;
  char letter;
  int number;
};
/// The rows of draw().
std::string draw_bars(const std::vector<std::string>& labels, const std::vector<DrawnBar>& bars,
                      double end, double unit, int columns);

}  // namespace weft::parallel
