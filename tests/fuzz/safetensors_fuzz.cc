#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/core/base/error.h"
#include "weft/io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    weft::io::parse_safetensors(std::as_bytes(std::span(data, size)));
  } catch (const weft::Error&) {
  }
  return 0;
}
