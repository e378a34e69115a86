// Checkpoints: everything that a training run needs to continue exactly where it was, in one
// safetensors file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/io/safetensors.h"

namespace weft::train {

/// The values of a program's second or third loss, step by step.
struct NamedLosses {
  std::string name;
  std::vector<double> values;  ///< one per step
};

/// The file holds: tensors "model.NAME", "part0.NAME", "part1.NAME" ..., "engine0.NAME" ...,
/// "losses" and "losses.NAME" (f64, one per step), the rest as metadata.
struct Checkpoint {
  io::NamedTensors model;               ///< Module::state_dict()
  std::vector<io::NamedTensors> parts;  ///< state_dict() of optimisers and schedulers, in order
  /// engine_state() of the engines of several ranks, in order. Empty for older files, from before
  /// engines had a state.
  std::vector<io::NamedTensors> engines;
  std::string generator;  ///< Generator::state()
  std::string loader;     ///< DataLoader::state()
  std::vector<double> losses;
  std::vector<NamedLosses> more_losses;
  io::Metadata notes;  ///< the program's own entries, any keys
};

/// Replaces `path` in one step (core/runtime/file.h). Throws Io.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

/// Throws Io for a file that is damaged or lacks an entry, InvalidArgument for a safetensors file
/// that is not a checkpoint.
Checkpoint load_checkpoint(const std::string& path, Device device = {});

/// The value of `key` in `entries`, which are the notes or the metadata of the checkpoint `path`.
/// Throws Io if it is missing.
const std::string& checkpoint_entry(const std::string& path, const io::Metadata& entries,
                                    const std::string& key);
/// The same as a number. Throws InvalidArgument if it is no count.
std::int64_t checkpoint_count(const std::string& path, const io::Metadata& notes, const char* key);

}  // namespace weft::train
