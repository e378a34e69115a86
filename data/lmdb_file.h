// The file of an LMDB database, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::data {

/// The main table of a database of LMDB 0.9 (data format 1), mapped into memory. liblmdb trusts the
/// pages of a file, so that a damaged one ends the process. Here every number that leads to another
/// place in the file is checked before it is followed. The format is that of MDB_meta, MDB_page and
/// MDB_node in mdb.c of LMDB 0.9.24.
///
/// Nothing may write to the file meanwhile: an access to a part that was cut off is a SIGBUS. Safe
/// to use from several threads, and in processes that are forked later.
class LmdbFile {
 public:
  /// Throws Io for a file that cannot be opened, is no LMDB database, is cut off, or is damaged in
  /// the pages that describe the others.
  explicit LmdbFile(const std::string& path);

  /// The number of keys, as the file says.
  std::int64_t size() const { return size_; }
  /// The value of a key; nothing if there is no such key. Throws Io for a damaged page on the way
  /// to it.
  std::optional<std::span<const std::byte>> find(std::string_view key) const;
  /// The last key in the sorted order; the table must have one. Throws Io for a damaged page on the
  /// way to it.
  std::string_view last_key() const;

 private:
  struct Meta;
  struct Page;
  struct Node;
  struct Unmap {
    std::uint64_t size;
    void operator()(const std::byte* begin) const;
  };
  using Mapping = std::unique_ptr<const std::byte, Unmap>;

  static Mapping map(const std::string& path);
  template <class T>
  T read(std::uint64_t offset) const;
  Meta meta(std::uint64_t number, std::uint64_t page_bytes) const;
  Page page(std::uint64_t number, unsigned kinds) const;
  Node node(const Page& page, unsigned index) const;
  template <class Choose>
  Page leaf(const Choose& choose) const;
  std::span<const std::byte> value(const Page& page, const Node& node) const;
  void check(bool right, std::uint64_t page, const char* what) const;

  std::string path_;
  Mapping bytes_;
  std::uint64_t page_bytes_ = 0;
  std::uint64_t last_page_ = 0;
  std::uint64_t root_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace weft::data
