// Checkpoints: all that a training run needs to continue exactly where it was, in one safetensors
// file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/safetensors.h"

namespace weft::train {

/// The values of a second or third loss of a program, step by step.
struct NamedLosses {
  std::string name;
  std::vector<double> values;  ///< one per step
};

/// The file holds: tensors "model.NAME", "part0.NAME", "part1.NAME" ..., "engine0.NAME" ...,
/// "losses" and "losses.NAME" (f64, one per step), the rest as metadata.
struct Checkpoint {
  io::NamedTensors model;               ///< Module::state_dict()
  std::vector<io::NamedTensors> parts;  ///< state_dict() of optimisers and schedulers, in order
  /// engine_state() of the engines of several ranks, in order. There are none in files from before
  /// engines had a state.
  std::vector<io::NamedTensors> engines;
  std::string generator;  ///< Generator::state()
  std::string loader;     ///< DataLoader::state()
  std::vector<double> losses;
  std::vector<NamedLosses> more_losses;
  io::Metadata notes;  ///< the program's own, any keys
};

/// Replaces `path` in one step (core/runtime/file.h). Throws Io.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

/// Throws Io for a file that is damaged or lacks an entry, InvalidArgument for a safetensors file
/// that is not a checkpoint.
Checkpoint load_checkpoint(const std::string& path, Device device = {});

/// What `entries`, the notes or the metadata of the checkpoint `path`, have under `key`. Throws Io
/// where that is missing.
const std::string& checkpoint_entry(const std::string& path, const io::Metadata& entries,
                                    const std::string& key);

}  // namespace weft::train
