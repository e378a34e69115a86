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

/// The names in an index of such files, each with its file's path, in the index's folder. Throws Io
/// for what is no such index.
std::map<std::string, std::string> read_index(const std::string& path);

/// Reads boxes of tensors from safetensors files, whoever wrote them. Only headers are read at
/// once.
class SliceReader {
 public:
  /// One file or several; or an index, whose name ends with ".index.json", with its files. Throws
  /// as load_safetensors(), and Io for a name that two files have, or that an index finds in no
  /// file.
  explicit SliceReader(const std::vector<std::string>& paths);
  SliceReader(SliceReader&&) noexcept;
  ~SliceReader();

  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  /// These throw InvalidArgument for a name that there is not.
  const Shape& shape(const std::string& name) const;
  DType dtype(const std::string& name) const;  ///< in memory: f32 for F16
  /// Of all files together, without checksums.
  Metadata metadata() const;
  /// Those of the headers, of files that have such.
  std::string checksums() const;

  /// Copies values into slice.tensor, whose device and dtype may be others. Reads no other bytes.
  /// Throws InvalidArgument for another shape of the whole, and for a box outside of it; Io as
  /// load_safetensors().
  void read(const TensorSlice& slice) const;
  /// Bytes of tensors so far.
  std::uint64_t bytes_read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::io
