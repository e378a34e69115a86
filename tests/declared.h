// The functions that a header declares, from its text: for tests of every operation.
#pragma once

#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace weft::testing {

/// The names of the functions, outside of classes and macros, that take or return tensors, but for
/// those that return nothing or a bool. Declarations must be as clang-format leaves them. `header`:
/// a file of the test's data.
inline std::set<std::string> tensor_functions(const std::string& header) {
  const std::regex function(R"(^(\w[\w:<>, ]*)&? (\w+)\(.*)"), nothing("void|bool");
  const std::regex tensors(R"(.*\bTensor\b.*|.*\($)");  // behind a bracket the line may end
  const std::regex of_raw(R"(^using raw::(\w+);.*)");
  std::set<std::string> names;
  std::ifstream text(header);
  std::smatch match;
  for (std::string line; std::getline(text, line);) {
    if (std::regex_match(line, match, of_raw)) {
      names.insert(match[1]);
    } else if (std::regex_match(line, match, function) && std::regex_match(line, tensors) &&
               !std::regex_match(match[1].str(), nothing)) {
      names.insert(match[2]);
    }
  }
  return names;
}

}  // namespace weft::testing
