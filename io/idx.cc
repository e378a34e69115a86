#include "weft/io/idx.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "weft/core/runtime/thread_state.h"
#include "weft/io/data_bytes.h"
#include "weft/io/gzip.h"
#include "weft/io/source.h"
#include "weft/tensor/creation.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "idx";
constexpr int kMaxIdxDims = 4;

struct Header {
  Shape shape;
  std::uint64_t header_bytes = 0;
  std::uint64_t data_bytes = 0;
};

const char* other_type(std::uint8_t type) {
  switch (type) {
    case 0x09: return "i8";
    case 0x0b: return "i16";
    case 0x0c: return "i32";
    case 0x0d: return "f32";
    case 0x0e: return "f64";
    default: return nullptr;
  }
}

Header read_header(ByteStream& stream, const IdxOptions& options, const std::string& name) {
  std::array<std::byte, 4> magic;
  const std::size_t got = stream.read(magic);
  WEFT_CHECK(got == magic.size(), Io, kOp, name, ": ", got, " bytes are too few for a header");
  const auto type = std::to_integer<std::uint8_t>(magic[2]);
  const auto dims = std::to_integer<int>(magic[3]);
  WEFT_CHECK(magic[0] == std::byte{0} && magic[1] == std::byte{0} &&
                 (type == 0x08 || other_type(type) != nullptr),
             Io, kOp, name, ": not an IDX file: it begins with ", std::to_integer<int>(magic[0]),
             ' ', std::to_integer<int>(magic[1]), ' ', int{type}, ' ', dims,
             ", an IDX file of u8 values with 0 0 8 and the number of dimensions");
  WEFT_CHECK(type == 0x08, Unsupported, kOp, name, ": holds ", other_type(type),
             " values; weft reads u8, as MNIST's files have");
  WEFT_CHECK(dims >= 1 && dims <= kMaxIdxDims, Io, kOp, name, ": claims ", dims,
             " dimensions, 1 to ", kMaxIdxDims, " are allowed");

  Header header;
  header.header_bytes = magic.size() + 4 * static_cast<std::uint64_t>(dims);
  std::array<std::byte, 4 * kMaxIdxDims> sizes;
  const std::span<std::byte> wanted(sizes.data(), 4 * static_cast<std::size_t>(dims));
  WEFT_CHECK(stream.read(wanted) == wanted.size(), Io, kOp, name, ": cut off inside its header");
  for (int i = 0; i < dims; ++i) {
    std::uint32_t size = 0;
    for (int k = 0; k < 4; ++k) size = size << 8 | std::to_integer<std::uint32_t>(sizes[4 * i + k]);
    header.shape.push_back(size);
  }
  const auto values = detail::data_bytes(header.shape, 1);
  WEFT_CHECK(values && *values <= options.max_bytes, Io, kOp, name, ": claims ", header.shape,
             " values, over the limit of ", options.max_bytes, " bytes");
  header.data_bytes = *values;
  return header;
}

Tensor read_values(ByteStream& stream, const Header& header, const std::string& name) {
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::data_set);
  Tensor values = empty(header.shape, TensorOptions(DType::u8, Device()));
  const std::span<std::byte> out(static_cast<std::byte*>(values.raw_data()), header.data_bytes);
  const std::size_t got = stream.read(out);
  WEFT_CHECK(got == out.size(), Io, kOp, name, ": the header promises ", out.size(), " values (",
             header.shape, "), the file holds ", got);
  std::byte more;
  WEFT_CHECK(stream.read({&more, 1}) == 0, Io, kOp, name, ": holds more than the ", out.size(),
             " values (", header.shape, ") its header promises");
  return values;
}

Tensor read_any(const detail::Source& source, const IdxOptions& options, const std::string& name) {
  const std::uint64_t bytes = source.size();
  WEFT_CHECK(bytes > 0, Io, kOp, name, ": empty file");
  std::array<std::byte, 2> start = {};
  source.read(0, std::span(start).first(std::min<std::uint64_t>(bytes, start.size())));
  detail::SourceStream stream(source, 0, bytes);
  if (!is_gzip(start)) {
    const Header header = read_header(stream, options, name);
    WEFT_CHECK(header.header_bytes + header.data_bytes == bytes, Io, kOp, name,
               ": the header promises ", header.data_bytes, " values (", header.shape,
               "), the file holds ", bytes - header.header_bytes);
    return read_values(stream, header, name);
  }
  GunzipStream inflated(stream, name);
  const Header header = read_header(inflated, options, name);
  // Pictures are deflated to a half or a tenth; deflate's extreme is 1:1032. Data up to this size
  // may have any ratio; a small file that promises hundreds of MB is a bomb or wrong.
  constexpr std::uint64_t kUnsuspicious = 64 << 20;
  constexpr std::uint64_t kMostRatio = 64;
  WEFT_CHECK(header.data_bytes <= kUnsuspicious || header.data_bytes / kMostRatio <= bytes, Io, kOp,
             name, ": ", bytes, " compressed bytes claim to hold ", header.data_bytes, " (",
             header.shape, "), over the limit of ", kMostRatio, ":1");
  return read_values(inflated, header, name);
}

}  // namespace

Tensor read_idx(const std::string& path, const IdxOptions& options) {
  return read_any(detail::FileSource(path, kOp), options, path);
}

Tensor parse_idx(std::span<const std::byte> bytes, const IdxOptions& options,
                 const std::string& name) {
  return read_any(detail::MemorySource(bytes), options, name);
}

}  // namespace weft::io
