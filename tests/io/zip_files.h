// Handmade zip archives and pickles, good and bad.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::testing {

inline std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += i < 8 ? static_cast<char>(value >> 8 * i & 0xff) : '\0';
  return text;
}

/// A record as a test wants it; all that is not given is right.
struct ZipPart {
  std::string name, data;
  std::uint64_t flags = 0, method = 0;
  std::string local_name = {};      // in the local header
  std::uint64_t crc_change = 0;     // added to the right one
  std::uint64_t size_change = 0;    // likewise, in the directory
  std::uint64_t offset_change = 0;  // likewise
  bool in64 = false;                // sizes and offset in the extra field
  // If `data` is deflated: what it was before, and a change of its size in the directory.
  std::string unpacked = {};
  std::uint64_t unpacked_change = 0;
};

/// Deflated as in an archive, without a header.
inline std::string deflated(std::string_view text) {
  z_stream zlib = {};
  deflateInit2(&zlib, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&zlib, text.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  deflate(&zlib, Z_FINISH);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

struct ZipEnd {
  std::uint64_t entries_change = 0, bytes_change = 0, begin_change = 0;
  bool in64 = false;
  std::uint64_t locator_change = 0;
  std::string comment = {};
};

/// Records, each aligned to 4 bytes only.
inline std::string zip(const std::vector<ZipPart>& parts, const ZipEnd& end = {}) {
  std::string file, directory;
  for (const ZipPart& p : parts) {
    const std::string& unpacked = p.unpacked.empty() ? p.data : p.unpacked;
    const std::uint64_t crc =
        crc32_z(0, reinterpret_cast<const Bytef*>(unpacked.data()), unpacked.size()) + p.crc_change;
    const std::string middle =
        little(45, 2) + little(p.flags, 2) + little(p.method, 2) + little(0, 4) + little(crc, 4);
    const std::string& name = p.local_name.empty() ? p.name : p.local_name;
    const std::uint64_t at = file.size() + p.offset_change, size = p.data.size() + p.size_change;
    const std::uint64_t full = unpacked.size() + p.size_change + p.unpacked_change;
    const std::string wide =
        p.in64 ? little(1, 2) + little(24, 2) + little(full, 8) + little(size, 8) + little(at, 8)
               : std::string();
    const auto narrow = [&](std::uint64_t value) { return little(p.in64 ? ~0ull : value, 4); };
    directory += "PK\x01\x02" + little(45, 2) + middle + narrow(size) + narrow(full) +
                 little(p.name.size(), 2) + little(wide.size(), 2) + little(0, 10) + narrow(at) +
                 p.name + wide;
    const std::uint64_t padding = (4 - (file.size() + 30 + name.size()) % 4) % 4;
    file += "PK\x03\x04" + middle + little(p.data.size(), 4) + little(p.data.size(), 4) +
            little(name.size(), 2) + little(padding, 2) + name + std::string(padding, '\0') +
            p.data;
  }
  const std::uint64_t begin = file.size() + end.begin_change;
  const std::uint64_t bytes = directory.size() + end.bytes_change;
  const std::uint64_t count = parts.size() + end.entries_change;
  file += directory;
  if (end.in64) {
    const std::uint64_t at = file.size() + end.locator_change;
    file += "PK\x06\x06" + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) +
            little(count, 8) + little(count, 8) + little(bytes, 8) + little(begin, 8);
    file += "PK\x06\x07" + little(0, 4) + little(at, 8) + little(1, 4);
    file += "PK\x05\x06" + little(0, 4) + little(0xffff, 2) + little(0xffff, 2) + little(~0ull, 4) +
            little(~0ull, 4);
  } else {
    file += "PK\x05\x06" + little(0, 4) + little(count, 2) + little(count, 2) + little(bytes, 4) +
            little(begin, 4);
  }
  return file + little(end.comment.size(), 2) + end.comment;
}

/// The records of a file of torch.save with this pickle, and storages "0", "1" ...
inline std::vector<ZipPart> torch_parts(const std::string& pickle,
                                        const std::vector<std::string>& storages = {}) {
  std::vector<ZipPart> parts = {{"a/data.pkl", pickle}, {"a/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    parts.push_back({"a/data/" + std::to_string(i), storages[i]});
  parts.push_back({"a/version", "3\n"});
  return parts;
}

inline std::string torch_file(const std::string& pickle,
                              const std::vector<std::string>& storages = {}) {
  return zip(torch_parts(pickle, storages));
}

// --- Instructions of pickles -----------------------------------------------------------------------

inline std::string pickled_text(std::string_view text) {
  return "X" + little(text.size(), 4) + std::string(text);
}

inline std::string pickled_int(std::int64_t value) {
  return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8);
}

inline std::string pickled_global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

inline std::string pickled_storage(const std::string& key, std::int64_t elements,
                                   const std::string& type = "FloatStorage") {
  return "(" + pickled_text("storage") + pickled_global("torch", type) + pickled_text(key) +
         pickled_text("cpu") + pickled_int(elements) + "tQ";
}

inline std::string pickled_ints(const std::vector<std::int64_t>& values) {
  std::string text = "(";
  for (const std::int64_t value : values) text += pickled_int(value);
  return text + "t";
}

inline std::string pickled_tensor(const std::string& storage,
                                  const std::vector<std::int64_t>& shape,
                                  const std::vector<std::int64_t>& strides,
                                  std::int64_t offset = 0) {
  return pickled_global("torch._utils", "_rebuild_tensor_v2") + "(" + storage +
         pickled_int(offset) + pickled_ints(shape) + pickled_ints(strides) + "\x89" +
         pickled_global("collections", "OrderedDict") + ")RtR";
}

/// A whole pickle of one value.
inline std::string pickled(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace weft::testing
