// Inflating an untrusted stream of zlib's formats.
#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "weft/io/byte_stream.h"

namespace weft::io::detail {

/// What is around the compressed data: a gzip file of one member, or nothing, as in a zip archive.
enum class Wrapper { gzip, none };

/// Holds 64 KiB of input and zlib's window, never the whole output.
class InflateStream final : public ByteStream {
 public:
  /// `source` must outlive this object; `op` and `name` are for messages.
  InflateStream(ByteStream& source, Wrapper wrapper, const char* op, std::string name);
  ~InflateStream() override;
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  /// Throws Io for data that is cut off or damaged, and where any byte follows the compressed data.
  std::size_t read(std::span<std::byte> out) override;

 private:
  bool refill();

  ByteStream& source_;
  const char* const op_;
  const std::string name_;
  z_stream zlib_{};
  bool source_ended_ = false;
  bool ended_ = false;
  std::array<std::byte, 64 * 1024> input_;
};

}  // namespace weft::io::detail
