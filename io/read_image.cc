#include "weft/io/read_image.h"

#include <algorithm>
#include <initializer_list>

#include "weft/core/base/error.h"
#include "weft/io/file_reader.h"
#include "weft/io/jpeg.h"
#include "weft/io/png.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "image";

bool begins_with(std::span<const std::byte> bytes, std::initializer_list<int> start) {
  return bytes.size() >= start.size() &&
         std::equal(start.begin(), start.end(), bytes.begin(),
                    [](int want, std::byte got) { return want == std::to_integer<int>(got); });
}

}  // namespace

Image read_image(const std::string& path, const ImageOptions& options) {
  const FileReader file(path, kOp);
  WEFT_CHECK(file.size() <= options.max_bytes, Io, kOp, path, ": ", file.size(),
             " bytes are over the limit of ", options.max_bytes);
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return parse_image(bytes, options, path);
}

Image parse_image(std::span<const std::byte> bytes, const ImageOptions& options,
                  const std::string& name) {
  WEFT_CHECK(!bytes.empty(), Io, kOp, name, ": empty file");
  if (begins_with(bytes, {0xff, 0xd8})) return parse_jpeg(bytes, options, name);
  if (begins_with(bytes, {0x89, 'P', 'N', 'G'})) return parse_png(bytes, options, name);
  WEFT_THROW(Io, kOp, name, ": neither a JPEG nor a PNG file, by its first bytes");
}

}  // namespace weft::io
