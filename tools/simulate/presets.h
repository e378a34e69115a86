// Machines on which weft has not run, with their published figures.
#pragma once

#include <string>
#include <vector>

#include "weft/tools/simulate/cost_model.h"

namespace weft::simulator {

/// Nodes of some devices each.
struct Cluster {
  std::string name;
  std::string what;  ///< in words
  // For one device. Programs reach less than the published figures, so these are an assumed share.
  double flops = 0;             ///< per second, in matrix products and convolutions
  double bytes_per_second = 0;  ///< of its memory
  double launch = 0;            ///< in seconds; the least time of a layer
  double memory = 0;            ///< bytes
  // Links. A latency is the one of a single step of an all-reduce.
  int per_node = 8;
  Link inside;      ///< from one device of a node to the next
  Link between;     ///< through one port of a node
  int ports = 8;    ///< of a node, all used at the same time
  double base = 0;  ///< in seconds, for any all-reduce
  int most_devices = 4096;
  std::vector<std::string> sources;  ///< of all figures
};

const std::vector<Cluster>& presets();
std::vector<std::string> preset_names();
/// Throws InvalidArgument for another name.
const Cluster& find_preset(const std::string& name);

}  // namespace weft::simulator
