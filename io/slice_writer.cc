#include "weft/io/slice_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <ranges>
#include <span>
#include <system_error>
#include <unordered_map>

#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/io/boxes.h"
#include "weft/io/safetensors_source.h"
#include "weft/io/shown.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

using detail::Box;
using detail::kBlockBytes;
using detail::kSafetensors;
using detail::shown;
using detail::TensorEntry;

// Stands in place of the header's length in an unfinished file; a random number below 2^48 is
// added.
constexpr std::uint64_t kUnfinished = std::uint64_t{1} << 62;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

/// A file that several processes may have open.
class OpenedForWriting {
 public:
  OpenedForWriting(std::string path, int flags) : path_(std::move(path)) {
    while ((fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0666)) < 0) {
      if (errno != EINTR) check(errno, "open");
    }
  }
  ~OpenedForWriting() { ::close(fd_); }
  OpenedForWriting(const OpenedForWriting&) = delete;
  OpenedForWriting& operator=(const OpenedForWriting&) = delete;

  void check_is(const std::string& made, std::uint64_t bytes) const {
    struct stat info{};
    check(::fstat(fd_, &info) == 0 ? 0 : errno, "examine");
    const auto size = static_cast<std::uint64_t>(info.st_size);
    std::uint64_t mark = 0;
    check(size < sizeof mark || ::pread(fd_, &mark, sizeof mark, 0) >= 0 ? 0 : errno, "read");
    WEFT_CHECK(size == bytes && std::to_string(mark) == made, Io, kSafetensors, path_, ": has ",
               size, " bytes and the mark ", mark, ", expected ", bytes, " and ", made,
               ": this is not the file that another rank has made");
  }
  void allocate(std::uint64_t bytes) const {
    const auto size = static_cast<off_t>(bytes);
    while (::fallocate(fd_, 0, 0, size) != 0) {
      // Not every file system reserves; posix_fallocate() would write to every block there.
      if (errno == EOPNOTSUPP) return check(::ftruncate(fd_, size) == 0 ? 0 : errno, "extend");
      if (errno != EINTR) check(errno, "reserve the bytes of");
    }
  }
  void write(std::uint64_t at, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      check(n > 0 ? 0 : n < 0 ? errno : ENOSPC, "write");
      at += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void flush() const {
    while (::fsync(fd_) != 0) {
      if (errno != EINTR) check(errno, "flush");
    }
  }

 private:
  void check(int error, const char* action) const {
    WEFT_CHECK(error == 0, Io, kSafetensors, "cannot ", action, ' ', path_, ": ",
               std::generic_category().message(error));
  }

  std::string path_;
  int fd_ = -1;
};

std::span<const std::byte> bytes_of(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw_data()), x.numel() * size_of(x.dtype())};
}

/// A tensor as the ranks describe it.
struct Described {
  std::string name;
  DType dtype = DType::f32;
  Shape whole;
  int rank = 0;              // the first that has some of it
  std::map<Box, int> boxes;  // none is empty; with the first rank that has each
};

Shape shape_of(const nlohmann::json& sizes) {
  return Shape(std::span<const std::int64_t>(sizes.get<std::vector<std::int64_t>>()));
}
nlohmann::json json_of(const Shape& shape) {
  return std::vector<std::int64_t>(shape.begin(), shape.end());
}

std::string of_rank(const Box& box, int rank) {
  return weft::detail::concat(box.sizes, " at ", box.offsets, " of rank ", rank);
}

/// Throws InvalidArgument unless the boxes fill the tensor.
void check_filled(const Described& x) {
  const auto wrong = detail::first_wrong_element(x.whole, std::views::keys(x.boxes));
  if (!wrong) return;
  std::vector<std::string> there;
  for (const auto& [box, rank] : x.boxes) {
    if (box.has(*wrong)) there.push_back(of_rank(box, rank));
  }
  WEFT_CHECK(!there.empty(), InvalidArgument, kSafetensors, "tensor ", shown(x.name), ' ', x.whole,
             ": no rank has a slice with its element ", *wrong);
  WEFT_THROW(InvalidArgument, kSafetensors, "tensor ", shown(x.name),
             ": slices overlap: ", there[0], " and ", there[1]);
}

