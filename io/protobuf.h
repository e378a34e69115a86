// Writes protocol buffers: a field of a message is its number and wire type, followed by the value.
// https://protobuf.dev/programming-guides/encoding. A message is the text of its fields, one after
// the other:  field(1, 8) + field(2, "weft") + field(7, field(1, 3))
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::io::protobuf {

std::string varint(std::uint64_t value);
/// An int32, int64, bool or enum.
std::string field(int number, std::int64_t value);
std::string field(int number, double value);
std::string field(int number, float value);
/// A string, bytes or a message.
std::string field(int number, std::string_view bytes);
/// The start of such a field, without its `size` bytes, which the caller writes after it.
std::string header(int number, std::uint64_t size);

}  // namespace weft::io::protobuf
