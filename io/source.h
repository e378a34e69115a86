// Where the bytes of a format come from: a file, a mapped file, or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "weft/core/base/intrusive_ptr.h"
#include "weft/core/runtime/allocator.h"
#include "weft/io/byte_stream.h"
#include "weft/io/file_reader.h"

namespace weft::io::detail {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  /// The range must be within size().
  virtual void read(std::uint64_t offset, std::span<std::byte> out) const = 0;
  /// These bytes as memory of a CPU device that nobody has to copy; null where there is none.
  virtual intrusive_ptr<Storage> view(std::uint64_t, std::uint64_t, Device) const { return {}; }
};

class FileSource : public Source {
 public:
  FileSource(const std::string& path, const char* op) : file_(path, op) {}
  std::uint64_t size() const override { return file_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    file_.read(offset, out);
  }

 protected:
  FileReader file_;
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

/// A file whose views are pages of the file. A page is read when it is first used; what is written
/// to a view stays in memory and never reaches the file.
class MappedSource final : public FileSource {
 public:
  MappedSource(const std::string& path, const char* op);
  intrusive_ptr<Storage> view(std::uint64_t offset, std::uint64_t bytes,
                              Device device) const override;

 private:
  std::shared_ptr<std::byte> memory_;  // null for an empty file
};

/// A part of a source, one byte after the other.
class SourceStream final : public ByteStream {
 public:
  /// The part must be inside the source, which must outlive this object.
  SourceStream(const Source& source, std::uint64_t begin, std::uint64_t bytes)
      : source_(source), at_(begin), end_(begin + bytes) {}
  std::size_t read(std::span<std::byte> out) override;

 private:
  const Source& source_;
  std::uint64_t at_;
  const std::uint64_t end_;
};

std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace weft::io::detail
