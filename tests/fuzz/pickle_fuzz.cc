// An even first byte: the rest is a file of torch.save. An odd one: the rest is a pickle, in an
// archive with right checksums, which mutations of a file would hardly find.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/core/base/error.h"
#include "weft/io/pickle.h"
#include "weft/tests/io/zip_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string file =
      data[0] % 2 == 0
          ? rest
          : weft::testing::torch_file(
                rest, {std::string(16, '\x01'), std::string(96, '\x02'), std::string(36, '\0')});
  try {
    weft::io::parse_pickle(std::as_bytes(std::span(file)));
  } catch (const weft::Error&) {
  }
  return 0;
}
