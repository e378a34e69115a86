// SliceReader: reads parts of tensors from safetensors files, and no other bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/io/metadata.h"
#include "weft/io/tensor_slice.h"

namespace weft::io {

/// The names in an index of such files, each with the path of its file, in the index's folder.
/// Throws Io for anything else.
std::map<std::string, std::string> read_index(const std::string& path);

/// Reads boxes of tensors from safetensors files, whoever wrote them. Only headers are read at
/// once.
class SliceReader {
 public:
  /// One file, several files, or an index (its name ends with ".index.json") with its files. Throws
  /// as load_safetensors(), and Io for a name that two files have, or that an index has and no
  /// file.
  explicit SliceReader(const std::vector<std::string>& paths);
  SliceReader(SliceReader&&) noexcept;
  ~SliceReader();

  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  /// These throw InvalidArgument for an unknown name.
  const Shape& shape(const std::string& name) const;
  DType dtype(const std::string& name) const;  ///< that in memory: f32 for F16
  /// The metadata of all files together, without checksums.
  Metadata metadata() const;
  /// The checksums of the headers, of files that have them.
  std::string checksums() const;

  /// Copies values into slice.tensor, whose device and dtype may be others. Reads no other bytes.
  /// Throws InvalidArgument for another shape of the whole, and for a box outside of it; Io as
  /// load_safetensors().
  void read(const TensorSlice& slice) const;
  /// The bytes of tensors that were read so far.
  std::uint64_t bytes_read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::io
