// The first byte selects the kind of the rest. Records are large, so a record is made of a hundred
// bytes of input, repeated: then the fuzzer can reach the labels.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/cifar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto kind = data[0] % 2 != 0 ? weft::io::CifarKind::Cifar100 : weft::io::CifarKind::Cifar10;
  const std::size_t repeats = data[0] / 2;
  const std::span<const std::byte> part = std::as_bytes(std::span(data, size)).subspan(1);
  std::vector<std::byte> bytes(part.begin(), part.end());
  for (std::size_t i = 0; i < repeats; ++i) bytes.insert(bytes.end(), part.begin(), part.end());
  try {
    weft::io::parse_cifar(bytes, kind);
  } catch (const weft::Error&) {
  }
  return 0;
}
