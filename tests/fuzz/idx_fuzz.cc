#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/core/base/error.h"
#include "weft/io/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    weft::io::parse_idx(std::as_bytes(std::span(data, size)), {.max_bytes = 1 << 20});
  } catch (const weft::Error&) {
  }
  return 0;
}
