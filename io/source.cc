#include "weft/io/source.h"

#include <zlib.h>

#include <algorithm>

namespace weft::io::detail {

MappedSource::MappedSource(const std::string& path, const char* op)
    : FileSource(path, op), memory_(file_.map()) {}

intrusive_ptr<Storage> MappedSource::view(std::uint64_t offset, std::uint64_t bytes,
                                          Device device) const {
  // The last storage unmaps the file.
  using Owner = std::shared_ptr<std::byte>;
  auto owner = std::make_unique<Owner>(memory_);
  auto storage = Storage::borrow(
      device, memory_.get() + offset, bytes, [](void* held) { delete static_cast<Owner*>(held); },
      owner.get());
  owner.release();
  return storage;
}

std::size_t SourceStream::read(std::span<std::byte> out) {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), end_ - at_));
  source_.read(at_, out.first(bytes));
  at_ += bytes;
  return bytes;
}

std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return static_cast<std::uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace weft::io::detail
