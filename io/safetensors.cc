#include "weft/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_set>

#include "weft/core/runtime/file.h"
#include "weft/core/trace/trace.h"
#include "weft/io/half.h"
#include "weft/io/safetensors_source.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

using detail::Header;
using detail::kSafetensors;
using detail::Source;
using detail::TensorEntry;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::string_view kModule = "module.";

std::span<std::byte> bytes_of(const Tensor& x) {
  return {static_cast<std::byte*>(x.raw_data()), x.numel() * size_of(x.dtype())};
}

std::string crc_of(std::span<const std::byte> bytes) {
  return detail::format_crc(detail::crc_of(bytes));
}

Tensor read_tensor(const Source& source, std::uint64_t data_begin, const TensorEntry& entry,
                   const Metadata& metadata, Device device, const std::string& name) {
  Tensor host = empty(entry.shape, TensorOptions(entry.dtype, device.is_cpu() ? device : Device()));
  std::vector<std::byte> halves(entry.half ? entry.end - entry.begin : 0);
  const std::span<std::byte> bytes = entry.half ? std::span(halves) : bytes_of(host);
  source.read(data_begin + entry.begin, bytes);
  detail::check_bytes(entry, 0, bytes, metadata, name);
  if (entry.half) detail::from_halves(bytes, static_cast<std::byte*>(host.raw_data()));
  return device.is_cpu() ? host : raw::to(host, device);
}

std::string renamed(const std::string& name, ModulePrefix prefix) {
  switch (prefix) {
    case ModulePrefix::strip: return name.starts_with(kModule) ? name.substr(kModule.size()) : name;
    case ModulePrefix::add: return std::string(kModule) + name;
    case ModulePrefix::keep: break;
  }
  return name;
}

SafetensorsFile load(const Source& source, const LoadOptions& options, const std::string& name) {
  Span span("io", "load_safetensors");
  auto [header, data_begin] = detail::open_safetensors(source, name);
  SafetensorsFile file;
  file.tensors.reserve(header.tensors.size());
  std::unordered_set<std::string> names;
  for (const TensorEntry& entry : header.tensors) {
    std::string key = renamed(entry.name, options.module_prefix);
    WEFT_CHECK(options.module_prefix == ModulePrefix::keep || names.insert(key).second,
               InvalidArgument, kSafetensors, name, ": has \"", key, "\" with and without \"",
               kModule, "\"; load it with the prefix kept");
    file.tensors.emplace_back(std::move(key), read_tensor(source, data_begin, entry,
                                                          header.metadata, options.device, name));
  }
  std::erase_if(header.metadata, [](const auto& item) { return detail::is_checksum(item.first); });
  file.metadata = std::move(header.metadata);
  return file;
}

/// The bytes of a contiguous tensor in the form that they have in the file.
class Stored {
 public:
  Stored(const Tensor& x, bool half) : bytes_(bytes_of(x)) {
    if (!half) return;
    halves_ = detail::to_halves(
        {static_cast<const float*>(x.raw_data()), static_cast<std::size_t>(x.numel())});
    bytes_ = std::as_bytes(std::span(halves_));
  }
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::uint16_t> halves_;
  std::span<const std::byte> bytes_;
};

void check_names(const NamedTensors& tensors, const Metadata& metadata) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    WEFT_CHECK(tensor.defined(), InvalidArgument, kSafetensors, "tensor \"", name,
               "\" is undefined");
    detail::check_name(name);
    WEFT_CHECK(names.insert(name).second, InvalidArgument, kSafetensors,
               "two tensors are called \"", name, '"');
  }
  WEFT_CHECK(tensors.size() <= detail::kMaxTensors, InvalidArgument, kSafetensors, "more than ",
             detail::kMaxTensors, " tensors");
  for (const auto& [key, value] : metadata) {
    WEFT_CHECK(!detail::is_checksum(key), InvalidArgument, kSafetensors, "metadata key \"", key,
               "\" is kept for checksums");
  }
}

}  // namespace

