// The parts of a state that one rank has, as plain data: to save it without gathering, and to load
// what another number of ranks has saved. Engines that cut modules, as parallel::fully_shard, make
// these lists; train/ gives them to io/'s files.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/nn/cut.h"

namespace weft::nn {

struct StatePart {
  std::string name;
  Tensor tensor;  ///< this rank's part, which is the module's or the optimiser's own memory
  Cut cut;        ///< .dim = -1: each rank has all of it
};
using StateParts = std::vector<StatePart>;

/// A state in files; only what is asked for is read.
struct SavedState {
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;  ///< of the whole tensor
  };
  std::vector<Entry> entries;
  /// Copies the part of an entry into `part`, which has the shape cut.part_shape().
  std::function<void(const std::string& name, const Cut& cut, const Tensor& part)> read;
};

/// A part of a whole tensor is one box or several.
struct Box {
  Shape whole_offsets;  ///< where it begins in the whole tensor
  Shape part_offsets;   ///< where in the rank's part
  Shape sizes;
};
std::vector<Box> boxes_of(const Cut& cut);

}  // namespace weft::nn
