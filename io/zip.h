// The zip archives that torch.save writes: records without compression, each with a CRC-32, and a
// directory of them at the end. Compressed and encrypted records are only listed. From the format's
// description, PKWARE's APPNOTE.TXT 6.3.10; numbers in brackets are its sections.
//
//   local header, data | local header, data | ... | directory | end of directory
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::uint32_t crc = 0;
  bool compressed = false, encrypted = false;
};

/// The records of an archive, in the order of its directory. Every rule is checked before a record
/// is read: the directory inside the file and as long as it says, no name twice, no record outside
/// the file or over another one, a local header of the same name before each. What else the local
/// headers say is not used. Throws Io naming the file, Unsupported for archives of several files.
std::vector<ZipRecord> read_zip_directory(const Source& source, const char* op,
                                          const std::string& name);

/// Writes an archive whose data begin at multiples of 64 bytes, as torch.save does.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  void add(const std::string& name, std::span<const std::byte> data);
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
