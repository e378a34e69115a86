// Checkpoints: everything that a training run needs to continue exactly where it was, in one
// safetensors file, or for models that are cut into parts, with files beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/io/safetensors.h"
#include "weft/io/slice_reader.h"
#include "weft/nn/state_parts.h"

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
  /// Names of files in the same folder (io/slice_writer.h) that hold the model's tensors, under the
  /// names of the model, and tensors "part0.NAME" ...; empty: all is in this file.
  std::vector<std::string> model_files = {}, part_files = {};
};

/// Replaces `path` in one step (core/runtime/file.h), when the files beside it are there. Throws
/// Io, and InvalidArgument for more than 64 parts or engines, which no file may have.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint);

/// Throws Io for a file that is damaged or lacks an entry, InvalidArgument for a safetensors file
/// that is not a checkpoint.
Checkpoint load_checkpoint(const std::string& path, Device device = {});

/// A checkpoint of which model and parts are read only when they are asked for, and only as much as
/// is needed.
class CheckpointReader {
 public:
  /// Throws as load_checkpoint(). Everything but model and parts is read at once, to `device`.
  explicit CheckpointReader(const std::string& path, Device device = {});

  /// The checkpoint without the tensors of model and parts.
  const Checkpoint& books() const { return books_; }
  nn::SavedState model() const;
  nn::SavedState part(std::size_t number) const;
  /// All values of model() or of a part(), on the device.
  io::NamedTensors whole(const nn::SavedState& saved) const;
  /// The same for all ranks that read the same checkpoint: its steps and its headers' checksums.
  std::string fingerprint() const;
  /// How many bytes of tensors have been read so far.
  std::uint64_t bytes_read() const;

 private:
  Device device_;
  Checkpoint books_;
  std::shared_ptr<const io::SliceReader> file_, model_, parts_;  // the last two may be the first
};

/// The boxes that make up the parts, as views of them.
std::vector<io::TensorSlice> slices_of(const nn::StateParts& parts);

/// The names of the files that the checkpoint needs beside it. Reads only its header.
std::vector<std::string> files_beside(const std::string& path);

/// The value of `key` in `entries`, which are the notes or the metadata of the checkpoint `path`.
/// Throws Io if it is missing.
const std::string& checkpoint_entry(const std::string& path, const io::Metadata& entries,
                                    const std::string& key);
/// The same as a number. Throws InvalidArgument if it is not a count.
std::int64_t checkpoint_count(const std::string& path, const io::Metadata& notes, const char* key);

}  // namespace weft::train
