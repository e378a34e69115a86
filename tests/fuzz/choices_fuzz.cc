#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "weft/kernels/plan/choice_cache.h"

// Reads the input as a file and, since random lines have wrong checksums, each of its lines with a
// correct one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string machine = "m";
  std::string_view text(reinterpret_cast<const char*>(data), size);
  weft::parse_choices(text, machine);
  const std::string first = "weft choices 1 m\n";
  std::string summed = first;
  while (!text.empty()) {
    const std::string body(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), body.size() + 1));
    summed += weft::checksum(first + body) + ' ' + body + '\n';
  }
  const auto choices = weft::parse_choices(summed, machine);
  if (choices.size() <= weft::kMostChoices &&
      weft::parse_choices(weft::format_choices(choices, machine), machine) != choices) {
    std::abort();  // what was read must be written in the same way
  }
  return 0;
}
