// What takes turns in being measured, so that a noisy moment meets all of it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/benchmarks/timing.h"

namespace weft::bench {

/// One of those that take turns, and what was measured of it.
struct Side {
  std::string key;                  // in the result: "weft", "peer", ...
  std::string label;                // in the table
  std::function<double(int)> time;  // milliseconds of so many steps
  int block = 1;                    // steps timed as one
  std::vector<double> ms = {};      // of one step
};

/// Measures a block of each side in turn, `rounds` times, each time beginning with another end.
void alternate(std::vector<Side>& sides, int rounds);

/// Of each round: how many times as long `theirs` took as `mine`.
std::vector<double> ratios(const Side& theirs, const Side& mine);

/// {"low", "median", "high"}
nlohmann::json to_json(const Interval& interval);

/// The text of a result file: a member in a line, and of a list of objects each in a line of its
/// own, so that one reads a run as a table and sees what a new one changed.
std::string to_text(const nlohmann::json& result);

/// The processor, its cores and how many processes wanted one in the last minute, and the commit
/// that `./weft` built.
nlohmann::json describe_machine();

/// Makes the folder of a result, before minutes of measuring and not after. Throws Io.
void make_folder_of(const std::string& path);

}  // namespace weft::bench
