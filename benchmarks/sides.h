// Sides take turns in being measured, so that a slow moment of the machine affects all of them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/benchmarks/timing.h"

namespace weft::bench {

/// One of the sides that take turns, and its results.
struct Side {
  std::string key;                  // in the result: "weft", "peer", ...
  std::string label;                // in the table
  std::function<double(int)> time;  // milliseconds for this number of steps
  int block = 1;                    // steps timed together
  std::vector<double> ms = {};      // per step
};

/// Measures a block of each side in turn, `rounds` times; the order is reversed each time.
void alternate(std::vector<Side>& sides, int rounds);

/// For each round, the ratio of the time of `theirs` to that of `mine`.
std::vector<double> ratios(const Side& theirs, const Side& mine);

/// What to say of a side whose times are spread so widely that the machine must have had other
/// work; empty if they are not.
std::string spread_warning(const Side& side);

/// {"low", "median", "high"}
nlohmann::json to_json(const Interval& interval);

/// The text of a result file: one line per member, and in a list of objects one line per object, so
/// that a run reads like a table and differences between runs are easy to see.
std::string to_text(const nlohmann::json& result);

/// The processor, its cores, the load average of the last minute, and the commit that `./weft`
/// built.
nlohmann::json describe_machine();

/// Makes the folder of a result, before the measurements and not minutes later. Throws Io.
void make_folder_of(const std::string& path);

}  // namespace weft::bench
