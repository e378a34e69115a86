// How messages show a text of a file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::io::detail {

/// The part of a file's text that a message shows: short, printable and in quotes.
inline std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return out + (text.size() > kMost ? "...\"" : "\"");
}

}  // namespace weft::io::detail
