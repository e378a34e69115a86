#include "weft/data/lmdb_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "weft/core/base/error.h"

namespace weft::data {
namespace {

static_assert(std::endian::native == std::endian::little, "LMDB writes numbers as the host does");

constexpr const char* kOp = "lmdb";

constexpr std::uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr std::uint64_t kFirstPage = 2;  // after the two meta pages
constexpr std::uint64_t kLeastPageBytes = 512, kMostPageBytes = 32768;
constexpr std::uint64_t kNoRoot = ~std::uint64_t{0};
constexpr int kMostLevels = 32;

// Offsets in a page, and in a node, which is one entry of a page.
constexpr std::uint64_t kPageFlags = 10, kPageLower = 12, kPageUpper = 14, kPagePages = 12;
constexpr std::uint64_t kPageHeader = 16, kPointer = 2;  // the nodes' offsets follow the header
constexpr std::uint64_t kNodeFlags = 4, kNodeKeySize = 6, kNodeHeader = 8;
// Offsets in a meta page, after its header.
constexpr std::uint64_t kMetaVersion = 4, kMetaPageBytes = 24, kMetaTableFlags = 76,
                        kMetaEntries = 104, kMetaRoot = 112, kMetaLastPage = 120,
                        kMetaTransaction = 128, kMetaEnd = 136;

// Kinds of pages. Pages of the last two kinds exist in tables with other flags.
constexpr unsigned kBranch = 0x01, kLeaf = 0x02, kOverflow = 0x04, kMeta = 0x08;
constexpr unsigned kKinds = kBranch | kLeaf | kOverflow | kMeta | 0x20 | 0x40;
// Flag of a node: the value is in pages of its own.
constexpr unsigned kBigData = 0x01;

}  // namespace

struct LmdbFile::Meta {
  std::uint64_t number, page_bytes, table_flags, entries, root, last_page, transaction;
};

struct LmdbFile::Page {
  std::uint64_t number, begin, end;
  unsigned kind;
  std::uint64_t free_end = 0;  // the nodes begin here
  unsigned nodes = 0;
};

struct LmdbFile::Node {
  std::string_view key;
  std::uint64_t child;  // of a branch
  std::uint64_t size;   // of a leaf's value
  std::uint64_t data;   // offset of the value, or of the number of its page
  unsigned flags;
};

void LmdbFile::Unmap::operator()(const std::byte* begin) const {
  ::munmap(const_cast<std::byte*>(begin), size);
}

LmdbFile::Mapping LmdbFile::map(const std::string& path) {
  const auto reason = [] { return std::generic_category().message(errno); };
  // O_NONBLOCK: do not wait for the other end of a pipe.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  WEFT_CHECK(fd >= 0, Io, kOp, path, ": cannot be opened: ", reason());
  struct stat found{};
  void* mapped = MAP_FAILED;
  const bool is_file = ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (is_file && size > 0) mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const std::string why = reason();
  ::close(fd);
  WEFT_CHECK(is_file && size > 0, Io, kOp, path, ": no LMDB database, but ",
             is_file ? "an empty file" : "no regular file");
  WEFT_CHECK(mapped != MAP_FAILED, Io, kOp, path, ": cannot be mapped into memory: ", why);
  return Mapping(static_cast<const std::byte*>(mapped), Unmap{size});
}

LmdbFile::LmdbFile(const std::string& path) : path_(path), bytes_(map(path)) {
  const std::uint64_t size = bytes_.get_deleter().size;
  const Meta first = meta(0, 0), second = meta(1, first.page_bytes);
  check(second.page_bytes == first.page_bytes, 1, "its page size is not that of page 0");
  // Transactions write the two meta pages in turn, so the newer one is valid.
  const Meta& last = second.transaction > first.transaction ? second : first;
  const Meta& other = &last == &first ? second : first;
  check(last.transaction == other.transaction + 1 || last.transaction == 0, last.number,
        "its transaction does not follow that of the other meta page");
  check(last.transaction % 2 == last.number, last.number, "its transaction is the other page's");
  check(last.last_page >= other.last_page, last.number, "fewer pages than a transaction before");

  page_bytes_ = last.page_bytes;
  WEFT_CHECK(last.last_page < size / page_bytes_, Io, kOp, path, ": cut off: ", size,
             " bytes, but its last page of ", page_bytes_, " bytes is page ", last.last_page,
             "; copy the whole file, or compact it where it is whole (mdb_copy -c)");
  last_page_ = last.last_page;
  check(last_page_ >= kFirstPage - 1, last.number, "its last page is a meta page");
  WEFT_CHECK(last.table_flags == 0, Io, kOp, path, ": its table has the flags ", last.table_flags,
             " (MDB_DUPSORT and the like), expected none; or page ", last.number, " is damaged");
  check((last.root == kNoRoot) == (last.entries == 0), last.number,
        "it has entries or a root, expected both or none");
  check(last.entries <= size, last.number, "more entries than the file has bytes");
  root_ = last.root;
  size_ = static_cast<std::int64_t>(last.entries);
}

void LmdbFile::check(bool right, std::uint64_t page, const char* what) const {
  WEFT_CHECK(right, Io, kOp, path_, ": damaged: page ", page, ": ", what);
}

template <class T>
T LmdbFile::read(std::uint64_t offset) const {
  T value;
  std::memcpy(&value, bytes_.get() + offset, sizeof value);
  return value;
}

LmdbFile::Meta LmdbFile::meta(std::uint64_t number, std::uint64_t page_bytes) const {
  const std::uint64_t begin = number * page_bytes, at = begin + kPageHeader;
  const bool fits = at + kMetaEnd <= bytes_.get_deleter().size;
  WEFT_CHECK(fits && (read<std::uint16_t>(begin + kPageFlags) & kKinds) == kMeta &&
                 read<std::uint32_t>(at) == kMagic,
             Io, kOp, path_, ": no LMDB database, or damaged: page ", number, " is no meta page");
  const auto version = read<std::uint32_t>(at + kMetaVersion);
  WEFT_CHECK(version == kVersion, Io, kOp, path_, ": of LMDB's data format ", version,
             ", expected ", kVersion);
  const std::uint64_t of_page = read<std::uint32_t>(at + kMetaPageBytes);
  check(std::has_single_bit(of_page) && of_page >= kLeastPageBytes && of_page <= kMostPageBytes,
        number, "its page size is none");
  return {.number = number,
          .page_bytes = of_page,
          .table_flags = read<std::uint16_t>(at + kMetaTableFlags),
          .entries = read<std::uint64_t>(at + kMetaEntries),
          .root = read<std::uint64_t>(at + kMetaRoot),
          .last_page = read<std::uint64_t>(at + kMetaLastPage),
          .transaction = read<std::uint64_t>(at + kMetaTransaction)};
}

LmdbFile::Page LmdbFile::page(std::uint64_t number, unsigned kinds) const {
  check(number >= kFirstPage && number <= last_page_, number, "there is no such page");
  const std::uint64_t begin = number * page_bytes_, end = begin + page_bytes_;
  check(read<std::uint64_t>(begin) == number, number, "it is numbered otherwise");
  const unsigned kind = read<std::uint16_t>(begin + kPageFlags) & kKinds;
  check((kind & kinds) != 0 && std::has_single_bit(kind), number, "of another kind than expected");
  if (kind == kOverflow) return {number, begin, end, kind};
  const std::uint64_t lower = read<std::uint16_t>(begin + kPageLower),
                      upper = read<std::uint16_t>(begin + kPageUpper);
  check(lower >= kPageHeader + kPointer && lower <= upper && upper <= page_bytes_, number,
        "the bounds of its free space");
  const std::uint64_t nodes = (lower - kPageHeader) / kPointer;
  return {number, begin, end, kind, begin + upper, static_cast<unsigned>(nodes)};
}

LmdbFile::Node LmdbFile::node(const Page& page, unsigned index) const {
  const std::uint64_t begin =
      page.begin + read<std::uint16_t>(page.begin + kPageHeader + index * kPointer);
  check(begin >= page.free_end && begin + kNodeHeader <= page.end, page.number,
        "a node is outside of it");
  const unsigned flags = read<std::uint16_t>(begin + kNodeFlags);
  const std::uint64_t key_size = read<std::uint16_t>(begin + kNodeKeySize);
  const std::uint64_t size = read<std::uint32_t>(begin), data = begin + kNodeHeader + key_size;
  check(data <= page.end, page.number, "a key is not all in it");
  return {.key = {reinterpret_cast<const char*>(bytes_.get()) + begin + kNodeHeader, key_size},
          .child = size | std::uint64_t{flags} << 32,
          .size = size,
          .data = data,
          .flags = flags};
}

// The leaf at the end of the way on which choose(branch) gives the index of the next node.
template <class Choose>
LmdbFile::Page LmdbFile::leaf(const Choose& choose) const {
  Page at = page(root_, kBranch | kLeaf);
  for (int level = 1; at.kind == kBranch; ++level) {
    check(level < kMostLevels, at.number, "too many levels");
    at = page(node(at, choose(at)).child, kBranch | kLeaf);
  }
  return at;
}

std::span<const std::byte> LmdbFile::value(const Page& page, const Node& node) const {
  check((node.flags & ~kBigData) == 0, page.number, "a value is a table");
  if ((node.flags & kBigData) == 0) {
    check(node.data + node.size <= page.end, page.number, "a value is not all in it");
    return {bytes_.get() + node.data, node.size};
  }
  check(node.data + sizeof(std::uint64_t) <= page.end, page.number, "a value is not all in it");
  const Page own = this->page(read<std::uint64_t>(node.data), kOverflow);
  const std::uint64_t pages = read<std::uint32_t>(own.begin + kPagePages);
  check(pages <= last_page_ - own.number + 1 && kPageHeader + node.size <= pages * page_bytes_,
        own.number, "a value is larger than its pages");
  return {bytes_.get() + own.begin + kPageHeader, node.size};
}

std::optional<std::span<const std::byte>> LmdbFile::find(std::string_view key) const {
  if (size_ == 0) return std::nullopt;
  // The index in [from, page.nodes) of the first node whose key is not before `key`; with `after`,
  // whose key is after it.
  const auto bound = [&](const Page& page, unsigned from, bool after) {
    unsigned end = page.nodes;
    while (from < end) {
      const unsigned middle = from + (end - from) / 2;
      const auto order = node(page, middle).key <=> key;
      if (order < 0 || (after && order == 0)) {
        from = middle + 1;
      } else {
        end = middle;
      }
    }
    return from;
  };
  // A branch's node leads to the keys from its own key on; the first node has no key.
  const Page page = leaf([&](const Page& branch) { return bound(branch, 1, true) - 1; });
  const unsigned index = bound(page, 0, false);
  if (index == page.nodes) return std::nullopt;
  const Node found = node(page, index);
  if (found.key != key) return std::nullopt;
  return value(page, found);
}

std::string_view LmdbFile::last_key() const {
  const Page page = leaf([](const Page& branch) { return branch.nodes - 1; });
  return node(page, page.nodes - 1).key;
}

}  // namespace weft::data
