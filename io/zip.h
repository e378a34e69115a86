// The zip archives that torch.save and numpy.savez write: records, each with a CRC-32, and a
// directory of them at the end. Those of torch.save are never compressed; encrypted records are
// only listed. From the format's description, PKWARE's APPNOTE.TXT 6.3.10; numbers in brackets are
// its sections.
//
//   local header, data | local header, data | ... | directory | end of directory
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/io/source.h"

namespace weft::io::detail {

inline constexpr std::string_view kZipStart = "PK\x03\x04";

struct ZipRecord {
  std::string name;
  std::uint64_t begin = 0;  ///< of the data, in the file
  std::uint64_t bytes = 0;  ///< in the file
  std::uint64_t size = 0;   ///< after inflating
  std::uint32_t crc = 0;
  bool compressed = false, encrypted = false;
  bool deflated = false;  ///< compressed by deflate, the only method that is read
};

/// The records of an archive, in the order of its directory. Every rule is checked before a record
/// is read: the directory inside the file and as long as it says, no name twice, no record outside
/// the file or over another one, a local header of the same name before each. What else the local
/// headers say is not used. Throws Io naming the file, Unsupported for archives of several files.
std::vector<ZipRecord> read_zip_directory(const Source& source, const char* op,
                                          const std::string& name);

/// The data of a record, inflated if they are deflated.
class ZipRecordStream final : public ByteStream {
 public:
  /// All must outlive this object. Throws Unsupported for a record that is encrypted or compressed
  /// by another method, and Io, before any memory is taken, for a size that deflate cannot reach.
  ZipRecordStream(const Source& source, const ZipRecord& record, const char* op,
                  const std::string& name);
  /// Throws Io for data that is cut off or damaged, and where the record ends if its CRC is wrong
  /// or it has another size than the directory says.
  std::size_t read(std::span<std::byte> out) override;

 private:
  const ZipRecord& record_;
  const char* op_;
  const std::string name_;  // of file and record
  SourceStream stored_;
  std::unique_ptr<ByteStream> inflated_;
  std::uint64_t done_ = 0;
  std::uint32_t crc_ = 0;
};

/// Writes an archive whose data begin at multiples of 64 bytes, as torch.save does.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  /// The data are these parts, one after the other.
  void add(const std::string& name, std::initializer_list<std::span<const std::byte>> parts);
  /// Writes the directory; nothing may be added after it.
  void finish();

 private:
  struct Entry {
    ZipRecord record;
    std::uint64_t header = 0;  // offset of the local header
  };
  void write(std::string_view bytes);

  AtomicFile& file_;
  std::uint64_t at_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace weft::io::detail
