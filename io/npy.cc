#include "weft/io/npy.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/trace/trace.h"
#include "weft/io/data_bytes.h"
#include "weft/io/half.h"
#include "weft/io/npy_header.h"
#include "weft/io/shown.h"
#include "weft/io/source.h"
#include "weft/io/utf8.h"
#include "weft/io/zip.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

using detail::kNpy;
using detail::NpyHeader;
using detail::Source;
using detail::ZipRecord;

static_assert(std::endian::native == std::endian::little, "the values are little-endian");

constexpr const char* kNpz = "npz";
constexpr std::string_view kEnding = ".npy";
constexpr std::size_t kMaxNameBytes = 4096;  // longest name of a record, as in read_zip_directory()

std::span<std::byte> bytes_of(const Tensor& x) {
  return {static_cast<std::byte*>(x.raw_data()), x.numel() * size_of(x.dtype())};
}

/// The values of a column-major file are those of the transposed array in row-major order.
Tensor transposed(const Tensor& x) {
  Dims order;
  for (int i = x.dim(); i-- > 0;) order.push_back(i);
  return raw::permute(x, order);
}

Tensor read_values(ByteStream& stream, const NpyHeader& header, Device device,
                   const std::string& name) {
  Shape shape = header.shape;
  if (header.fortran_order) std::reverse(shape.begin(), shape.end());
  const Tensor host =
      empty(shape, TensorOptions(header.dtype, device.is_cpu() ? device : Device()));
  std::vector<std::byte> halves(header.half ? header.data_bytes : 0);
  const std::span<std::byte> bytes = header.half ? std::span(halves) : bytes_of(host);
  const std::size_t got = stream.read(bytes);
  WEFT_CHECK(got == bytes.size(), Io, kNpy, name, ": ", got, " bytes of values, shape ",
             header.shape, " needs ", bytes.size());
  std::byte more;
  WEFT_CHECK(stream.read({&more, 1}) == 0, Io, kNpy, name, ": bytes follow the ", bytes.size(),
             " of shape ", header.shape);
  if (header.half) detail::from_halves(bytes, static_cast<std::byte*>(host.raw_data()));
  if (header.dtype == DType::boolean) {
    // Any other byte in a bool would be undefined behaviour.
    const auto bad = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
    WEFT_CHECK(bad == bytes.end(), Io, kNpy, name, ": value ", std::to_integer<int>(*bad),
               " at byte ", header.header_bytes + static_cast<std::uint64_t>(bad - bytes.begin()),
               ", in an array of bools");
  }
  const Tensor there = device.is_cpu() ? host : raw::to(host, device);
  return header.fortran_order ? transposed(there) : there;
}

/// `bytes`: the number of bytes that the stream is expected to have.
Tensor read_array(ByteStream& stream, std::uint64_t bytes, const NpyOptions& options,
                  const std::string& name) {
  const NpyHeader header = detail::read_npy_header(stream, name);
  WEFT_CHECK(header.header_bytes <= bytes && header.data_bytes == bytes - header.header_bytes, Io,
             kNpy, name, ": ", bytes - std::min(bytes, header.header_bytes),
             " bytes of values behind the header, ", header.half ? "f16" : to_string(header.dtype),
             ' ', header.shape, " needs ", header.data_bytes,
             " (is it cut off, or are there several arrays in the file?)");
  return read_values(stream, header, options.device, name);
}

Tensor read_npy(const Source& source, const NpyOptions& options, const std::string& name) {
  Span span("io", "load_npy");
  detail::SourceStream stream(source, 0, source.size());
  return read_array(stream, source.size(), options, name);
}

std::vector<ZipRecord> records_of(const Source& source, const std::string& name) {
  std::string start(std::min<std::uint64_t>(source.size(), 8), '\0');
  source.read(0, std::as_writable_bytes(std::span(start)));
  WEFT_CHECK(!start.starts_with("\x93NUMPY"), Io, kNpz, name,
             ": one array, as in .npy files; load_npy() reads those");
  return detail::read_zip_directory(source, kNpz, name);
}

/// The name of an array, whose record has an ending.
std::string_view array_name(const ZipRecord& record) {
  std::string_view name = record.name;
  if (name.ends_with(kEnding)) name.remove_suffix(kEnding.size());
  return name;
}

