// Streams of bytes.
#pragma once

#include <cstddef>
#include <span>

namespace weft::io {

/// Bytes one after the other.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills `out` from its start; fewer bytes only at the end of the stream. Throws Io.
  virtual std::size_t read(std::span<std::byte> out) = 0;
};

}  // namespace weft::io
