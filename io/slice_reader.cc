#include "weft/io/slice_reader.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/io/boxes.h"
#include "weft/io/half.h"
#include "weft/io/safetensors_source.h"
#include "weft/io/shown.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io {

using detail::kSafetensors;
using detail::shown;
using detail::TensorEntry;

std::map<std::string, std::string> read_index(const std::string& path) {
  const detail::FileSource source(path, kSafetensors);
  constexpr std::uint64_t kMost = std::uint64_t{16} << 20;
  WEFT_CHECK(source.size() <= kMost, Io, kSafetensors, path, ": ", source.size(),
             " bytes are too many for an index, over ", kMost);
  std::string text(source.size(), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  const nlohmann::json index = nlohmann::json::parse(text, nullptr, false);
  WEFT_CHECK(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
             Io, kSafetensors, path, ": not an index: it has no weight_map");
  std::map<std::string, std::string> places;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const auto* text = file.get_ptr<const std::string*>();  // no dump(), which may be deep
    WEFT_CHECK(text && !text->empty() && text->find('/') == std::string::npos, Io, kSafetensors,
               path, ": ", shown(name), ": ", text ? shown(*text) : file.type_name(),
               " is no name of a file beside the index");
    places[name] = path.substr(0, path.rfind('/') + 1) + *text;
  }
  return places;
}

struct SliceReader::Impl {
  struct File {
    std::string path;
    detail::FileSource source;
    detail::OpenedSafetensors opened;

    explicit File(const std::string& at)
        : path(at), source(at, kSafetensors), opened(open_safetensors(source, at)) {}
  };
  struct Place {
    const File* file;
    const TensorEntry* entry;
  };

  std::vector<std::unique_ptr<const File>> files;
  std::vector<std::string> names;  // in the order of the files
  std::unordered_map<std::string, Place> places;
  std::uint64_t bytes_read = 0;

  const Place& place(const std::string& name) const {
    const auto found = places.find(name);
    WEFT_CHECK(found != places.end(), InvalidArgument, kSafetensors,
               files.empty() ? "no file" : files[0]->path, ": no tensor ", shown(name));
    return found->second;
  }
  void open(const std::string& path) {
    const File& file = *files.emplace_back(std::make_unique<const File>(path));
    for (const TensorEntry& entry : file.opened.header.tensors) {
      const auto [at, is_new] = places.try_emplace(entry.name, Place{&file, &entry});
      WEFT_CHECK(is_new, Io, kSafetensors, "tensor ", shown(entry.name), " is in ",
                 at->second.file->path, " and in ", path);
      names.push_back(entry.name);
    }
  }
  void open_index(const std::string& path) {
    const std::map<std::string, std::string> index = read_index(path);
    std::unordered_set<std::string> opened;
    for (const auto& [name, file] : index) {
      if (opened.insert(file).second) open(file);
    }
    for (const auto& [name, file] : index) {
      const auto found = places.find(name);
      WEFT_CHECK(found != places.end() && found->second.file->path == file, Io, kSafetensors, path,
                 ": says that ", shown(name), " is in ", file, ", which has no such tensor");
    }
  }
};

SliceReader::SliceReader(const std::vector<std::string>& paths) : impl_(std::make_unique<Impl>()) {
  for (const std::string& path : paths) {
    if (path.ends_with(".index.json")) {
      impl_->open_index(path);
    } else {
      impl_->open(path);
    }
  }
}
SliceReader::SliceReader(SliceReader&&) noexcept = default;
SliceReader::~SliceReader() = default;

std::vector<std::string> SliceReader::names() const { return impl_->names; }
bool SliceReader::has(const std::string& name) const { return impl_->places.contains(name); }
const Shape& SliceReader::shape(const std::string& name) const {
  return impl_->place(name).entry->shape;
}
DType SliceReader::dtype(const std::string& name) const { return impl_->place(name).entry->dtype; }
std::uint64_t SliceReader::bytes_read() const { return impl_->bytes_read; }

Metadata SliceReader::metadata() const {
  Metadata all;
  for (const auto& file : impl_->files) {
    for (const auto& item : file->opened.header.metadata) {
      if (!detail::is_checksum(item.first)) all.insert(item);
    }
  }
  return all;
}

std::string SliceReader::checksums() const {
  std::string text;
  for (const auto& file : impl_->files) {
    const Metadata& metadata = file->opened.header.metadata;
    const auto crc = metadata.find(std::string(detail::kHeaderCrc));
    if (crc != metadata.end()) text += crc->second + ' ';
  }
  return text;
}

void SliceReader::read(const TensorSlice& slice) const {
  const auto& [file, entry] = impl_->place(slice.name);
  const Shape& box = slice.tensor.shape();
  WEFT_CHECK(entry->shape == slice.whole, InvalidArgument, kSafetensors, file->path, ": tensor ",
             shown(slice.name), " is ", entry->shape, ", expected ", slice.whole);
  WEFT_CHECK(detail::inside(slice.whole, slice.offsets, box), InvalidArgument, kSafetensors,
             "tensor ", shown(slice.name), ' ', slice.whole, ": a slice lies outside: ", box,
             " at ", slice.offsets);
  const std::size_t element = detail::stored_size(*entry);
  std::vector<std::byte> bytes(static_cast<std::size_t>(numel(box)) * element);
  detail::each_range(slice.whole, slice.offsets, box, element,
                     [&](std::uint64_t at, std::uint64_t of_box, std::uint64_t count) {
                       const auto range = std::span(bytes).subspan(of_box, count);
                       file->source.read(file->opened.data_begin + entry->begin + at, range);
                       detail::check_bytes(*entry, at, range, file->opened.header.metadata,
                                           file->path);
                     });
  impl_->bytes_read += bytes.size();
  if (entry->half) {
    std::vector<std::byte> floats(2 * bytes.size());
    detail::from_halves(bytes, floats.data());
    bytes.swap(floats);
  }
  // Borrowed memory, which counts for no device: a device's limit may have no room for it.
  const std::span memory(reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size());
  const Tensor values = borrow(memory, {std::ssize(memory)});
  raw::copy_(slice.tensor,
             as_strided(values.storage(), entry->dtype, box, contiguous_strides(box), 0));
}

}  // namespace weft::io
