// The header of a safetensors file: parses, checks and writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/core/base/shape.h"
#include "weft/io/metadata.h"

namespace weft::io::detail {

inline constexpr const char* kSafetensors = "safetensors";
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // of the format
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 18;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::string_view kTensorCrc = "weft.crc32.";
/// The checksums of a tensor's blocks of 1 MiB: one text with eight digits for each block.
inline constexpr std::string_view kBlockCrcs = "weft.crc32_mib.";
inline constexpr std::string_view kHeaderCrc = "weft.header_crc32";

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  bool half = false;  ///< F16 in the file, f32 in memory
  Shape shape;
  std::uint64_t begin = 0;  ///< offset in the data
  std::uint64_t end = 0;
};

struct Header {
  std::vector<TensorEntry> tensors;  ///< sorted by offset
  Metadata metadata;
};

/// Bytes of an element in the file.
inline std::size_t stored_size(const TensorEntry& entry) {
  return entry.half ? 2 : size_of(entry.dtype);
}

/// `text` is only the header, `data_bytes` the size of everything after it. Throws like
/// load_safetensors.
Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& name);

/// Header text, padded to a multiple of 8, including its own checksum. Throws InvalidArgument for
/// text that is not UTF-8, and for what parse_header() refuses.
std::string format_header(const Header& header);

/// Throws InvalidArgument for a tensor's name that is reserved, too long or not UTF-8.
void check_name(const std::string& name);

/// Eight lower-case hexadecimal digits.
std::string format_crc(std::uint32_t crc);

}  // namespace weft::io::detail
