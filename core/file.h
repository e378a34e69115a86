// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace weft {

/// Writes to a temporary file, which replaces `path` on commit(). Until then, also after a crash or
/// on a full disk, the old file stays as it was.
///   AtomicFile file(path);
///   file.write(header);
///   file.write(data);
///   file.commit();
/// The temporary is `path` + ".tmp"; one that a killed process left is overwritten by the next
/// writer. Every failure is an Io error with the file's name and the system's reason.
class AtomicFile {
 public:
  /// Throws Io also when another writer has the same file open, or when `path` is not a regular
  /// file.
  explicit AtomicFile(std::string path);
  /// Removes the temporary unless committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes to disk and renames; nothing may be written after it.
  void commit();

  const std::string& path() const { return path_; }

 private:
  void open_temporary();
  [[noreturn]] void fail(const char* action, const std::string& path, int error) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace weft
