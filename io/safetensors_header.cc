#include "weft/io/safetensors_header.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace weft::io::detail {
namespace {

constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxMetadata = 2 * kMaxTensors;
constexpr std::string_view kZeroCrc = "00000000";

struct DTypeName {
  std::string_view name;
  std::optional<DType> dtype;
};
// Every dtype of the format; those without a DType are known but not weft's.
constexpr DTypeName kDTypes[] = {
    {"BOOL", DType::boolean},
    {"U8", DType::u8},
    {"I32", DType::i32},
    {"I64", DType::i64},
    {"BF16", DType::bf16},
    {"F32", DType::f32},
    {"F64", DType::f64},
    {"I8", {}},
    {"I16", {}},
    {"U16", {}},
    {"U32", {}},
    {"U64", {}},
    {"F16", {}},
    {"F8_E4M3", {}},
    {"F8_E5M2", {}},
    {"F8_E8M0", {}},
    {"F4", {}},
    {"F6_E2M3", {}},
    {"F6_E3M2", {}},
    {"C64", {}},
};

std::string_view dtype_name(DType dtype) {
  for (const DTypeName& entry : kDTypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  WEFT_THROW(Internal, kSafetensors, "no name for ", dtype);
}

/// What a message may show of text from the file: a short, printable piece.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return out + (text.size() > kMost ? "...\"" : "\"");
}

/// Offset of the first byte that is not UTF-8 (as Unicode defines it: no overlong forms, no
/// surrogates), or npos.
std::size_t find_non_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t size = text.size();
  std::size_t i = 0;
  while (i < size) {
    if (i + 8 <= size) {  // headers are ASCII nearly throughout
      std::uint64_t word;
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const int extra = lead >= 0xc2 && lead <= 0xdf   ? 1
                      : lead >= 0xe0 && lead <= 0xef ? 2
                      : lead >= 0xf0 && lead <= 0xf4 ? 3
                                                     : 0;
    if (extra == 0 || i + extra >= size) return i;
    // The second byte's range keeps out overlong forms, surrogates and values over U+10FFFF.
    const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (int k = 2; k <= extra; ++k) {
      if (byte(i + k) < 0x80 || byte(i + k) > 0xbf) return i;
    }
    i += extra + 1;
  }
  return std::string_view::npos;
}

/// Parses exactly the JSON a header may consist of, in one pass, holding no more than its results:
/// a general parser can be made to hold several times the 100 MB a header may have.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header parse() {
    object([&](std::string& key) { top_member(key); });
    skip_space();
    if (at_ < text_.size()) not_json("something follows its end");
    return std::move(header_);
  }

 private:
  void top_member(std::string& key) {
    WEFT_CHECK(keys_.insert(key).second, Io, kSafetensors, name_, ": key ", shown(key),
               " appears twice");
    if (key == "__metadata__") {
      context_ = " in __metadata__";
      object([&](std::string& metadata_key) { metadata_member(metadata_key); });
    } else {
      WEFT_CHECK(header_.tensors.size() < kMaxTensors, Io, kSafetensors, name_, ": more than ",
                 kMaxTensors, " tensors");
      context_ = " for tensor " + shown(key);
      header_.tensors.push_back(tensor(std::move(key)));
    }
    context_.clear();
  }

  void metadata_member(std::string& key) {
    WEFT_CHECK(header_.metadata.size() < kMaxMetadata, Io, kSafetensors, name_, ": more than ",
               kMaxMetadata, " metadata entries");
    WEFT_CHECK(!header_.metadata.contains(key), Io, kSafetensors, name_, ": metadata key ",
               shown(key), " appears twice");
    header_.metadata.emplace(std::move(key), string(kMaxValueBytes));
  }

  TensorEntry tensor(std::string key) {
    TensorEntry entry;
    entry.name = std::move(key);
    bool has_dtype = false, has_shape = false, has_offsets = false;
    object([&](std::string& field) {
      const auto once = [&](bool& seen) {
        WEFT_CHECK(!std::exchange(seen, true), Io, kSafetensors, name_, ": field ", shown(field),
                   " appears twice", context_);
      };
      if (field == "dtype") {
        once(has_dtype);
        entry.dtype = dtype(string(kMaxNameBytes));
      } else if (field == "shape") {
        once(has_shape);
        array([&](std::uint64_t size) {
          WEFT_CHECK(entry.shape.size() < kMaxDims, Io, kSafetensors, name_, ": more than ",
                     kMaxDims, " dimensions", context_);
          entry.shape.push_back(static_cast<std::int64_t>(size));
        });
      } else if (field == "data_offsets") {
        once(has_offsets);
        int count = 0;
        array([&](std::uint64_t offset) {
          WEFT_CHECK(count < 2, Io, kSafetensors, name_, ": more than two offsets", context_);
          (count++ == 0 ? entry.begin : entry.end) = offset;
        });
        WEFT_CHECK(count == 2, Io, kSafetensors, name_, ": data_offsets needs two numbers, has ",
                   count, context_);
      } else {
        WEFT_THROW(Io, kSafetensors, name_, ": unknown field ", shown(field), context_);
      }
    });
    WEFT_CHECK(has_dtype && has_shape && has_offsets, Io, kSafetensors, name_, ": no ",
               !has_dtype   ? "dtype"
               : !has_shape ? "shape"
                            : "data_offsets",
               context_);
    check_size(entry);
    return entry;
  }

  DType dtype(const std::string& text) const {
    const auto* known = std::ranges::find(kDTypes, text, &DTypeName::name);
    WEFT_CHECK(known != std::end(kDTypes), Io, kSafetensors, name_, ": unknown dtype ", shown(text),
               context_);
    WEFT_CHECK(known->dtype.has_value(), Unsupported, kSafetensors, name_, ": weft has no dtype ",
               text, context_, "; convert it to F32 or BF16 where the file was written");
    return *known->dtype;
  }

  void check_size(const TensorEntry& entry) const {
    WEFT_CHECK(entry.begin <= entry.end, Io, kSafetensors, name_, ": data_offsets [", entry.begin,
               ", ", entry.end, "] run backwards", context_);
    std::uint64_t bytes = size_of(entry.dtype);
    bool overflow = false;
    for (const std::int64_t dim : entry.shape) {
      overflow |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes);
    }
    // A zero behind an overflow is no excuse: other readers multiply in another order.
    WEFT_CHECK(!overflow, Io, kSafetensors, name_, ": shape ", entry.shape,
               " is larger than any memory", context_);
    WEFT_CHECK(bytes == entry.end - entry.begin, Io, kSafetensors, name_, ": ",
               entry.end - entry.begin, " bytes of data, ", entry.dtype, ' ', entry.shape,
               " needs ", bytes, context_);
  }

  // --- JSON --------------------------------------------------------------------------------------

  /// member(key) is called behind the colon and must parse the value.
  template <class F>
  void object(F member) {
    open('{');
    if (accept('}')) return;
    do {
      skip_space();
      if (at_ >= text_.size() || text_[at_] != '"') not_json("a key is missing");
      std::string key = string(kMaxNameBytes);
      if (!accept(':')) not_json("a ':' is missing");
      member(key);
    } while (accept(','));
    if (!accept('}')) not_json("a ',' or '}' is missing");
  }

  template <class F>
  void array(F element) {
    open('[');
    if (accept(']')) return;
    do {
      element(integer());
    } while (accept(','));
    if (!accept(']')) not_json("a ',' or ']' is missing");
  }

  std::string string(std::size_t most) {
    open('"');
    const std::size_t begin = at_ - 1;
    std::string value;
    for (;;) {
      const std::size_t start = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      WEFT_CHECK(value.size() + (at_ - start) <= most, Io, kSafetensors, name_, ": a string over ",
                 most, " bytes", context_, ", at byte ", begin);
      value.append(text_, start, at_ - start);
      if (at_ >= text_.size()) not_json("a string without end");
      const char c = text_[at_];
      if (c != '"' && c != '\\') not_json("a control character in a string");
      ++at_;
      if (c == '"') return value;
      escape(value);
    }
  }

  void escape(std::string& value) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = at_ < text_.size() ? text_[at_] : '\0';
    if (letter == 'u') {
      ++at_;
      std::uint32_t code = hex4();
      if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
        if (text_.substr(at_, 2) != "\\u") not_json("half a surrogate pair");
        at_ += 2;
        const std::uint32_t low = hex4();
        if (low < 0xdc00 || low > 0xdfff) not_json("half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      } else if (code >= 0xdc00 && code <= 0xdfff) {
        not_json("half a surrogate pair");
      }
      append_utf8(value, code);
      return;
    }
    const std::size_t which = kLetters.find(letter);
    if (which == std::string_view::npos) not_json("an unknown escape");
    value += kMeanings[which];
    ++at_;
  }

  std::uint32_t hex4() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) not_json("\\u needs four digits");
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  static void append_utf8(std::string& value, std::uint32_t code) {
    const auto put = [&](std::uint32_t byte) { value += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xc0 | code >> 6);
    } else {
      if (code < 0x10000) {
        put(0xe0 | code >> 12);
      } else {
        put(0xf0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3f));
      }
      put(0x80 | (code >> 6 & 0x3f));
    }
    put(0x80 | (code & 0x3f));
  }

  /// A whole number below 2^53, which every JSON reader keeps exact.
  std::uint64_t integer() {
    skip_space();
    const std::size_t begin = at_;
    const bool negative = at_ < text_.size() && text_[at_] == '-';
    if (negative) ++at_;
    if (at_ >= text_.size() || !is_digit(text_[at_])) {
      at_ = begin;
      unexpected();
    }
    std::uint64_t value = 0;
    constexpr std::uint64_t kMost = std::uint64_t{1} << 53;
    const std::size_t digits = at_;
    while (at_ < text_.size() && is_digit(text_[at_]) && value < kMost) {
      value = value * 10 + static_cast<std::uint64_t>(text_[at_++] - '0');
    }
    const char next = at_ < text_.size() ? text_[at_] : '\0';
    WEFT_CHECK(!negative && value < kMost && next != '.' && next != 'e' && next != 'E', Io,
               kSafetensors, name_, ": ", negative ? "a negative number" : "no integer below 2^53",
               context_, ", at byte ", begin);
    if (text_[digits] == '0' && at_ - digits > 1) not_json("a number begins with 0");
    return value;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  /// The value that comes must be of the kind that begins with `c`.
  void open(char c) {
    if (!accept(c)) unexpected();
  }

  [[noreturn]] void unexpected() const {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const char* what = nullptr;
    if (c == '{') what = "an object";
    if (c == '[') what = "an array";
    if (c == '"') what = "a string";
    if (c == '-' || is_digit(c)) what = "a number";
    if (text_.substr(at_, 4) == "true" || text_.substr(at_, 5) == "false") what = "a boolean";
    if (text_.substr(at_, 4) == "null") what = "null";
    if (what == nullptr) not_json("a value is missing");
    WEFT_THROW(Io, kSafetensors, name_, ": ", what, " where the format has none", context_,
               ", at byte ", at_);
  }

  [[noreturn]] void not_json(const char* what) const {
    WEFT_THROW(Io, kSafetensors, name_, ": the header is not JSON: ", what, context_, ", at byte ",
               at_);
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::string context_;  // what is being parsed, for messages
  Header header_;
  std::unordered_set<std::string> keys_;
};

/// Data must be covered once, from the first byte to the last.
void check_offsets(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes,
                   const std::string& name) {
  // The name makes the order of empty tensors definite.
  std::ranges::sort(tensors, {},
                    [](const TensorEntry& e) { return std::tie(e.begin, e.end, e.name); });
  std::uint64_t at = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : tensors) {
    WEFT_CHECK(entry.end <= data_bytes, Io, kSafetensors, name, ": tensor ", shown(entry.name),
               " ends at byte ", entry.end, " of the data, which has ", data_bytes,
               " (is the file cut off?)");
    WEFT_CHECK(entry.begin >= at, Io, kSafetensors, name, ": tensors ", shown(before->name),
               " and ", shown(entry.name), " overlap: one ends at ", at, ", the other begins at ",
               entry.begin);
    WEFT_CHECK(entry.begin == at, Io, kSafetensors, name, ": a hole of ", entry.begin - at,
               " bytes before tensor ", shown(entry.name), ", at ", at);
    at = entry.end;
    before = &entry;
  }
  WEFT_CHECK(at == data_bytes, Io, kSafetensors, name, ": ", data_bytes - at,
             " bytes follow the last tensor");
}

