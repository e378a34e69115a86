#include "weft/io/cifar.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/io/file_reader.h"
#include "weft/tensor/creation.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "cifar";
constexpr std::int64_t kPixels = 3 * 32 * 32;

struct Format {
  explicit Format(CifarKind k) : kind(k) {}
  std::int64_t label_bytes() const { return kind == CifarKind::Cifar10 ? 1 : 2; }
  std::int64_t record_bytes() const { return label_bytes() + kPixels; }
  int classes() const { return kind == CifarKind::Cifar10 ? 10 : 100; }
  const char* title() const { return kind == CifarKind::Cifar10 ? "CIFAR-10" : "CIFAR-100"; }

  CifarKind kind;
};

constexpr int kCoarseClasses = 20;

/// The number of records in a file of this size.
std::int64_t count_records(const Format& format, std::uint64_t bytes, const std::string& name) {
  const auto record = static_cast<std::uint64_t>(format.record_bytes());
  WEFT_CHECK(bytes > 0, Io, kOp, name, ": empty file");
  WEFT_CHECK(bytes % record == 0, Io, kOp, name, ": ", bytes, " bytes are no whole number of ",
             format.title(), "'s records of ", record, " bytes (", bytes / record, " and ",
             bytes % record, " bytes)");
  return static_cast<std::int64_t>(bytes / record);
}

CifarImages allocate(const Format& format, std::int64_t count) {
  const TensorOptions u8(DType::u8, Device());
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::data_set);
  CifarImages set;
  set.images = empty({count, 3, 32, 32}, u8);
  set.labels = empty({count}, u8);
  if (format.kind == CifarKind::Cifar100) set.coarse_labels = empty({count}, u8);
  return set;
}

/// Splits the records in `bytes`. The first one has the number `first` in the file, and becomes
/// image `at` of the set.
void unpack(const Format& format, std::span<const std::byte> bytes, CifarImages& set,
            std::int64_t at, std::int64_t first, const std::string& name) {
  const auto* record = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / format.record_bytes();
  std::uint8_t* images = set.images.data<std::uint8_t>() + at * kPixels;
  std::uint8_t* labels = set.labels.data<std::uint8_t>() + at;
  std::uint8_t* coarse =
      set.coarse_labels.defined() ? set.coarse_labels.data<std::uint8_t>() + at : nullptr;
  for (std::int64_t i = 0; i < count; ++i, record += format.record_bytes()) {
    const int label = record[format.label_bytes() - 1];
    WEFT_CHECK(label < format.classes(), Io, kOp, name, ": label ", label, " of image ", first + i,
               " is not in 0 to ", format.classes() - 1);
    if (coarse != nullptr) {
      WEFT_CHECK(record[0] < kCoarseClasses, Io, kOp, name, ": coarse label ", int{record[0]},
                 " of image ", first + i, " is not in 0 to ", kCoarseClasses - 1);
      coarse[i] = record[0];
    }
    labels[i] = static_cast<std::uint8_t>(label);
    std::memcpy(images + i * kPixels, record + format.label_bytes(), kPixels);
  }
}

}  // namespace

CifarImages read_cifar(std::span<const std::string> paths, CifarKind kind) {
  constexpr std::int64_t kMostImages = (std::int64_t{1} << 30) / kPixels;
  const Format format(kind);
  std::int64_t count = 0;
  for (const std::string& path : paths) {
    count += count_records(format, FileReader(path, kOp).size(), path);
    WEFT_CHECK(count <= kMostImages, Io, kOp, path, ": makes ", count,
               " images, over the limit of ", kMostImages);
  }
  CifarImages set = allocate(format, count);
  constexpr std::int64_t kAtOnce = 256;
  std::vector<std::byte> buffer(static_cast<std::size_t>(kAtOnce * format.record_bytes()));
  std::int64_t at = 0;
  for (const std::string& path : paths) {
    const FileReader file(path, kOp);
    const std::int64_t records = count_records(format, file.size(), path);
    WEFT_CHECK(at + records <= count, Io, kOp, path, ": grew while it was read");
    for (std::int64_t first = 0; first < records; first += kAtOnce) {
      const std::span<std::byte> part(
          buffer.data(),
          static_cast<std::size_t>(std::min(kAtOnce, records - first) * format.record_bytes()));
      file.read(static_cast<std::uint64_t>(first * format.record_bytes()), part);
      unpack(format, part, set, at + first, first, path);
    }
    at += records;
  }
  WEFT_CHECK(at == count, Io, kOp, "the files became shorter while they were read: ", count,
             " images announced, ", at, " read");
  return set;
}

CifarImages parse_cifar(std::span<const std::byte> bytes, CifarKind kind, const std::string& name) {
  const Format format(kind);
  CifarImages set = allocate(format, count_records(format, bytes.size(), name));
  unpack(format, bytes, set, 0, 0, name);
  return set;
}

}  // namespace weft::io