std::vector<Described> merged(const std::vector<std::string>& described) {
  std::vector<Described> all;
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t r = 0; r < described.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const nlohmann::json& slice : nlohmann::json::parse(described[r])) {
      const auto name = slice[0].get<std::string>();
      const auto dtype = static_cast<DType>(slice[1].get<int>());
      const Shape whole = shape_of(slice[2]);
      const auto [at, is_new] = numbers.try_emplace(name, all.size());
      if (is_new) all.push_back({name, dtype, whole, rank, {}});
      Described& x = all[at->second];
      WEFT_CHECK(x.dtype == dtype && x.whole == whole, InvalidArgument, kSafetensors, "tensor ",
                 shown(name), " is ", x.dtype, ' ', x.whole, " on rank ", x.rank, " and ", dtype,
                 ' ', whole, " on rank ", rank);
      const Box box{shape_of(slice[3]), shape_of(slice[4])};
      WEFT_CHECK(detail::inside(whole, box.offsets, box.sizes), InvalidArgument, kSafetensors,
                 "tensor ", shown(name), ' ', whole,
                 ": a slice lies outside: ", of_rank(box, rank));
      if (numel(box.sizes) > 0) x.boxes.try_emplace(box, rank);
    }
  }
  for (const Described& x : all) check_filled(x);
  std::ranges::sort(all, {}, &Described::name);
  return all;
}

// A CRC without its first and last complement is linear, and zeros before the bytes do not change
// it. So the CRCs of a block's ranges, each moved to its place, give that of the block by XOR.
std::uint32_t linear_crc(std::span<const std::byte> bytes, std::uint64_t zeros_behind) {
  const std::uint32_t crc = ~detail::crc_of(bytes, ~std::uint32_t{0});
  return static_cast<std::uint32_t>(crc32_combine(crc, 0, static_cast<z_off_t>(zeros_behind)));
}
std::uint32_t crc_of_zeros(std::uint64_t count) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < count; done += kZeros.size()) {
    crc = detail::crc_of(std::span(kZeros).first(std::min(kZeros.size(), count - done)), crc);
  }
  return crc;
}

using Crcs = std::vector<std::uint32_t>;  // one for each block, in order
std::size_t block_count(const TensorEntry& entry) {
  return (entry.end - entry.begin + kBlockBytes - 1) / kBlockBytes;
}
/// Adds `bytes` to the CRCs of a tensor's blocks, which are numbered from `first` on.
void add_crcs(std::map<std::uint64_t, std::uint32_t>& crcs, std::uint64_t first, std::uint64_t all,
              std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t block = at / kBlockBytes, end = std::min((block + 1) * kBlockBytes, all);
    const std::uint64_t count = std::min<std::uint64_t>(bytes.size(), end - at);
    crcs[first + block] ^= linear_crc(bytes.first(count), end - at - count);
    at += count;
    bytes = bytes.subspan(count);
  }
}

}  // namespace

struct SliceWriter::File {
  std::vector<TensorEntry> tensors;  // sorted by offset
  std::uint64_t header_bytes = 0, data_bytes = 0;

  std::uint64_t data_begin() const { return detail::kLengthBytes + header_bytes; }
  /// The header with these checksums of the blocks of all tensors.
  std::string header(const Metadata& metadata, const Crcs& crcs) const {
    detail::Header header{tensors, metadata};
    std::size_t next = 0;
    for (const TensorEntry& entry : tensors) {
      std::string& text = header.metadata[detail::crc_key(detail::kBlockCrcs, entry.name)];
      for (std::size_t b = block_count(entry); b > 0; --b) text += detail::format_crc(crcs[next++]);
    }
    return format_header(header);
  }
  std::size_t blocks() const {
    std::size_t count = 0;
    for (const TensorEntry& entry : tensors) count += block_count(entry);
    return count;
  }
};

