// The first byte modulo 3: 0: the rest is a .npy file. 1: it is a .npz file. 2: it is an array of
// an archive with a right checksum, which mutations of a file would hardly find.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/core/base/error.h"
#include "weft/io/npy.h"
#include "weft/tests/io/zip_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 3 == 0) {
      weft::io::parse_npy(std::as_bytes(std::span(rest)));
    } else if (data[0] % 3 == 1) {
      weft::io::parse_npz(std::as_bytes(std::span(rest)));
    } else {
      const std::string file = weft::testing::zip({{.name = "x.npy",
                                                    .data = weft::testing::deflated(rest),
                                                    .method = 8,
                                                    .unpacked = rest}});
      weft::io::parse_npz(std::as_bytes(std::span(file)));
    }
  } catch (const weft::Error&) {
  }
  return 0;
}
