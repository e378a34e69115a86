// The first byte: whether there is a header, and the separator.
#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/core/base/error.h"
#include "weft/io/csv.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    weft::io::parse_csv(std::as_bytes(std::span(data + 1, size - 1)),
                        {.header = data[0] % 2 == 1, .separator = ",;\t "[data[0] / 2 % 4]});
  } catch (const weft::Error&) {
  }
  return 0;
}
