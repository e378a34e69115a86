// Files that are written completely or not at all.
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
/// The temporary is `path` + ".tmp", and always a new file: the next writer removes one that a
/// killed process left. Every failure is an Io error with the file's name and the system's reason.
class AtomicFile {
 public:
  /// Also throws Io if another writer has the same file open, if `path` is not a regular file, or
  /// if the temporary's name is taken by something that a writer of this user cannot have left: a
  /// link, no regular file, or another user's file.
  explicit AtomicFile(std::string path);
  /// Removes the temporary unless committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes to disk and renames; nothing may be written after it. Also throws Io if the temporary
  /// no longer has its name.
  void commit();

  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_; }
  /// Whether `fd` is the temporary, for code that opens it by its name to write to it.
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

/// Renames within a folder, and flushes the folder to disk: what is removed afterwards is not lost
/// before the new name is there. Throws Io.
void rename_durably(const std::string& from, const std::string& to);

/// Like std::filesystem::create_directories, but also flushes to disk the folders that it makes and
/// their parents: a file on the disk would be lost together with its folder.
[[nodiscard]] std::error_code make_folders(const std::string& path);

/// The folder for temporary files: TMPDIR, else /tmp. Throws Io if the folder does not exist or
/// cannot be written; the error names the variable.
std::string temporary_folder();

/// For the end of main(): flushes stdout. Throws Io if any output is lost, as on a full disk.
void flush_stdout();

}  // namespace weft
