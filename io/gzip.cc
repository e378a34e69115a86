#include "weft/io/gzip.h"

#include <utility>

#include "weft/io/inflate.h"

namespace weft::io {

struct GunzipStream::Impl {
  detail::InflateStream stream;
};

GunzipStream::GunzipStream(ByteStream& source, std::string name)
    : impl_(new Impl{{source, detail::Wrapper::gzip, "gzip", std::move(name)}}) {}

GunzipStream::~GunzipStream() = default;

std::size_t GunzipStream::read(std::span<std::byte> out) { return impl_->stream.read(out); }

bool is_gzip(std::span<const std::byte> start) {
  return start.size() >= 2 && start[0] == std::byte{0x1f} && start[1] == std::byte{0x8b};
}

}  // namespace weft::io
