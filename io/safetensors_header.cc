#include "weft/io/safetensors_header.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>

namespace weft::io::detail {
namespace {

constexpr std::uint64_t kMaxInteger = std::uint64_t{1} << 53;  // what every JSON reader keeps exact
constexpr std::size_t kMaxStringBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxMetadata = 2 * kMaxTensors;
constexpr int kMaxDepth = 3;
constexpr std::string_view kZeroCrc = "00000000";

struct DTypeName {
  std::string_view name;
  std::optional<DType> dtype;
};
// Every dtype of the format; those without a DType are known but not weft's.
constexpr DTypeName kDTypes[] = {
    {"BOOL", DType::boolean}, {"U8", DType::u8},    {"I32", DType::i32},
    {"I64", DType::i64},      {"BF16", DType::bf16}, {"F32", DType::f32},
    {"F64", DType::f64},      {"I8", {}},           {"I16", {}},
    {"U16", {}},              {"U32", {}},          {"U64", {}},
    {"F16", {}},              {"F8_E4M3", {}},      {"F8_E5M2", {}},
    {"F8_E8M0", {}},          {"F4", {}},           {"F6_E2M3", {}},
    {"F6_E3M2", {}},          {"C64", {}},
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

/// Bounds what the JSON parser may have to hold, before it sees the text: a 100 MB header can be one
/// string, one number or a million open brackets.
void check_extent(std::string_view text, const std::string& name) {
  int depth = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '"') {
      const std::size_t begin = ++i;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      WEFT_CHECK(i - begin <= kMaxStringBytes, Io, kSafetensors, name,
                 ": the header has a string over ", kMaxStringBytes, " bytes");
    } else if (c == '{' || c == '[') {
      WEFT_CHECK(++depth <= kMaxDepth, Io, kSafetensors, name, ": the header nests deeper than ",
                 kMaxDepth, " levels, at byte ", i);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c >= '0' && c <= '9') {
      const std::size_t begin = i;
      while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
      WEFT_CHECK(i - begin <= 20, Io, kSafetensors, name, ": the header has a number of ", i - begin,
                 " digits, at byte ", begin);
      continue;
    }
    ++i;
  }
}

/// Receives the parser's events. Where an event does not fit the format it throws, which ends the
/// parse at once.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& name) : name_(name) {}

  Header take() { return std::move(header_); }

