// Inflates what it is given, up to 1 MiB, in pieces whose sizes the first byte decides.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/gzip.h"

namespace {

class MemoryStream final : public weft::io::ByteStream {
 public:
  explicit MemoryStream(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::size_t read(std::span<std::byte> out) override {
    const std::size_t n = std::min(out.size(), rest_.size());
    std::copy_n(rest_.begin(), n, out.begin());
    rest_ = rest_.subspan(n);
    return n;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  MemoryStream source(std::as_bytes(std::span(data, size)).subspan(1));
  std::vector<std::byte> piece(std::size_t{data[0]} * 16 + 1);
  try {
    weft::io::GunzipStream stream(source, "input");
    std::size_t total = 0;
    for (std::size_t got = 1; got > 0 && total < (1 << 20); total += got) got = stream.read(piece);
  } catch (const weft::Error&) {
  }
  return 0;
}
