// Files of torch.save (.pth, .pt): nested values with tensors.
//
//   zip archive: NAME/data.pkl, a pickle that refers to the storages of its tensors;
//   NAME/data/0, NAME/data/1 ..., the storages; NAME/byteorder; NAME/version
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "weft/io/pickle_value.h"

namespace weft::io {

struct PickleOptions {
  Device device = Device();  ///< of the tensors, whichever they were saved from
  /// The tensors on a CPU are pages of the file: while nobody writes to a tensor, it needs no
  /// memory of its own. All of it is read once at loading, for the checksums. As with
  /// torch.load(mmap=True) the file must not become shorter meanwhile: that ends the program
  /// (SIGBUS).
  bool map = false;
};

/// Reads a file of torch.save. Nothing in the file is run: the pickle's instructions and globals
/// are those that torch.load(weights_only=True) accepts by default. Tensors that shared a storage
/// share one here, with their strides; f16 becomes f32; requires_grad is not kept. An optimiser's
/// state is read as plain nested dicts.
///
/// Throws Io, naming the file, for one that is damaged: every rule of the zip archive is checked,
/// and the CRC-32 of each record that is used. Throws Unsupported for PyTorch's older formats and
/// for big-endian files; for other instructions and globals, which it names; for dtypes that weft
/// lacks, and tensors marked as conjugated or negated; for keys of dicts that are not numbers,
/// texts or None; and for values nested deeper than 100 or in themselves. load_state_dict() skips
/// what weft lacks besides the weights.
PickleValue load_pickle(const std::string& path, const PickleOptions& options = {});

/// The same for a file in memory; `name` replaces the file's name in messages.
PickleValue parse_pickle(std::span<const std::byte> bytes, const PickleOptions& options = {},
                         const std::string& name = "PyTorch data");

/// Writes a file that torch.load(weights_only=True) and load_pickle() read, through a temporary one
/// (core/runtime/file.h). Tensors may be strided and on any device, and are saved as on the CPU.
/// Those that share a storage share one in the file, which has all of the storage. Throws
/// InvalidArgument for text that is not UTF-8, for a set with a list, set or dict in it, and for
/// more or deeper values than load_pickle() reads; Io when the file cannot be written.
void save_pickle(const std::string& path, const PickleValue& value);

}  // namespace weft::io
