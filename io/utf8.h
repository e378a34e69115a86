// Texts that must be UTF-8: those of JSON, of pickles, and the names of a zip archive.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace weft::io::detail {

inline bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace weft::io::detail
