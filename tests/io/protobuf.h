// Reads protocol buffers (io/protobuf.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft::testing::protobuf {

template <class T>
T take(std::string_view& bytes) {
  T value{};
  if (bytes.size() < sizeof value) throw std::runtime_error("cut off");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

inline std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
}

/// The fields of a message by number, in their order: the bytes of each, or 8 bytes for a varint.
inline std::multimap<int, std::string> fields(std::string_view bytes) {
  std::multimap<int, std::string> found;
  while (!bytes.empty()) {
    const auto key = take_varint(bytes);
    std::size_t size = 0;
    std::string value;
    switch (key & 7) {
      case 0: {
        const std::uint64_t number = take_varint(bytes);
        value.assign(reinterpret_cast<const char*>(&number), sizeof number);
        break;
      }
      case 1: size = 8; break;
      case 2: size = take_varint(bytes); break;
      case 5: size = 4; break;
      default: throw std::runtime_error("wire type");
    }
    value += bytes.substr(0, size);
    bytes.remove_prefix(std::min(size, bytes.size()));
    found.emplace(static_cast<int>(key >> 3), value);
  }
  return found;
}

template <class T>
T number(const std::string& bytes) {
  std::string_view rest = bytes;
  return take<T>(rest);
}

}  // namespace weft::testing::protobuf
