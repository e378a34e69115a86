#include "weft/io/zip.h"

#include <algorithm>
#include <unordered_set>

#include "weft/core/base/error.h"
#include "weft/io/inflate.h"
#include "weft/io/shown.h"

namespace weft::io::detail {
namespace {

constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr std::uint64_t kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kMaxComment = 0xffff;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxNameBytes = 4096;
constexpr std::uint64_t kAlignment = 64;
constexpr std::string_view kEntryStart = "PK\x01\x02", kEndStart = "PK\x05\x06",
                           kEnd64Start = "PK\x06\x06", kLocatorStart = "PK\x06\x07";
// A size or offset that does not fit its field of 32 or 16 bits is all ones there; its value is in
// a field of 64 bits elsewhere [4.4.1.4].
constexpr std::uint64_t kIn64 = 0xffffffff, kCountIn64 = 0xffff;
constexpr std::uint64_t kFields64 = 1;      // the extra field's number [4.5.3]
constexpr std::uint64_t kPadding = 0x4246;  // "FB", PyTorch's

/// The little-endian number in `bytes` bytes of `text` from `at` on.
std::uint64_t number(std::string_view text, std::uint64_t at, int bytes) {
  std::uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[at + i]);
  return value;
}

struct Directory {
  std::uint64_t begin = 0, bytes = 0, entries = 0;
};

struct Entry {
  ZipRecord record;
  std::uint64_t local = 0;  // offset of the local header
};

class DirectoryReader {
 public:
  DirectoryReader(const Source& source, const char* op, const std::string& name)
      : source_(source), op_(op), name_(name) {}

  std::vector<ZipRecord> read() {
    const Directory directory = find();
    const std::string text = read_text(directory.begin, directory.bytes);
    std::vector<Entry> entries;
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < directory.entries; ++i) entries.push_back(entry(text, at));
    check(at == directory.bytes, "the directory is longer than its entries");
    check_names(entries);
    std::vector<ZipRecord> records;
    for (Entry& e : entries) find_data(e, directory.begin);
    check_overlaps(entries);
    for (Entry& e : entries) records.push_back(std::move(e.record));
    return records;
  }

 private:
  template <class... Parts>
  void check(bool holds, const Parts&... what) const {
    WEFT_CHECK(holds, Io, op_, name_, ": ", what..., " (is the file damaged or cut off?)");
  }

  std::string read_text(std::uint64_t begin, std::uint64_t bytes) const {
    std::string text(bytes, '\0');
    source_.read(begin, std::as_writable_bytes(std::span(text)));
    return text;
  }

  /// Where the directory is: its end record [4.3.16] is the last one of the file, before a comment.
  Directory find() const {
    const std::uint64_t size = source_.size();
    check(size >= kEndBytes, size, " bytes are too few for a zip archive");
    const std::uint64_t tail = std::min(size, kEndBytes + kMaxComment);
    const std::string text = read_text(size - tail, tail);
    std::uint64_t end = tail - kEndBytes + 1;
    bool found = false;
    while (!found && end > 0) {
      --end;
      found = text.compare(end, 4, kEndStart) == 0 &&
              number(text, end + 20, 2) == tail - end - kEndBytes;
    }
    check(found, "no zip directory at its end");
    WEFT_CHECK(number(text, end + 4, 2) == 0 && number(text, end + 6, 2) == 0, Unsupported, op_,
               name_, ": a zip archive in several files");
    Directory directory{number(text, end + 16, 4), number(text, end + 12, 4),
                        number(text, end + 10, 2)};
    std::uint64_t last = size - tail + end;
    if (end >= kLocatorBytes && text.compare(end - kLocatorBytes, 4, kLocatorStart) == 0) {
      last = number(text, end - kLocatorBytes + 8, 8);
      check_end64(last, size - tail + end - kLocatorBytes, directory);
    }
    check(directory.begin <= last && directory.bytes <= last - directory.begin,
          "the zip directory of ", directory.bytes, " bytes at ", directory.begin,
          " is not inside the file");
    check(directory.bytes <= kMaxDirectoryBytes, "claims a zip directory of ", directory.bytes,
          " bytes, over ", kMaxDirectoryBytes);
    check(directory.entries <= directory.bytes / kEntryBytes, "claims ", directory.entries,
          " zip entries in ", directory.bytes, " bytes");
    return directory;
  }

  /// The end record with fields of 64 bits [4.3.14].
  void check_end64(std::uint64_t at, std::uint64_t before, Directory& directory) const {
    check(at <= before && before - at >= kEnd64Bytes,
          "the 64-bit end of the zip directory is not inside the file");
    const std::string text = read_text(at, kEnd64Bytes);
    check(text.starts_with(kEnd64Start), "no 64-bit end of the zip directory where it should be");
    const Directory wide{number(text, 48, 8), number(text, 40, 8), number(text, 32, 8)};
    const auto agree = [](std::uint64_t narrow, std::uint64_t value, std::uint64_t in64) {
      return narrow == in64 || narrow == value;
    };
    check(agree(directory.begin, wide.begin, kIn64) && agree(directory.bytes, wide.bytes, kIn64) &&
              agree(directory.entries, wide.entries, kCountIn64),
          "the two ends of the zip directory disagree");
    directory = wide;
  }

