// Inflating an untrusted gzip file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "weft/io/byte_stream.h"

namespace weft::io {

/// Inflates a gzip file of one member. It holds 64 KiB of input and zlib's window, never the whole
/// output: the reader decides how much it wants.
class GunzipStream final : public ByteStream {
 public:
  /// `source` must outlive this object; `name` is for messages.
  GunzipStream(ByteStream& source, std::string name);
  ~GunzipStream() override;
  GunzipStream(const GunzipStream&) = delete;
  GunzipStream& operator=(const GunzipStream&) = delete;

  /// Throws Io for data that is cut off or damaged: gzip's checksum and length are checked where
  /// the stream ends, and a second member or any other byte after it is refused.
  std::size_t read(std::span<std::byte> out) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether the bytes begin like a gzip member.
bool is_gzip(std::span<const std::byte> start);

}  // namespace weft::io