namespace detail {

OpenedSafetensors open_safetensors(const Source& source, const std::string& name) {
  const std::uint64_t file_bytes = source.size();
  WEFT_CHECK(file_bytes >= kLengthBytes, Io, kSafetensors, name, ": ", file_bytes,
             " bytes are too few for a header");
  std::uint64_t header_bytes = 0;
  source.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  WEFT_CHECK(header_bytes <= kMaxHeaderBytes, Io, kSafetensors, name, ": claims a header of ",
             header_bytes, " bytes, over the format's limit of ", kMaxHeaderBytes);
  WEFT_CHECK(header_bytes <= file_bytes - kLengthBytes, Io, kSafetensors, name,
             ": claims a header of ", header_bytes, " bytes, the file has ",
             file_bytes - kLengthBytes, " (is it cut off?)");
  const std::uint64_t data_begin = kLengthBytes + header_bytes;
  std::string text(header_bytes, '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return {parse_header(text, file_bytes - data_begin, name), data_begin};
}

void check_bytes(const TensorEntry& entry, std::uint64_t at, std::span<const std::byte> bytes,
                 const Metadata& metadata, const std::string& name) {
  const std::uint64_t all = entry.end - entry.begin;
  const auto check = [&](std::string_view stored, std::span<const std::byte> part) {
    WEFT_CHECK(stored == format_crc(crc_of(part)), Io, kSafetensors, name,
               ": checksum of tensor \"", entry.name, "\" does not match: the file is damaged");
  };
  if (const auto crc = metadata.find(crc_key(kTensorCrc, entry.name));
      crc != metadata.end() && bytes.size() == all) {
    check(crc->second, bytes);
  }
  if (const auto crcs = metadata.find(crc_key(kBlockCrcs, entry.name)); crcs != metadata.end()) {
    const std::uint64_t blocks = (all + kBlockBytes - 1) / kBlockBytes;
    WEFT_CHECK(crcs->second.size() == 8 * blocks, Io, kSafetensors, name, ": tensor \"", entry.name,
               "\" has ", crcs->second.size() / 8, " checksums, needs ", blocks);
    for (std::uint64_t b = (at + kBlockBytes - 1) / kBlockBytes; b < blocks; ++b) {
      const std::uint64_t first = b * kBlockBytes, count = std::min(kBlockBytes, all - first);
      if (first + count > at + bytes.size()) break;
      check(std::string_view(crcs->second).substr(8 * b, 8), bytes.subspan(first - at, count));
    }
  }
  if (entry.dtype == DType::boolean) {
    // Any other byte in a bool would be undefined behaviour.
    const auto bad = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
    WEFT_CHECK(bad == bytes.end(), Io, kSafetensors, name, ": value ", std::to_integer<int>(*bad),
               " in BOOL tensor \"", entry.name, '"');
  }
}

}  // namespace detail

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const Metadata& metadata, const SaveOptions& options) {
  Span span("io", "save_safetensors");
  check_names(tensors, metadata);
  const auto is_half = [&](const Tensor& x) { return options.f16 && x.dtype() == DType::f32; };
  NamedTensors host;
  host.reserve(tensors.size());
  for (const std::size_t bytes : {8, 4, 2, 1}) {
    for (const auto& [name, tensor] : tensors) {
      if ((is_half(tensor) ? 2 : size_of(tensor.dtype())) != bytes) continue;
      host.emplace_back(
          name, raw::contiguous(tensor.device().is_cpu() ? tensor : raw::to(tensor, Device())));
    }
  }

  Header header;
  header.metadata = metadata;
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : host) {
    const Stored stored(tensor, is_half(tensor));
    const std::uint64_t end = at + stored.bytes().size();
    header.tensors.push_back({name, tensor.dtype(), is_half(tensor), tensor.shape(), at, end});
    header.metadata.emplace(detail::crc_key(detail::kTensorCrc, name), crc_of(stored.bytes()));
    at = end;
  }
  const std::string text = detail::format_header(header);
  WEFT_CHECK(text.size() <= detail::kMaxHeaderBytes, InvalidArgument, kSafetensors, path,
             ": names and metadata need a header of ", text.size(),
             " bytes, over the format's limit of ", detail::kMaxHeaderBytes);

  AtomicFile file(path);
  const std::uint64_t length = text.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const auto& [name, tensor] : host) file.write(Stored(tensor, is_half(tensor)).bytes());
  file.commit();
}

SafetensorsFile load_safetensors(const std::string& path, const LoadOptions& options) {
  return load(detail::FileSource(path, kSafetensors), options, path);
}

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const LoadOptions& options,
                                  const std::string& name) {
  return load(detail::MemorySource(bytes), options, name);
}

}  // namespace weft::io
