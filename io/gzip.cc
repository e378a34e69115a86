#include "weft/io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::io {

struct GunzipStream::Impl {
  ByteStream& source;
  std::string name;
  z_stream zlib{};
  bool source_ended = false;
  bool ended = false;
  std::array<std::byte, 64 * 1024> input;

  /// Reads more input if there is none; returns whether there is input.
  bool refill() {
    if (zlib.avail_in == 0 && !source_ended) {
      const std::size_t got = source.read(input);
      source_ended = got < input.size();
      zlib.next_in = reinterpret_cast<Bytef*>(input.data());
      zlib.avail_in = static_cast<uInt>(got);
    }
    return zlib.avail_in > 0;
  }
};

GunzipStream::GunzipStream(ByteStream& source, std::string name)
    : impl_(new Impl{source, std::move(name), {}, false, false, {}}) {
  constexpr int kGzipWithFullWindow = 16 + 15;
  const int status = inflateInit2(&impl_->zlib, kGzipWithFullWindow);
  WEFT_CHECK(status != Z_MEM_ERROR, OutOfMemory, "gzip", impl_->name, ": no memory for zlib");
  WEFT_CHECK(status == Z_OK, Library, "gzip", impl_->name, ": zlib refuses to start: ", status);
}

GunzipStream::~GunzipStream() { inflateEnd(&impl_->zlib); }

std::size_t GunzipStream::read(std::span<std::byte> out) {
  Impl& in = *impl_;
  std::size_t done = 0;
  while (done < out.size() && !in.ended) {
    const bool has_input = in.refill();
    constexpr std::size_t kMost = std::size_t{1} << 30;  // zlib counts in 32 bits
    const std::size_t room = std::min(out.size() - done, kMost);
    in.zlib.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    in.zlib.avail_out = static_cast<uInt>(room);
    const int status = inflate(&in.zlib, Z_NO_FLUSH);
    done += room - in.zlib.avail_out;
    switch (status) {
      case Z_OK: break;
      case Z_BUF_ERROR:  // no progress: it waits for input
        WEFT_CHECK(has_input, Io, "gzip", in.name, ": cut off inside the compressed data");
        break;
      case Z_STREAM_END: in.ended = true; break;
      case Z_MEM_ERROR: WEFT_THROW(OutOfMemory, "gzip", in.name, ": no memory for zlib");
      default:
        WEFT_THROW(Io, "gzip", in.name, ": damaged: ",
                   in.zlib.msg != nullptr ? in.zlib.msg : "needs a preset dictionary");
    }
  }
  // Readers that expect the end ask for one byte more, so the next read() comes here even if the
  // last byte fitted exactly and zlib has not seen the trailer yet.
  if (in.ended) {
    WEFT_CHECK(!in.refill(), Io, "gzip", in.name, ": bytes follow the end of the compressed data");
  }
  return done;
}

bool is_gzip(std::span<const std::byte> start) {
  return start.size() >= 2 && start[0] == std::byte{0x1f} && start[1] == std::byte{0x8b};
}

}  // namespace weft::io
