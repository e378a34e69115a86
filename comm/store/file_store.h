// A store in a file that all ranks can open.
#pragma once

#include <memory>
#include <string>

#include "weft/comm/store/store.h"

namespace weft::comm {

/// The file is a log of all changes, appended under a lock (flock), with mode 0600. Waits by
/// polling, at most every 20 ms. Only remove() removes the file; processes that have it open can go
/// on using it.
class FileStore final : public Store {
 public:
  /// Makes the file if it does not exist. Throws Io if it can neither be made nor opened, if it
  /// belongs to another user, or if another user may write it. The first call throws Io if the file
  /// is not a store.
  explicit FileStore(std::string path);
  ~FileStore() override;

  /// Null when there is no file.
  static std::unique_ptr<FileStore> open(const std::string& path);
  /// Whether the path still leads to this file.
  bool in_place() const noexcept;
  /// Removes the file from its path, if it is still there. Throws Io.
  void remove();

  std::unique_ptr<Store> duplicate() const override;
  std::string describe() const override;

 private:
  struct Impl;
  explicit FileStore(std::shared_ptr<Impl> impl);
  void do_set(const std::string& key, std::string_view value, const Deadline&) override;
  std::optional<std::string> do_get(const std::string& key, const Deadline&) override;
  std::optional<std::string> do_try_get(const std::string& key, const Deadline&) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, const Deadline&) override;
  std::string do_set_once(const std::string& key, std::string_view value, const Deadline&) override;
  bool do_erase(const std::string& key, const Deadline&) override;

  std::shared_ptr<Impl> impl_;  // shared with duplicates; no call holds it while it waits
};

}  // namespace weft::comm
