// IDX, the format of the MNIST family: two zero bytes, a type, the number of dimensions, the
// dimensions as big-endian u32, the values; plain or gzipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/tensor/tensor.h"

namespace weft::io {

struct IdxOptions {
  /// A header that announces more values than this is refused before anything is allocated.
  std::uint64_t max_bytes = std::uint64_t{1} << 30;
};

/// Reads an IDX file of u8 values (type 0x08), gzipped or not, as its first bytes say.
/// -> u8 tensor of 1 to 4 dimensions on the CPU.
///
/// Everything in the file is checked before it is used: the header's dimensions are multiplied
/// without overflow and compared with the limit and, for a plain file, with its size; inflating
/// stops where the header says the data ends, so a zip bomb costs no memory; gzip's checksum and
/// length are verified, and nothing may follow the one gzip member.
/// Throws Io naming the file and what is wrong, Unsupported for the format's other value types.
Tensor read_idx(const std::string& path, const IdxOptions& options = {});

/// The same for bytes in memory; `name` replaces the file's name in messages.
Tensor parse_idx(std::span<const std::byte> bytes, const IdxOptions& options = {},
                 const std::string& name = "idx data");

}  // namespace weft::io
