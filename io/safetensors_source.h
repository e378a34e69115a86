// A safetensors file of which the header has been read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/io/safetensors_header.h"
#include "weft/io/source.h"

namespace weft::io::detail {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;  // of kBlockCrcs

struct OpenedSafetensors {
  Header header;
  std::uint64_t data_begin = 0;  ///< in the file
};
/// Throws like load_safetensors.
OpenedSafetensors open_safetensors(const Source& source, const std::string& name);

/// The metadata key of a tensor's checksum.
inline std::string crc_key(std::string_view kind, const std::string& tensor) {
  return std::string(kind) + tensor;
}

inline bool is_checksum(const std::string& key) {
  return key == kHeaderCrc || key.starts_with(kTensorCrc) || key.starts_with(kBlockCrcs);
}

/// Checks some bytes of a tensor, from byte `at` of its data on: the values of bools, and the
/// checksums, if the file has them, of the blocks that lie within and, if these are all bytes, of
/// the tensor. Throws Io.
void check_bytes(const TensorEntry& entry, std::uint64_t at, std::span<const std::byte> bytes,
                 const Metadata& metadata, const std::string& name);

}  // namespace weft::io::detail
