// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace weft {

/// Writes to a temporary file, which replaces `path` on commit(). Until then, also after a crash or
/// on a full disk, the old file stays as it was.
///   AtomicFile file(path);
///   file.write(header);
///   file.write(data);
///   file.commit();
/// The temporary is `path` + ".tmp", always a new file: one that a killed process left is removed
/// by the next writer. Every failure is an Io error with the file's name and the system's reason.
class AtomicFile {
 public:
  /// Throws Io also when another writer has the same file open, when `path` is not a regular file,
  /// and when something by the temporary's name is not what a writer of this user left: a link, no
  /// regular file, or another user's.
  explicit AtomicFile(std::string path);
  /// Removes the temporary unless committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes to disk and renames; nothing may be written after it. Throws Io also when the
  /// temporary is no longer there by its name.
  void commit();

  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_; }
  /// Whether `fd` is the temporary, for those who open it by its name to write to it.
  bool is_temporary(int fd) const;

 private:
  bool make_temporary();
  void remove_stale() const;
  void lock(int fd) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes);
void write_file_atomically(const std::string& path, std::string_view text);

/// As std::filesystem::create_directories, but it also flushes to disk the folders that it makes
/// and those in which it makes them: files that are on the disk would be lost with their folder.
[[nodiscard]] std::error_code make_folders(const std::string& path);

/// The folder for files that nobody needs afterwards: TMPDIR, else /tmp. Throws Io where there is
/// no such folder, or it cannot be written; the error names the variable.
std::string temporary_folder();

/// For the end of main(): flushes stdout. Throws Io if any of what was printed is lost, as on a
/// full disk.
void flush_stdout();

}  // namespace weft
