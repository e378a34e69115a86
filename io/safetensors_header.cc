#include "weft/io/safetensors_header.h"

#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "weft/io/data_bytes.h"
#include "weft/io/shown.h"
#include "weft/io/utf8.h"

namespace weft::io::detail {
namespace {

constexpr std::size_t kMaxMetadata = 2 * kMaxTensors;
constexpr std::string_view kZeroCrc = "00000000";

struct DTypeName {
  std::string_view name;
  std::optional<DType> dtype;
};
constexpr std::string_view kHalf = "F16";  // becomes f32
// Every other dtype of the format; weft does not have those without a DType.
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

constexpr std::size_t kMaxTokenBytes = std::size_t{16} << 20;

/// An iterator over the header's characters that notes how far they were read. Throws if the parser
/// would collect more than kMaxTokenBytes for one string or number.
class Characters {
 public:
  struct Progress {
    const char* at;
    const char* token;  // where the last token ended
    const std::string& name;
  };
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Characters(const char* at, Progress& progress) : at_(at), progress_(&progress) {}
  reference operator*() const { return *at_; }
  Characters& operator++() {
    progress_->at = ++at_;
    WEFT_CHECK(static_cast<std::size_t>(at_ - progress_->token) <= kMaxTokenBytes, Io, kSafetensors,
               progress_->name, ": ", kMaxTokenBytes,
               " bytes of the header without an end of a string or number");
    return *this;
  }
  bool operator==(const Characters& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  Progress* progress_;
};

/// Receives the values from nlohmann's parser, and refuses what must not be in a header.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& name)
      : text_(text), name_(name), progress_{text.data(), text.data(), name} {}

  Header read() {
    nlohmann::json::sax_parse(Characters(text_.data(), progress_),
                              Characters(text_.data() + text_.size(), progress_), this);
    return std::move(header_);
  }

  // What the parser calls; it goes on after true.
  bool null() { refuse("null"); }
  bool boolean(bool) { refuse("a boolean"); }
  bool number_integer(std::int64_t) { return number("a negative number", {}); }
  bool number_unsigned(std::uint64_t value) { return number("no integer below 2^53", value); }
  bool number_float(double, const std::string&) { return number("no integer below 2^53", {}); }
  bool binary(std::vector<std::uint8_t>&) { refuse("binary data"); }

  bool string(std::string& value) {
    if (in_ == In::metadata) {
      header_.metadata.emplace(key_, std::move(value));
    } else if (in_ == In::tensor && key_ == "dtype") {
      tensor().half = value == kHalf;
      tensor().dtype = tensor().half ? DType::f32 : dtype(value);
    } else {
      refuse("a string");
    }
    return token_ends();
  }

  bool start_object(std::size_t) {
    if (in_ == In::file) {
      in_ = In::header;
    } else if (in_ == In::header && key_ == "__metadata__") {
      in_ = In::metadata;
      context_ = " in __metadata__";
    } else if (in_ == In::header) {
      check_below(header_.tensors.size(), kMaxTensors, " tensors");
      in_ = In::tensor;
      header_.tensors.push_back({.name = key_});
      fields_.clear();
    } else {
      refuse("an object");
    }
    return token_ends();
  }

  bool key(std::string& text) {
    WEFT_CHECK(text.size() <= kMaxNameBytes, Io, kSafetensors, name_, ": a string over ",
               kMaxNameBytes, " bytes", context_);
    key_ = std::move(text);
    if (in_ == In::header) {
      WEFT_CHECK(keys_.insert(key_).second, Io, kSafetensors, name_, ": key ", shown(key_),
                 " appears twice");
      context_ = " for tensor " + shown(key_);
    } else if (in_ == In::metadata) {
      check_below(header_.metadata.size(), kMaxMetadata, " metadata entries");
      WEFT_CHECK(!header_.metadata.contains(key_), Io, kSafetensors, name_, ": metadata key ",
                 shown(key_), " appears twice");
    } else {
      WEFT_CHECK(key_ == "dtype" || key_ == "shape" || key_ == "data_offsets", Io, kSafetensors,
                 name_, ": unknown field ", shown(key_), context_);
      WEFT_CHECK(fields_.insert(key_).second, Io, kSafetensors, name_, ": field ", shown(key_),
                 " appears twice", context_);
    }
    return token_ends();
  }