  /// The entry at `at` [4.3.12], which becomes the place of the next one.
  Entry entry(std::string_view text, std::uint64_t& at) const {
    check(text.size() - at >= kEntryBytes && text.substr(at, 4) == kEntryStart,
          "no zip entry where the directory has one, at ", at);
    const std::uint64_t flags = number(text, at + 8, 2), method = number(text, at + 10, 2);
    const std::uint64_t name_bytes = number(text, at + 28, 2);
    const std::uint64_t extra_bytes = number(text, at + 30, 2);
    const std::uint64_t comment_bytes = number(text, at + 32, 2);
    const std::uint64_t variable = name_bytes + extra_bytes + comment_bytes;
    check(text.size() - at - kEntryBytes >= variable, "a zip entry ends outside the directory");
    check(name_bytes <= kMaxNameBytes, "a zip record has a name of ", name_bytes, " bytes");
    Entry e;
    e.record.name = text.substr(at + kEntryBytes, name_bytes);
    e.record.crc = static_cast<std::uint32_t>(number(text, at + 16, 4));
    std::uint64_t stored = number(text, at + 20, 4);
    e.record.bytes = number(text, at + 24, 4);
    e.local = number(text, at + 42, 4);
    widen(text.substr(at + kEntryBytes + name_bytes, extra_bytes), e, stored);
    e.record.encrypted = (flags & 1) != 0;
    e.record.compressed = method != 0;
    e.record.deflated = method == 8;
    e.record.size = e.record.bytes;
    check(e.record.encrypted || e.record.compressed || stored == e.record.bytes, "record ",
          shown(e.record.name), " has two sizes");
    e.record.bytes = stored;
    at += kEntryBytes + variable;
    return e;
  }

  /// Takes from the extra field the sizes and the offset that need 64 bits, in this order [4.5.3].
  void widen(std::string_view extra, Entry& e, std::uint64_t& stored) const {
    std::string_view fields;
    for (std::uint64_t at = 0; extra.size() - at >= 4;) {
      const std::uint64_t bytes = number(extra, at + 2, 2);
      check(extra.size() - at - 4 >= bytes, "record ", shown(e.record.name),
            " has an extra field that is too long");
      if (number(extra, at, 2) == kFields64) fields = extra.substr(at + 4, bytes);
      at += 4 + bytes;
    }
    for (std::uint64_t* value : {&e.record.bytes, &stored, &e.local}) {
      if (*value != kIn64) continue;
      check(fields.size() >= 8, "record ", shown(e.record.name), " lacks its size in 64 bits");
      *value = number(fields, 0, 8);
      fields.remove_prefix(8);
    }
  }

  void check_names(const std::vector<Entry>& entries) const {
    std::unordered_set<std::string_view> names;
    for (const Entry& e : entries)
      check(names.insert(e.record.name).second, "two zip records are called ",
            shown(e.record.name));
  }

  /// Finds the data behind the local header [4.3.7].
  void find_data(Entry& e, std::uint64_t directory_begin) const {
    ZipRecord& r = e.record;
    const auto inside = [&](std::uint64_t begin, std::uint64_t bytes) {
      return begin <= directory_begin && bytes <= directory_begin - begin;
    };
    check(inside(e.local, kLocalBytes), "record ", shown(r.name), " begins at ", e.local,
          ", outside the archive's data");
    const std::string header = read_text(e.local, kLocalBytes);
    const std::uint64_t name_bytes = number(header, 26, 2), extra_bytes = number(header, 28, 2);
    check(header.starts_with(kZipStart), "no record ", shown(r.name), " at ", e.local);
    check(inside(e.local + kLocalBytes, name_bytes + extra_bytes) && name_bytes == r.name.size() &&
              read_text(e.local + kLocalBytes, name_bytes) == r.name,
          "the record at ", e.local, " is not ", shown(r.name));
    r.begin = e.local + kLocalBytes + name_bytes + extra_bytes;
    check(inside(r.begin, r.bytes), "record ", shown(r.name), " of ", r.bytes, " bytes at ",
          r.begin, " reaches outside the archive's data");
  }

  void check_overlaps(const std::vector<Entry>& entries) const {
    std::vector<const Entry*> sorted;
    for (const Entry& e : entries) sorted.push_back(&e);
    std::ranges::sort(sorted, {}, [](const Entry* e) { return e->local; });
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      const ZipRecord& before = sorted[i - 1]->record;
      check(before.begin + before.bytes <= sorted[i]->local, "records ", shown(before.name),
            " and ", shown(sorted[i]->record.name), " overlap");
    }
  }

  const Source& source_;
  const char* op_;
  const std::string& name_;
};

void append(std::string& text, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i & 0xff);
}

/// The value for a field of 32 bits: all ones if it does not fit.
std::uint64_t narrow(std::uint64_t value) { return std::min(value, kIn64); }