Tensor read_record(const Source& source, const ZipRecord& record, const NpyOptions& options,
                   const std::string& name) {
  WEFT_CHECK(record.name.ends_with(kEnding), Unsupported, kNpz, name, ": record ",
             detail::shown(record.name), " is no array, whose name ends with ", kEnding);
  detail::ZipRecordStream stream(source, record, kNpz, name);
  return read_array(stream, record.size, options, name + ": " + detail::shown(record.name));
}

NamedTensors read_npz(const Source& source, const NpyOptions& options, const std::string& name) {
  Span span("io", "load_npz");
  NamedTensors tensors;
  for (const ZipRecord& record : records_of(source, name)) {
    tensors.emplace_back(array_name(record), read_record(source, record, options, name));
  }
  return tensors;
}

/// A tensor in the form that it has in a file.
class Stored {
 public:
  explicit Stored(const Tensor& x) {
    WEFT_CHECK(x.defined(), InvalidArgument, kNpy, "the tensor is undefined");
    const std::size_t element = x.dtype() == DType::bf16 ? sizeof(float) : size_of(x.dtype());
    WEFT_CHECK(detail::data_bytes(x.shape(), element), InvalidArgument, kNpy, "shape ", x.shape(),
               " is larger than any memory");
    const Tensor host = x.device().is_cpu() ? x : raw::to(x, Device());
    values_ = raw::contiguous(host.dtype() == DType::bf16 ? raw::to(host, DType::f32) : host);
    header_ = detail::format_npy_header(values_.dtype(), values_.shape());
  }
  std::span<const std::byte> header() const { return std::as_bytes(std::span(header_)); }
  std::span<const std::byte> values() const { return bytes_of(values_); }

 private:
  Tensor values_;
  std::string header_;
};

void check_names(const NamedTensors& tensors) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, x] : tensors) {
    WEFT_CHECK(x.defined(), InvalidArgument, kNpz, "array ", detail::shown(name), " is undefined");
    WEFT_CHECK(!name.empty() && name.size() + kEnding.size() <= kMaxNameBytes, InvalidArgument,
               kNpz, "an array's name has ", name.size(), " bytes, 1 to ",
               kMaxNameBytes - kEnding.size(), " are allowed");
    // Python's zipfile refuses the whole archive, or takes the name only up to the 0.
    WEFT_CHECK(detail::is_utf8(name) && name.find('\0') == std::string::npos, InvalidArgument, kNpz,
               "the array's name ", detail::shown(name), " is not UTF-8, or has a byte of 0");
    WEFT_CHECK(names.insert(name).second, InvalidArgument, kNpz, "two arrays are called ",
               detail::shown(name));
  }
}

}  // namespace

Tensor load_npy(const std::string& path, const NpyOptions& options) {
  return read_npy(detail::FileSource(path, kNpy), options, path);
}

Tensor parse_npy(std::span<const std::byte> bytes, const NpyOptions& options,
                 const std::string& name) {
  return read_npy(detail::MemorySource(bytes), options, name);
}

void save_npy(const std::string& path, const Tensor& x) {
  Span span("io", "save_npy");
  const Stored stored(x);
  AtomicFile file(path);
  file.write(stored.header());
  file.write(stored.values());
  file.commit();
}

NamedTensors load_npz(const std::string& path, const NpyOptions& options) {
  return read_npz(detail::FileSource(path, kNpz), options, path);
}

Tensor load_npz(const std::string& path, const std::string& array, const NpyOptions& options) {
  Span span("io", "load_npz");
  const detail::FileSource source(path, kNpz);
  const std::vector<ZipRecord> records = records_of(source, path);
  const auto found = std::ranges::find(records, array, array_name);
  std::string there;
  for (const ZipRecord& record : records) there += ' ' + detail::shown(array_name(record));
  WEFT_CHECK(found != records.end(), InvalidArgument, kNpz, path, ": no array ",
             detail::shown(array), "; there are", there.empty() ? " none" : there);
  return read_record(source, *found, options, path);
}

NamedTensors parse_npz(std::span<const std::byte> bytes, const NpyOptions& options,
                       const std::string& name) {
  return read_npz(detail::MemorySource(bytes), options, name);
}

void save_npz(const std::string& path, const NamedTensors& tensors) {
  Span span("io", "save_npz");
  check_names(tensors);
  AtomicFile file(path);
  detail::ZipWriter zip(file);
  for (const auto& [name, x] : tensors) {
    const Stored stored(x);
    zip.add(name + std::string(kEnding), {stored.header(), stored.values()});
  }
  zip.finish();
  file.commit();
}

}  // namespace weft::io