  bool end_object() {
    if (in_ == In::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        WEFT_CHECK(fields_.contains(field), Io, kSafetensors, name_, ": no ", field, context_);
      }
      check_size(tensor());
    }
    in_ = in_ == In::header ? In::file : In::header;
    context_.clear();
    return token_ends();
  }

  bool start_array(std::size_t) {
    if (in_ != In::tensor || key_ == "dtype") refuse("an array");
    in_ = key_ == "shape" ? In::shape : In::offsets;
    offsets_ = 0;
    return token_ends();
  }

  bool end_array() {
    WEFT_CHECK(in_ == In::shape || offsets_ == 2, Io, kSafetensors, name_,
               ": data_offsets needs two numbers, has ", offsets_, context_);
    in_ = In::tensor;
    return token_ends();
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    // "... column 7: syntax error ... - invalid literal; last read: '...'; expected ..."
    const std::string_view what = error.what();
    const std::string_view cause = what.substr(0, what.find("; last read"));
    WEFT_THROW(Io, kSafetensors, name_, ": the header is not JSON", context_,
               cause.substr(std::min(cause.size(), cause.find(": "))), ", at byte ", position - 1);
  }

 private:
  enum class In { file, header, metadata, tensor, shape, offsets };

  TensorEntry& tensor() { return header_.tensors.back(); }

  bool number(const char* otherwise, std::optional<std::uint64_t> value) {
    if (in_ != In::shape && in_ != In::offsets) refuse("a number");
    // Every JSON reader keeps those exact.
    WEFT_CHECK(value && *value < std::uint64_t{1} << 53, Io, kSafetensors, name_, ": ", otherwise,
               context_);
    if (in_ == In::shape) {
      WEFT_CHECK(tensor().shape.size() < kMaxDims, Io, kSafetensors, name_, ": more than ",
                 kMaxDims, " dimensions", context_);
      tensor().shape.push_back(static_cast<std::int64_t>(*value));
    } else {
      WEFT_CHECK(offsets_ < 2, Io, kSafetensors, name_, ": more than two offsets", context_);
      (offsets_++ == 0 ? tensor().begin : tensor().end) = *value;
    }
    return token_ends();
  }

  bool token_ends() {
    progress_.token = progress_.at;
    return true;
  }

  void check_below(std::size_t count, std::size_t most, const char* what) const {
    WEFT_CHECK(count < most, Io, kSafetensors, name_, ": more than ", most, what);
  }

  [[noreturn]] void refuse(const char* what) const {
    WEFT_THROW(Io, kSafetensors, name_, ": ", what, " where the format has none", context_);
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
    const auto bytes = data_bytes(entry.shape, stored_size(entry));
    WEFT_CHECK(bytes, Io, kSafetensors, name_, ": shape ", entry.shape,
               " is larger than any memory", context_);
    WEFT_CHECK(*bytes == entry.end - entry.begin, Io, kSafetensors, name_, ": ",
               entry.end - entry.begin, " bytes of data, ",
               entry.half ? "f16" : to_string(entry.dtype), ' ', entry.shape, " needs ", *bytes,
               context_);
  }

