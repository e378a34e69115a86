#include "weft/nn/repr.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "weft/core/base/error.h"

namespace weft::nn::detail {

const char* repr(bool value) { return value ? "True" : "False"; }

std::string repr(double value) {
  const double size = std::abs(value);
  const bool fixed = value == 0 || (size >= 1e-4 && size < 1e16);
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string digits(text, end.ptr);
  if (fixed && digits.find('.') == std::string::npos) digits += ".0";
  return digits;
}

std::string with_commas(std::int64_t n) {
  std::string text = std::to_string(n);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), 1, ',');
  return text;
}

std::string repr(const Pair& pair) {
  return pair.h == pair.w ? std::to_string(pair.h)
                          : weft::detail::concat("(", pair.h, ", ", pair.w, ")");
}

std::string repr(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string first_few(const std::vector<std::string>& entries) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(entries.size(), kMost); ++i) {
    text += (i ? ", " : "") + entries[i];
  }
  if (entries.size() > kMost) {
    text += " and " + std::to_string(entries.size() - kMost) + " more";
  }
  return text;
}

}  // namespace weft::nn::detail