  // --- nlohmann's SAX interface ---
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t value) {  // only negative ones come here
    WEFT_THROW(Io, kSafetensors, name_, ": negative number ", value, place());
  }
  bool number_float(double, const std::string& text) {
    WEFT_THROW(Io, kSafetensors, name_, ": ", text, " is no integer below 2^53", place());
  }
  bool number_unsigned(std::uint64_t value) {
    if (state_ != State::shape && state_ != State::offsets) return unexpected("a number");
    WEFT_CHECK(value < kMaxInteger, Io, kSafetensors, name_, ": ", value,
               " is no integer below 2^53", place());
    if (state_ == State::shape) {
      WEFT_CHECK(entry_.shape.size() < kMaxDims, Io, kSafetensors, name_, ": more than ", kMaxDims,
                 " dimensions", place());
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      WEFT_CHECK(offset_count_ < 2, Io, kSafetensors, name_, ": more than two offsets", place());
      (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
    }
    return true;
  }
  bool string(std::string& value) {
    if (state_ == State::metadata) {
      header_.metadata.emplace(std::move(metadata_key_), std::move(value));
      return true;
    }
    if (state_ == State::entry && field_ == Field::dtype) {
      set_dtype(value);
      return true;
    }
    return unexpected("a string");
  }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }

  bool start_object(std::size_t) {
    switch (state_) {
      case State::start: state_ = State::top; return true;
      case State::top:
        state_ = in_metadata_ ? State::metadata : State::entry;
        return true;
      default: return unexpected("an object");
    }
  }
  bool end_object() {
    if (state_ == State::entry) finish_entry();
    state_ = state_ == State::top ? State::done : State::top;
    in_metadata_ = false;
    return true;
  }
  bool start_array(std::size_t) {
    if (state_ != State::entry) return unexpected("an array");
    if (field_ == Field::shape) {
      state_ = State::shape;
    } else if (field_ == Field::offsets) {
      state_ = State::offsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }
  bool end_array() {
    WEFT_CHECK(state_ == State::shape || offset_count_ == 2, Io, kSafetensors, name_,
               ": data_offsets needs two numbers, has ", offset_count_, place());
    state_ = State::entry;
    return true;
  }
  bool key(std::string& text) {
    switch (state_) {
      case State::top: return top_key(text);
      case State::metadata: return take_metadata_key(text);
      default: return field_key(text);
    }
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    // what() is "[json.exception.parse_error.101] parse error at ...: reason; last read: ..."
    std::string_view reason = error.what();
    if (const auto at = reason.find(": "); at != std::string_view::npos) reason.remove_prefix(at + 2);
    WEFT_THROW(Io, kSafetensors, name_, ": the header is not JSON, at byte ", position, ": ",
               shown(reason));
  }

 private:
  enum class State { start, top, metadata, entry, shape, offsets, done };
  enum class Field { none, dtype, shape, offsets };

  bool top_key(std::string& text) {
    WEFT_CHECK(seen_.insert(text).second, Io, kSafetensors, name_, ": key ", shown(text),
               " appears twice");
    in_metadata_ = text == "__metadata__";
    if (in_metadata_) return true;
    WEFT_CHECK(text.size() <= kMaxNameBytes, Io, kSafetensors, name_, ": a tensor's name has ",
               text.size(), " bytes, over ", kMaxNameBytes);
    WEFT_CHECK(header_.tensors.size() < kMaxTensors, Io, kSafetensors, name_, ": more than ",
               kMaxTensors, " tensors");
    entry_ = {};
    entry_.name = std::move(text);
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offset_count_ = 0;
    field_ = Field::none;
    return true;
  }

  bool take_metadata_key(std::string& text) {
    WEFT_CHECK(!header_.metadata.contains(text), Io, kSafetensors, name_, ": metadata key ",
               shown(text), " appears twice");
    WEFT_CHECK(header_.metadata.size() < kMaxMetadata, Io, kSafetensors, name_, ": more than ",
               kMaxMetadata, " metadata entries");
    metadata_key_ = std::move(text);
    return true;
  }

  bool field_key(const std::string& text) {
    bool* seen = nullptr;
    if (text == "dtype") {
      field_ = Field::dtype;
      seen = &has_dtype_;
    } else if (text == "shape") {
      field_ = Field::shape;
      seen = &has_shape_;
    } else if (text == "data_offsets") {
      field_ = Field::offsets;
      seen = &has_offsets_;
    } else {
      WEFT_THROW(Io, kSafetensors, name_, ": unknown field ", shown(text), place());
    }
    WEFT_CHECK(!*seen, Io, kSafetensors, name_, ": field ", shown(text), " appears twice", place());
    *seen = true;
    return true;
  }

  void set_dtype(const std::string& text) {
    const auto* known = std::ranges::find(kDTypes, text, &DTypeName::name);
    WEFT_CHECK(known != std::end(kDTypes), Io, kSafetensors, name_, ": unknown dtype ", shown(text),
               place());
    WEFT_CHECK(known->dtype.has_value(), Unsupported, kSafetensors, name_, ": weft has no dtype ",
               text, place(), "; convert it to F32 or BF16 where the file was written");
    entry_.dtype = *known->dtype;
  }

  void finish_entry() {
    WEFT_CHECK(has_dtype_ && has_shape_ && has_offsets_, Io, kSafetensors, name_, ": no ",
               !has_dtype_   ? "dtype"
               : !has_shape_ ? "shape"
                             : "data_offsets",
               place());
    WEFT_CHECK(entry_.begin <= entry_.end, Io, kSafetensors, name_, ": data_offsets [", entry_.begin,
               ", ", entry_.end, "] run backwards", place());
    std::uint64_t bytes = size_of(entry_.dtype);
    bool overflow = false;
    for (const std::int64_t dim : entry_.shape) {
      overflow |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes);
    }
    // A zero behind an overflow is no excuse: other readers multiply in another order.
    WEFT_CHECK(!overflow, Io, kSafetensors, name_, ": shape ", entry_.shape,
               " is larger than any memory", place());
    WEFT_CHECK(bytes == entry_.end - entry_.begin, Io, kSafetensors, name_, ": ",
               entry_.end - entry_.begin, " bytes of data, ", entry_.dtype, ' ', entry_.shape,
               " needs ", bytes, place());
    header_.tensors.push_back(std::move(entry_));
    entry_ = {};
  }

  bool unexpected(const char* what) const {
    WEFT_THROW(Io, kSafetensors, name_, ": ", what, " where the format has none", place());
  }

  /// Where in the header the parser is, for messages.
  std::string place() const {
    if (in_metadata_) return " in __metadata__";
    if (!entry_.name.empty()) return " for tensor " + shown(entry_.name);
    return "";
  }

  const std::string& name_;
  Header header_;
  std::unordered_set<std::string> seen_;
  State state_ = State::start;
  bool in_metadata_ = false;
  std::string metadata_key_;
  TensorEntry entry_;
  Field field_ = Field::none;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

/// Data must be covered once, from the first byte to the last.
void check_offsets(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes,
                   const std::string& name) {
  std::ranges::stable_sort(tensors, {}, [](const TensorEntry& e) { return std::tie(e.begin, e.end); });
  std::uint64_t at = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : tensors) {
    WEFT_CHECK(entry.end <= data_bytes, Io, kSafetensors, name, ": tensor ", shown(entry.name),
               " ends at byte ", entry.end, " of the data, which has ", data_bytes,
               " (is the file cut off?)");
    WEFT_CHECK(entry.begin >= at, Io, kSafetensors, name, ": tensors ", shown(before->name), " and ",
               shown(entry.name), " overlap: one ends at ", at, ", the other begins at ",
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

/// Position of the header's own checksum; a quote inside a JSON string is escaped, so that this text
/// can only be the key.
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
             kSafetensors, name, ": checksum of the header does not match: the file is damaged, or "
             "was changed by a program that kept weft's checksums");
}

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

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
  check_extent(text, name);
  HeaderReader reader(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  Header header = reader.take();
  check_offsets(header.tensors, data_bytes, name);
  check_header_crc(text, header.metadata, name);
  return header;
}

std::string format_header(const Header& header) {
  std::string text = "{\"__metadata__\":{";
  const auto pair = [&](const std::string& key, const std::string& value) {
    text += json_string(key) + ':' + json_string(value) + ',';
  };
  pair(std::string(kHeaderCrc), std::string(kZeroCrc));
  for (const auto& [key, value] : header.metadata) pair(key, value);
  text.back() = '}';
  for (const TensorEntry& entry : header.tensors) {
    text += ',' + json_string(entry.name) + ":{\"dtype\":\"";
    text += dtype_name(entry.dtype);
    text += "\",\"shape\":" + to_string(entry.shape);
    text += weft::detail::concat(",\"data_offsets\":[", entry.begin, ',', entry.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  const std::size_t at = find_header_crc(text);
  text.replace(at, kZeroCrc.size(), format_crc(header_crc(text, at)));
  return text;
}

}  // namespace weft::io::detail
