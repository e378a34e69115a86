#include "weft/io/npy_header.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/io/data_bytes.h"
#include "weft/io/shown.h"

namespace weft::io::detail {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeaderBytes = 65'535;  // of version 1; only structs need more
constexpr std::uint64_t kAlignment = 64;

struct TypeName {
  std::string_view name;  // without the order of bytes
  DType dtype;
  bool half = false;
};
constexpr TypeName kTypes[] = {
    {"f4", DType::f32}, {"f8", DType::f64}, {"f2", DType::f32, true}, {"i8", DType::i64},
    {"i4", DType::i32}, {"u1", DType::u8},  {"b1", DType::boolean},
};

/// Parses the header's dict, which is written in Python:
///   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class DictReader {
 public:
  DictReader(std::string_view text, const std::string& name, std::uint64_t begin)
      : text_(text), name_(name), begin_(begin) {}

  void read(NpyHeader& header) {
    expect('{');
    while (!take('}')) {
      entry(header);
      if (take(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    check(at_ == text_.size(), "nothing but spaces after the dict");
    for (const Key& key : keys_) {
      WEFT_CHECK(key.found, Io, kNpy, name_, ": the header has no '", key.name, '\'');
    }
  }

 private:
  struct Key {
    std::string_view name;
    bool found = false;
  };

  void entry(NpyHeader& header) {
    const std::string_view name = string();
    auto* const key = std::ranges::find(keys_, name, &Key::name);
    WEFT_CHECK(key != keys_.end(), Io, kNpy, name_, ": unknown key ", shown(name),
               " in the header");
    WEFT_CHECK(!key->found, Io, kNpy, name_, ": key ", shown(name), " is twice in the header");
    key->found = true;
    expect(':');
    if (name == "descr") {
      type(header);
    } else if (name == "fortran_order") {
      header.fortran_order = boolean();
    } else {
      header.shape = shape();
    }
  }

  void type(NpyHeader& header) {
    skip_space();
    WEFT_CHECK(!is_next('[') && !is_next('('), Unsupported, kNpy, name_,
               ": its values are structs, which weft has not; save each field as an array");
    const std::string_view text = string();
    std::string_view rest = text;
    const char order = rest.empty() ? '\0' : rest.front();
    if (std::string_view("<>|=").find(order) != std::string_view::npos) rest.remove_prefix(1);
    WEFT_CHECK(!rest.starts_with('O'), Unsupported, kNpy, name_,
               ": an array of Python objects (dtype ", shown(text),
               "), that is a pickle, which weft does not run; convert it to numbers, as with "
               "numpy.stack, where it was written");
    const auto* known = std::ranges::find(kTypes, rest, &TypeName::name);
    WEFT_CHECK(known != std::end(kTypes), Unsupported, kNpy, name_, ": weft has no dtype ",
               shown(text), "; convert it, as with array.astype('float32'), where it was written");
    WEFT_CHECK(order != '>', Unsupported, kNpy, name_, ": dtype ", shown(text),
               " is big-endian; convert it with array.astype('<", rest, "')");
    header.dtype = known->dtype;
    header.half = known->half;
  }

  bool boolean() {
    if (take("True")) return true;
    check(take("False"), "True or False");
    return false;
  }

  Shape shape() {
    Shape sizes;
    expect('(');
    while (!take(')')) {
      WEFT_CHECK(sizes.size() < kMaxDims, Unsupported, kNpy, name_,
                 ": more dimensions than weft's ", kMaxDims);
      sizes.push_back(size());
      if (take(',')) continue;
      check(sizes.size() > 1, "',' after the only size");  // (3) is no tuple in Python
      expect(')');
      break;
    }
    return sizes;
  }

  std::int64_t size() {
    skip_space();
    std::int64_t value = 0;
    const char* const first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    check(error != std::errc::invalid_argument, "a number");
    WEFT_CHECK(error != std::errc::result_out_of_range && value >= 0, Io, kNpy, name_, ": size ",
               std::string_view(first, end), " in the shape");
    at_ += static_cast<std::size_t>(end - first);
    take('L');  // Python 2 wrote 3L
    return value;
  }

  std::string_view string() {
    skip_space();
    const char quote = is_next('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    check(end != std::string_view::npos, "the end of a string");
    const std::string_view inside = text_.substr(at_, end - at_);
    check(inside.find('\\') == std::string_view::npos, "a string without '\\'");
    at_ = end + 1;
    return inside;
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool is_next(char c) const { return at_ < text_.size() && text_[at_] == c; }

  bool take(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool take(char c) { return take(std::string_view(&c, 1)); }
  void expect(char c) { check(take(c), weft::detail::concat('\'', c, '\'')); }

  template <class Text>
  void check(bool holds, const Text& expected) const {
    WEFT_CHECK(holds, Io, kNpy, name_, ": byte ", begin_ + at_, ", in the header: expected ",
               expected, ", got ",
               at_ < text_.size() ? shown(text_.substr(at_, 20)) : "the end of the header");
  }

  const std::string_view text_;
  const std::string& name_;
  const std::uint64_t begin_;
  std::size_t at_ = 0;
  std::array<Key, 3> keys_{{{"descr"}, {"fortran_order"}, {"shape"}}};
};

/// The next bytes of the stream; Io where it ends before.
std::string take(ByteStream& stream, std::uint64_t bytes, const std::string& name) {
  std::string text(bytes, '\0');
  const std::size_t got = stream.read(std::as_writable_bytes(std::span(text)));
  WEFT_CHECK(got == bytes, Io, kNpy, name, ": cut off inside its header");
  return text;
}

void check_start(const std::string& start, const std::string& name) {
  WEFT_CHECK(!start.starts_with("PK\x03\x04"), Io, kNpy, name,
             ": a zip archive, as .npz files are; load_npz() reads those");
  WEFT_CHECK(!start.starts_with('\x80'), Unsupported, kNpy, name,
             ": begins like a pickle, which weft does not run");
  WEFT_CHECK(start.starts_with(kMagic), Io, kNpy, name,
             ": no .npy file: it does not begin with \\x93NUMPY");
}

}  // namespace

NpyHeader read_npy_header(ByteStream& stream, const std::string& name) {
  // magic | major, minor version | bytes of the dict, 2 or 4 of them | dict
  std::string start(kMagic.size() + 2, '\0');
  start.resize(stream.read(std::as_writable_bytes(std::span(start))));
  WEFT_CHECK(!start.empty(), Io, kNpy, name, ": empty file");
  check_start(start, name);
  WEFT_CHECK(start.size() == kMagic.size() + 2, Io, kNpy, name, ": cut off inside its header");
  const int version = start[kMagic.size()];
  WEFT_CHECK(version >= 1 && version <= 3, Unsupported, kNpy, name, ": version ",
             int{static_cast<unsigned char>(version)}, " of the format; weft reads 1 to 3");
  const std::string length = take(stream, version == 1 ? 2 : 4, name);
  std::uint64_t bytes = 0;
  for (std::size_t i = length.size(); i-- > 0;)
    bytes = bytes << 8 | static_cast<unsigned char>(length[i]);
  WEFT_CHECK(bytes <= kMaxHeaderBytes, Io, kNpy, name, ": claims a header of ", bytes,
             " bytes, over ", kMaxHeaderBytes);
  const std::string text = take(stream, bytes, name);
  NpyHeader header;
  header.header_bytes = start.size() + length.size() + bytes;
  DictReader(text, name, start.size() + length.size()).read(header);
  const auto data = data_bytes(header.shape, header.half ? 2 : size_of(header.dtype));
  WEFT_CHECK(data, Io, kNpy, name, ": shape ", header.shape, " is larger than any memory");
  header.data_bytes = *data;
  return header;
}

std::string format_npy_header(DType dtype, const Shape& shape) {
  const auto* const type =
      std::ranges::find_if(kTypes, [&](const TypeName& t) { return t.dtype == dtype && !t.half; });
  WEFT_CHECK(type != std::end(kTypes), Internal, kNpy, "no name for ", dtype);
  std::string dict = weft::detail::concat("{'descr': '", size_of(dtype) == 1 ? '|' : '<',
                                          type->name, "', 'fortran_order': False, 'shape': (");
  for (const std::int64_t size : shape) dict += weft::detail::concat(size, ", ");
  if (shape.size() > 1) dict.resize(dict.size() - 2);
  if (shape.size() == 1) dict.pop_back();
  dict += "), }";
  std::string header(kMagic);
  header += std::string("\1\0", 2);
  const std::uint64_t unpadded = header.size() + 2 + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict += '\n';
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace weft::io::detail
