#include "weft/io/inflate.h"

#include <algorithm>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::io::detail {

InflateStream::InflateStream(ByteStream& source, Wrapper wrapper, const char* op, std::string name)
    : source_(source), op_(op), name_(std::move(name)) {
  constexpr int kFullWindow = 15, kGzip = 16;
  const int status =
      inflateInit2(&zlib_, wrapper == Wrapper::gzip ? kGzip + kFullWindow : -kFullWindow);
  WEFT_CHECK(status != Z_MEM_ERROR, OutOfMemory, op_, name_, ": no memory for zlib");
  WEFT_CHECK(status == Z_OK, Library, op_, name_, ": zlib refuses to start: ", status);
}

InflateStream::~InflateStream() { inflateEnd(&zlib_); }

/// Reads more input if there is none; returns whether there is input.
bool InflateStream::refill() {
  if (zlib_.avail_in == 0 && !source_ended_) {
    const std::size_t got = source_.read(input_);
    source_ended_ = got < input_.size();
    zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
    zlib_.avail_in = static_cast<uInt>(got);
  }
  return zlib_.avail_in > 0;
}

std::size_t InflateStream::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size() && !ended_) {
    const bool has_input = refill();
    constexpr std::size_t kMost = std::size_t{1} << 30;  // zlib counts in 32 bits
    const std::size_t room = std::min(out.size() - done, kMost);
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    zlib_.avail_out = static_cast<uInt>(room);
    const int status = inflate(&zlib_, Z_NO_FLUSH);
    done += room - zlib_.avail_out;
    switch (status) {
      case Z_OK: break;
      case Z_BUF_ERROR:  // no progress: it waits for input
        WEFT_CHECK(has_input, Io, op_, name_, ": cut off inside the compressed data");
        break;
      case Z_STREAM_END: ended_ = true; break;
      case Z_MEM_ERROR: WEFT_THROW(OutOfMemory, op_, name_, ": no memory for zlib");
      default:
        WEFT_THROW(Io, op_, name_,
                   ": damaged: ", zlib_.msg != nullptr ? zlib_.msg : "needs a preset dictionary");
    }
  }
  // Readers that expect the end ask for one byte more, so the next read() comes here even if the
  // last byte fitted exactly and zlib has not seen the trailer yet.
  if (ended_) {
    WEFT_CHECK(!refill(), Io, op_, name_, ": bytes follow the end of the compressed data");
  }
  return done;
}

}  // namespace weft::io::detail