std::uint32_t crc(std::string_view text, std::uint32_t start = 0) {
  return static_cast<std::uint32_t>(
      crc32_z(start, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

/// Position of the header's own checksum; a quote inside a JSON string is escaped, so that this
/// text can only be the key.
std::size_t find_header_crc(std::string_view text) {
  const std::string key = weft::detail::concat('"', kHeaderCrc, "\":\"");
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos || at + key.size() + kZeroCrc.size() > text.size()) {
    return std::string_view::npos;
  }
  return at + key.size();
}

/// Of the header as it was before its checksum was filled in.
std::uint32_t header_crc(std::string_view text, std::size_t at) {
  std::uint32_t value = crc(text.substr(0, at));
  value = crc(kZeroCrc, value);
  return crc(text.substr(at + kZeroCrc.size()), value);
}

void check_header_crc(std::string_view text, const Metadata& metadata, const std::string& name) {
  const auto stored = metadata.find(std::string(kHeaderCrc));
  if (stored == metadata.end()) {
    // Checksums of tensors alone: the header's own was damaged away.
    const auto first = metadata.lower_bound(std::string(kTensorCrc));
    WEFT_CHECK(first == metadata.end() || !first->first.starts_with(kTensorCrc), Io, kSafetensors,
               name, ": checksum of the header is missing");
    return;
  }
  const std::size_t at = find_header_crc(text);
  WEFT_CHECK(at != std::string_view::npos && stored->second == format_crc(header_crc(text, at)), Io,
             kSafetensors, name,
             ": checksum of the header does not match: the file is damaged, or "
             "was changed by a program that kept weft's checksums");
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += "01"[c >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out += '"';
}

}  // namespace

std::string format_crc(std::uint32_t crc) {
  std::string text(8, '0');
  for (int i = 7; i >= 0; --i, crc >>= 4) text[i] = "0123456789abcdef"[crc & 15];
  return text;
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& name) {
  WEFT_CHECK(text.starts_with('{'), Io, kSafetensors, name, ": the header does not begin with '{'");
  const std::size_t bad = find_non_utf8(text);
  WEFT_CHECK(bad == std::string_view::npos, Io, kSafetensors, name,
             ": the header is not UTF-8, at byte ", bad);
  Header header = HeaderParser(text, name).parse();
  check_offsets(header.tensors, data_bytes, name);
  check_header_crc(text, header.metadata, name);
  return header;
}

std::string format_header(const Header& header) {
  std::string text = "{\"__metadata__\":{";
  text += json_string(kHeaderCrc) + ':' + json_string(kZeroCrc) + ',';
  for (const auto& [key, value] : header.metadata) {
    text += json_string(key) + ':' + json_string(value) + ',';
  }
  text.back() = '}';
  for (const TensorEntry& entry : header.tensors) {
    text += ',' + json_string(entry.name) + ":{\"dtype\":\"";
    text += dtype_name(entry.dtype);
    text += "\",\"shape\":" + to_string(entry.shape);
    text += weft::detail::concat(",\"data_offsets\":[", entry.begin, ',', entry.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  WEFT_CHECK(find_non_utf8(text) == std::string_view::npos, InvalidArgument, kSafetensors,
             "a name or a metadata text is not UTF-8");
  const std::size_t at = find_header_crc(text);
  text.replace(at, kZeroCrc.size(), format_crc(header_crc(text, at)));
  return text;
}

}  // namespace weft::io::detail
