// Reads files that may be of any kind: only regular files, with the size known before the first
// byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace weft::io {

/// A regular file opened for reading. Every failure is an Io error with the file's name and the
/// system's reason; `op` is the format that is being read ("safetensors").
class FileReader {
 public:
  /// Throws Io for a missing file and for directories, pipes and devices, which could block or
  /// never end.
  FileReader(std::string path, const char* op);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// Up to out.size() bytes from `offset` on; fewer only at the end of the file.
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> out) const;
  /// Exactly out.size() bytes. Throws Io when the file has become shorter.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  /// The file's pages, null for an empty file; writing to them does not change the file. A program
  /// that reads a page after the file has become shorter gets SIGBUS.
  std::shared_ptr<std::byte> map() const;

 private:
  std::string path_;
  const char* op_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace weft::io
