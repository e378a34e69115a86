// Machines that are not here, as published.
#pragma once

#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

/// Nodes of some devices each.
struct Cluster {
  std::string name;
  std::string what;  ///< in words
  // Of one device, as far as programs get there: an assumed share of what is published.
  double flops = 0;             ///< per second, in matrix products and convolutions
  double bytes_per_second = 0;  ///< of its memory
  double launch = 0;            ///< seconds that a layer takes at least
  // Links. Latencies are those of one step of an all-reduce.
  int per_node = 8;
  Link inside;      ///< from one device of a node to the next
  Link between;     ///< through one port of a node
  int ports = 8;    ///< of a node, which it uses at the same time
  double base = 0;  ///< seconds, of any all-reduce
  int most_devices = 4096;
  std::vector<std::string> sources;  ///< of each figure
};

const std::vector<Cluster>& presets();
std::vector<std::string> preset_names();
/// Throws InvalidArgument for another name.
const Cluster& find_preset(const std::string& name);

}  // namespace weft::simulator
