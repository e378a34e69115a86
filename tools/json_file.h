// JSON files that a tool's user names.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::tools {

/// The meaning of an exception of the JSON library, for a user who does not know the code.
inline std::string fault_of(const nlohmann::json::exception& error) {
  if (const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    return detail::concat("no JSON at byte ", syntax->byte,
                          "; was its program ended while it wrote?");
  }
  // The library's numbers, https://json.nlohmann.me/home/exceptions/.
  constexpr int kNoMember = 403, kTooLarge = 406;
  const std::string text = error.what();
  const std::size_t begin = text.find('\''), end = text.rfind('\'');
  if (error.id == kNoMember && begin < end && end != std::string::npos) {
    return "a " + text.substr(begin, end - begin + 1) + " is missing in it";
  }
  if (error.id == kTooLarge) return "a number in it is too large";
  return "something in it is not of the type that belongs there";
}

/// Returns read(JSON of the file). Throws Io with the file's name if the file cannot be read, is
/// not JSON, or lacks a member that read() needs or has it with another type. `what` is how the
/// error then describes the file: "no trace that --trace wrote". Errors that read() itself throws
/// get the file's name.
template <class Read>
auto read_json(const std::string& path, const char* op, const char* what, Read&& read) {
  std::ifstream file(path);
  WEFT_CHECK(file && file.peek() != std::ifstream::traits_type::eof(), Io, op, path,
             " cannot be read, or is empty");
  try {
    return std::forward<Read>(read)(nlohmann::json::parse(file));
  } catch (const nlohmann::json::exception& error) {
    WEFT_THROW(Io, op, path, " is ", what, ": ", fault_of(error));
  } catch (const Error&) {
    rethrow_within(path);
  }
}

}  // namespace weft::tools