  const std::string_view text_;
  const std::string& name_;
  Characters::Progress progress_;
  In in_ = In::file;
  std::string key_;                         // the last one
  std::unordered_set<std::string> fields_;  // of this tensor
  int offsets_ = 0;
  std::string context_;  // what is being read, for messages
  Header header_;
  std::unordered_set<std::string> keys_;
};

/// Every byte of the data must belong to exactly one tensor.
void check_offsets(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes,
                   const std::string& name) {
  // The name makes the order of empty tensors unique.
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

/// Position of the header's own checksum. A quote inside a JSON string is escaped, so this text can
/// only be the key.
std::size_t find_header_crc(std::string_view text) {
  const std::string key = weft::detail::concat('"', kHeaderCrc, "\":\"");
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos || at + key.size() + kZeroCrc.size() > text.size()) {
    return std::string_view::npos;
  }
  return at + key.size();
}

/// The checksum of the header as it was before the checksum was filled in.
std::uint32_t header_crc(std::string_view text, std::size_t at) {
  std::uint32_t value = crc(text.substr(0, at));
  value = crc(kZeroCrc, value);
  return crc(text.substr(at + kZeroCrc.size()), value);
}

void check_header_crc(std::string_view text, const Metadata& metadata, const std::string& name) {
  const auto stored = metadata.find(std::string(kHeaderCrc));
  if (stored == metadata.end()) {
    // Only checksums of tensors: the header's own one is damaged.
    for (const std::string_view kind : {kTensorCrc, kBlockCrcs}) {
      const auto first = metadata.lower_bound(std::string(kind));
      WEFT_CHECK(first == metadata.end() || !first->first.starts_with(kind), Io, kSafetensors, name,
                 ": checksum of the header is missing");
    }
    return;
  }
  const std::size_t at = find_header_crc(text);
  WEFT_CHECK(at != std::string_view::npos && stored->second == format_crc(header_crc(text, at)), Io,
             kSafetensors, name,
             ": checksum of the header does not match: the file is damaged, or "
             "was changed by a program that kept weft's checksums");
}

/// Throws InvalidArgument.
std::string json_string(std::string_view text) {
  WEFT_CHECK(is_utf8(text), InvalidArgument, kSafetensors,
             "a name or a metadata text is not UTF-8: ", shown(text));
  return nlohmann::json(text).dump();
}

}  // namespace

void check_name(const std::string& name) {
  WEFT_CHECK(name != "__metadata__", InvalidArgument, kSafetensors,
             "a tensor cannot be called __metadata__");
  const std::size_t most = kMaxNameBytes - kBlockCrcs.size();  // room for its checksums' names
  WEFT_CHECK(name.size() <= most, InvalidArgument, kSafetensors, "a name has ", name.size(),
             " bytes, over ", most);
  json_string(name);
}

std::string format_crc(std::uint32_t crc) {
  std::string text(8, '0');
  for (int i = 7; i >= 0; --i, crc >>= 4) text[i] = "0123456789abcdef"[crc & 15];
  return text;
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& name) {
  WEFT_CHECK(text.starts_with('{'), Io, kSafetensors, name, ": the header does not begin with '{'");
  Header header = HeaderReader(text, name).read();
  // The parser has taken it for the end, and read nothing of what follows.
  const std::size_t zero = text.find('\0');
  WEFT_CHECK(zero == std::string_view::npos, Io, kSafetensors, name,
             ": the header is not JSON: a byte of 0, at byte ", zero);
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
    text += entry.half ? kHalf : dtype_name(entry.dtype);
    text += "\",\"shape\":" + to_string(entry.shape);
    text += weft::detail::concat(",\"data_offsets\":[", entry.begin, ',', entry.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  const std::size_t at = find_header_crc(text);
  text.replace(at, kZeroCrc.size(), format_crc(header_crc(text, at)));
  try {  // texts or shapes may be above the reader's limits
    (void)parse_header(text, header.tensors.empty() ? 0 : header.tensors.back().end, "the header");
  } catch (const Error& error) {
    WEFT_THROW(InvalidArgument, kSafetensors, "load_safetensors() would refuse it: ", error.what());
  }
  return text;
}

}  // namespace weft::io::detail
