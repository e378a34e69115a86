#include "weft/io/protobuf.h"

#include <bit>
#include <cstring>

namespace weft::io::protobuf {
namespace {

enum WireType { kVarint = 0, kEightBytes = 1, kSized = 2, kFourBytes = 5 };

std::string tag(int number, WireType type) {
  return varint(static_cast<std::uint64_t>(number) << 3 | type);
}

template <class T>
std::string bytes_of(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string field(int number, std::int64_t value) {
  return tag(number, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string field(int number, double value) { return tag(number, kEightBytes) + bytes_of(value); }
std::string field(int number, float value) { return tag(number, kFourBytes) + bytes_of(value); }
std::string field(int number, std::string_view bytes) {
  return header(number, bytes.size()) + std::string(bytes);
}
std::string header(int number, std::uint64_t size) { return tag(number, kSized) + varint(size); }

}  // namespace weft::io::protobuf