std::string describe(const std::vector<TensorSlice>& slices) {
  nlohmann::json all = nlohmann::json::array();
  for (const TensorSlice& slice : slices) {
    WEFT_CHECK(slice.tensor.defined(), InvalidArgument, kSafetensors, "tensor ", shown(slice.name),
               " is undefined");
    detail::check_name(slice.name);
    all.push_back({slice.name, static_cast<int>(slice.tensor.dtype()), json_of(slice.whole),
                   json_of(slice.offsets), json_of(slice.tensor.shape())});
  }
  return all.dump();
}

SliceWriter::SliceWriter(std::string stem, std::vector<TensorSlice> slices, int rank,
                         const std::vector<std::string>& described, const Metadata& metadata,
                         std::uint64_t most_bytes)
    : stem_(std::move(stem)), metadata_(metadata) {
  std::vector<Described> all = merged(described);
  WEFT_CHECK(all.size() <= detail::kMaxTensors, InvalidArgument, kSafetensors, "more than ",
             detail::kMaxTensors, " tensors");
  std::vector<File> files(1);
  for (const Described& x : all) {
    const auto bytes = static_cast<std::uint64_t>(numel(x.whole)) * size_of(x.dtype);
    if (!files.back().tensors.empty() && files.back().data_bytes + bytes > most_bytes) {
      files.emplace_back();
    }
    files.back().tensors.push_back({x.name, x.dtype, false, x.whole, 0, bytes});
    files.back().data_bytes += bytes;
  }
  std::unordered_map<std::string, Place> places;
  std::size_t blocks = 0;
  for (File& file : files) {
    std::vector<TensorEntry> sorted;
    std::uint64_t at = 0;
    for (const std::size_t bytes : {8, 4, 2, 1}) {  // so all are aligned
      for (TensorEntry& entry : file.tensors) {
        if (size_of(entry.dtype) != bytes) continue;
        entry.begin = at;
        at = entry.end += at;
        places[entry.name] = {files_.size(), sorted.size(), blocks};
        blocks += block_count(entry);
        sorted.push_back(std::move(entry));
      }
    }
    file.tensors = std::move(sorted);
    file.header_bytes = file.header(metadata_, Crcs(file.blocks())).size();
    WEFT_CHECK(file.header_bytes <= detail::kMaxHeaderBytes, InvalidArgument, kSafetensors, stem_,
               ": names and metadata need a header of ", file.header_bytes,
               " bytes, over the format's limit of ", detail::kMaxHeaderBytes);
    files_.push_back(std::make_shared<const File>(std::move(file)));
  }
  for (TensorSlice& slice : slices) {
    auto& boxes = std::ranges::lower_bound(all, slice.name, {}, &Described::name)->boxes;
    const auto box = boxes.find({slice.offsets, slice.tensor.shape()});
    if (box == boxes.end() || box->second != rank) continue;
    boxes.erase(box);  // two equal boxes are written once
    const Place place = places.at(slice.name);
    own_.emplace_back(std::move(slice), place);
  }
}

std::string SliceWriter::ending(std::size_t file) const {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05zu-of-%05zu.safetensors", file + 1, files_.size());
  return text.data();
}

std::string SliceWriter::make_files() const {
  const std::uint64_t mark = kUnfinished + (std::uint64_t{std::random_device()()} << 16);
  std::vector<std::string> paths;
  try {
    for (std::size_t k = 0; k < files_.size(); ++k) {
      // Never reuses an old file: a process of a killed run may still be writing to it.
      const std::string path = paths.emplace_back(stem_ + ending(k));
      ::unlink(path.c_str());
      const OpenedForWriting file(path, O_CREAT | O_EXCL);
      file.allocate(files_[k]->data_begin() + files_[k]->data_bytes);
      file.write(0, std::as_bytes(std::span(&mark, 1)));
      file.flush();
    }
  } catch (const Error&) {
    for (const std::string& path : paths) ::unlink(path.c_str());
    throw;
  }
  return std::to_string(mark);
}

