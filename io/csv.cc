#include "weft/io/csv.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/io/file_reader.h"
#include "weft/io/shown.h"
#include "weft/tensor/creation.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "csv";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

class Reader {
 public:
  Reader(std::string_view text, const CsvOptions& options, const std::string& name)
      : text_(text), options_(options), name_(name) {
    WEFT_CHECK(std::string_view("+-.\"\r\n").find(options.separator) == std::string_view::npos &&
                   !is_alphanumeric(options.separator),
               InvalidArgument, kOp, name_, ": the separator cannot be ",
               detail::shown(std::string_view(&options.separator, 1)));
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  CsvTable read() {
    CsvTable table;
    std::vector<double> values;
    std::vector<std::string> fields;  // reused from line to line
    std::size_t width = 0;
    std::int64_t first_line = 0;
    while (next_row(fields)) {
      if (width == 0) {
        width = fields.size();
        first_line = row_line_;
        if (options_.header) {
          for (const std::string& field : fields) table.columns.emplace_back(trimmed(field));
          continue;
        }
      }
      WEFT_CHECK(fields.size() == width, Io, kOp, name_, ": line ", row_line_, " has ",
                 fields.size(), " fields, line ", first_line, " has ", width);
      for (std::size_t i = 0; i < width; ++i)
        values.push_back(number(fields[i], i, table.columns, table.lines.empty()));
      table.lines.push_back(row_line_);
    }
    WEFT_CHECK(width > 0, Io, kOp, name_, ": empty file");
    table.values = from_vector(values, {std::ssize(table.lines), static_cast<std::int64_t>(width)});
    return table;
  }

 private:
  static bool is_alphanumeric(char c) {
    return ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
  }
  bool at_end() const { return at_ == text_.size(); }

  /// Skips the end of a line, if there is one.
  bool take_line_end() {
    const std::string_view rest = text_.substr(at_);
    const std::size_t bytes = rest.starts_with('\n') ? 1 : rest.starts_with("\r\n") ? 2 : 0;
    at_ += bytes;
    line_ += bytes > 0;
    return bytes > 0;
  }

  /// The fields of the next line that is not blank; false at the end of the file.
  bool next_row(std::vector<std::string>& fields) {
    while (take_line_end()) {
    }
    if (at_end()) return false;
    row_line_ = line_;
    std::size_t count = 0;
    for (bool more = true; more;) {
      if (count == fields.size()) fields.emplace_back();
      take_field(fields[count], count);
      ++count;
      more = !at_end() && text_[at_] == options_.separator;
      if (more) ++at_;
    }
    fields.resize(count);
    take_line_end();
    return true;
  }

  void take_field(std::string& field, std::size_t column) {
    if (!at_end() && text_[at_] == '"') return take_quoted(field, column);
    const std::size_t begin = at_;
    while (!at_end() && text_[at_] != options_.separator && text_[at_] != '\n') ++at_;
    std::string_view text = text_.substr(begin, at_ - begin);
    if (!at_end() && text_[at_] == '\n' && text.ends_with('\r')) {
      text.remove_suffix(1);
      --at_;
    }
    field = text;
  }

  void take_quoted(std::string& field, std::size_t column) {
    field.clear();
    for (++at_;; ++at_) {
      WEFT_CHECK(!at_end(), Io, kOp, name_, ": line ", row_line_, ", column ", column + 1,
                 ": a quote that does not end");
      if (text_[at_] == '"') {
        ++at_;
        if (at_end() || text_[at_] != '"') break;
      }
      line_ += text_[at_] == '\n';
      field += text_[at_];
    }
    WEFT_CHECK(at_end() || text_[at_] == options_.separator || text_[at_] == '\n' ||
                   text_.substr(at_).starts_with("\r\n"),
               Io, kOp, name_, ": line ", line_, ", column ", column + 1,
               ": text behind the quote's end");
  }

  double number(std::string_view field, std::size_t column, const std::vector<std::string>& names,
                bool first_row) const {
    std::string_view text = trimmed(field);
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
    std::string place = weft::detail::concat(name_, ": line ", row_line_, ", column ", column + 1);
    if (!names.empty()) place += ' ' + detail::shown(names[column]);
    WEFT_CHECK(!text.empty(), Io, kOp, place, ": an empty field");
    WEFT_CHECK(error != std::errc::result_out_of_range, Io, kOp, place, ": ", detail::shown(field),
               " is outside f64");
    WEFT_THROW(
        Io, kOp, place, ": ", detail::shown(field), " is no number",
        first_row && names.empty() ? " (do names of columns come first? then set header)" : "");
  }

  std::string_view text_;
  const CsvOptions& options_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;      // the line of at_
  std::int64_t row_line_ = 1;  // where the row begins
};

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  Span span("io", "read_csv");
  const FileReader file(path, kOp);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return Reader(text, options, path).read();
}

CsvTable parse_csv(std::span<const std::byte> bytes, const CsvOptions& options,
                   const std::string& name) {
  return Reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options, name).read();
}

}  // namespace weft::io