/// The part that a local header and an entry of the directory share [4.4].
void append_common(std::string& text, const ZipRecord& record) {
  constexpr std::uint64_t kVersion = 45;  // with 64-bit fields
  append(text, kVersion, 2);
  append(text, std::uint64_t{1} << 11, 2);  // names are UTF-8
  append(text, 0, 2);                       // stored
  append(text, 0, 2);
  append(text, 0x21, 2);  // 1 January 1980: the same values make the same file
  append(text, record.crc, 4);
  append(text, narrow(record.bytes), 4);
  append(text, narrow(record.bytes), 4);
  append(text, record.name.size(), 2);
}

}  // namespace

std::vector<ZipRecord> read_zip_directory(const Source& source, const char* op,
                                          const std::string& name) {
  return DirectoryReader(source, op, name).read();
}

ZipRecordStream::ZipRecordStream(const Source& source, const ZipRecord& record, const char* op,
                                 const std::string& name)
    : record_(record),
      op_(op),
      name_(name + ": record " + shown(record.name)),
      stored_(source, record.begin, record.bytes) {
  WEFT_CHECK(!record.encrypted, Unsupported, op_, name_, " is encrypted");
  WEFT_CHECK(!record.compressed || record.deflated, Unsupported, op_, name_,
             " is compressed by another method than deflate");
  if (!record.compressed) return;
  constexpr std::uint64_t kMostRatio = 1032;  // the extreme of the format
  WEFT_CHECK(record.size / kMostRatio <= record.bytes, Io, op_, name_, ": ", record.bytes,
             " compressed bytes claim to hold ", record.size,
             ", and cannot (is the file damaged?)");
  inflated_ = std::make_unique<InflateStream>(stored_, Wrapper::none, op_, name_);
}

std::size_t ZipRecordStream::read(std::span<std::byte> out) {
  const std::size_t got = inflated_ ? inflated_->read(out) : stored_.read(out);
  crc_ = crc_of(out.first(got), crc_);
  done_ += got;
  if (got < out.size()) {
    WEFT_CHECK(done_ == record_.size, Io, op_, name_, " holds ", done_, " bytes, and claims ",
               record_.size);
    WEFT_CHECK(crc_ == record_.crc, Io, op_, name_,
               ": its checksum does not match: the file is damaged");
  }
  return got;
}

void ZipWriter::write(std::string_view bytes) {
  file_.write(bytes);
  at_ += bytes.size();
}

void ZipWriter::add(const std::string& name,
                    std::initializer_list<std::span<const std::byte>> parts) {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;
  for (const auto& part : parts) size += part.size(), crc = crc_of(part, crc);
  Entry e{{.name = name, .bytes = size, .size = size, .crc = crc}, at_};
  std::string extra;
  if (size >= kIn64) {
    append(extra, kFields64, 2);
    append(extra, 16, 2);
    append(extra, size, 8);
    append(extra, size, 8);
  }
  const std::uint64_t unpadded = at_ + kLocalBytes + name.size() + extra.size() + 4;
  const std::uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  append(extra, kPadding, 2);
  append(extra, padding, 2);
  extra.append(padding, '\0');
  std::string header(kZipStart);
  append_common(header, e.record);
  append(header, extra.size(), 2);
  write(header + name + extra);
  for (const auto& part : parts) file_.write(part);
  at_ += size;
  entries_.push_back(std::move(e));
}

void ZipWriter::finish() {
  const std::uint64_t begin = at_;
  for (const Entry& e : entries_) {
    std::string extra;
    if (e.record.bytes >= kIn64) {
      append(extra, e.record.bytes, 8);
      append(extra, e.record.bytes, 8);
    }
    if (e.header >= kIn64) append(extra, e.header, 8);
    std::string text(kEntryStart);
    append(text, 45, 2);  // made by
    append_common(text, e.record);
    append(text, extra.empty() ? 0 : extra.size() + 4, 2);
    append(text, 0, 2);  // comment
    append(text, 0, 2);  // the only file
    append(text, 0, 2);
    append(text, 0, 4);
    append(text, narrow(e.header), 4);
    text += e.record.name;
    if (!extra.empty()) {
      append(text, kFields64, 2);
      append(text, extra.size(), 2);
    }
    write(text + extra);
  }
  const std::uint64_t bytes = at_ - begin, end64 = at_, count = entries_.size();
  std::string text;
  if (begin >= kIn64 || bytes >= kIn64 || count >= kCountIn64) {
    text += kEnd64Start;
    append(text, kEnd64Bytes - 12, 8);
    append(text, 45, 2);
    append(text, 45, 2);
    append(text, 0, 4);
    append(text, 0, 4);
    for (const std::uint64_t value : {count, count, bytes, begin}) append(text, value, 8);
    text += kLocatorStart;
    append(text, 0, 4);
    append(text, end64, 8);
    append(text, 1, 4);
  }
  text += kEndStart;
  append(text, 0, 4);
  append(text, std::min(count, kCountIn64), 2);
  append(text, std::min(count, kCountIn64), 2);
  append(text, narrow(bytes), 4);
  append(text, narrow(begin), 4);
  append(text, 0, 2);
  write(text);
}

}  // namespace weft::io::detail