std::string SliceWriter::write(const std::string& made) const {
  const Span span("io", "write_slices");
  std::map<std::uint64_t, std::uint32_t> crcs;  // by block
  for (std::size_t k = 0; k < files_.size(); ++k) {
    const File& file = *files_[k];
    std::optional<OpenedForWriting> out;
    for (const auto& [slice, place] : own_) {
      if (place.file != k) continue;
      if (!out) {
        out.emplace(stem_ + ending(k), 0);
        out->check_is(made, file.data_begin() + file.data_bytes);
      }
      const TensorEntry& entry = file.tensors[place.entry];
      const std::size_t first = place.first_block;
      const Tensor host = raw::contiguous(
          slice.tensor.device().is_cpu() ? slice.tensor : raw::to(slice.tensor, Device()));
      detail::each_range(slice.whole, slice.offsets, host.shape(), size_of(host.dtype()),
                         [&](std::uint64_t at, std::uint64_t of_box, std::uint64_t bytes) {
                           const auto range = bytes_of(host).subspan(of_box, bytes);
                           out->write(file.data_begin() + entry.begin + at, range);
                           add_crcs(crcs, first, entry.end - entry.begin, at, range);
                         });
    }
    if (out) out->flush();
  }
  std::string text;
  for (const auto& [block, crc] : crcs) {
    text += detail::format_crc(static_cast<std::uint32_t>(block)) + detail::format_crc(crc);
  }
  return text;
}

void SliceWriter::finish(const std::string& made, const std::vector<std::string>& written) const {
  std::map<std::uint64_t, std::uint32_t> sums;
  for (const std::string& of_rank : written) {
    const auto number = [&](std::size_t at) {
      return static_cast<std::uint32_t>(std::stoul(of_rank.substr(at, 8), nullptr, 16));
    };
    for (std::size_t at = 0; at < of_rank.size(); at += 16) sums[number(at)] ^= number(at + 8);
  }
  std::uint64_t block = 0;
  for (std::size_t k = 0; k < files_.size(); ++k) {
    const File& file = *files_[k];
    Crcs crcs;
    for (const TensorEntry& entry : file.tensors) {
      const std::uint64_t all = entry.end - entry.begin;
      for (std::size_t b = 0; b < block_count(entry); ++b) {
        const std::uint64_t bytes = std::min(kBlockBytes, all - b * kBlockBytes);
        crcs.push_back(crc_of_zeros(bytes) ^ sums[block++]);
      }
    }
    const std::string header = file.header(metadata_, crcs);
    const std::uint64_t length = header.size();
    const OpenedForWriting out(stem_ + ending(k), 0);
    out.check_is(made, file.data_begin() + file.data_bytes);
    out.write(detail::kLengthBytes, std::as_bytes(std::span(header)));
    out.write(0, std::as_bytes(std::span(&length, 1)));
    out.flush();
  }
}

std::vector<std::string> SliceWriter::files() const {
  std::vector<std::string> result;
  for (std::size_t k = 0; k < files_.size(); ++k) {
    result.push_back(stem_.substr(stem_.rfind('/') + 1) + ending(k));
  }
  return result;
}

std::string SliceWriter::index() const {
  nlohmann::ordered_json index;
  std::map<std::string, std::string> places;
  std::uint64_t bytes = 0;
  const std::vector<std::string> names = files();
  for (std::size_t k = 0; k < files_.size(); ++k) {
    bytes += files_[k]->data_bytes;
    for (const TensorEntry& entry : files_[k]->tensors) places[entry.name] = names[k];
  }
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = places;
  return index.dump(2) + '\n';
}

bool is_of_slice_writer(const std::string& path) try {
  const detail::FileSource source(path, kSafetensors);
  if (source.size() < detail::kLengthBytes) return source.size() == 0;
  std::uint64_t begin = 0;
  source.read(0, std::as_writable_bytes(std::span(&begin, 1)));
  if (begin == 0 || begin >> 48 == kUnfinished >> 48) return true;
  const Metadata metadata = open_safetensors(source, path).header.metadata;
  return metadata.contains(std::string(detail::kHeaderCrc)) &&
         std::ranges::none_of(metadata, [](const auto& item) {
           return item.first.starts_with(detail::kTensorCrc);  // of save_safetensors()
         });
} catch (const Error&) {
  return false;
}

}  // namespace weft::io
