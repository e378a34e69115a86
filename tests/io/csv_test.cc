#include "weft/io/csv.h"

#include <limits>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::TempFolder;
using testing::write_file;

using Doubles = std::vector<double>;
using Lines = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

CsvTable parse(const std::string& text, const CsvOptions& options = {}) {
  return parse_csv(as_bytes(text), options);
}

TEST(Csv, ReadsNamesAndNumbers) {
  const CsvTable table = parse("a,b,c\n1,2.5,-3e2\n4, 5 ,+6\n");
  EXPECT_EQ(table.columns, (Names{"a", "b", "c"}));
  EXPECT_EQ(table.values.dtype(), DType::f64);
  EXPECT_EQ(table.values.shape(), Shape({2, 3}));
  EXPECT_EQ(table.values.to_vector<double>(), (Doubles{1, 2.5, -300, 4, 5, 6}));
  EXPECT_EQ(table.lines, (Lines{2, 3}));
}

TEST(Csv, WithoutAHeaderAndWithOtherSeparators) {
  const CsvTable table = parse("1;2\n3;4", {.header = false, .separator = ';'});
  EXPECT_TRUE(table.columns.empty());
  EXPECT_EQ(table.values.to_vector<double>(), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(table.lines, (Lines{1, 2}));
  EXPECT_EQ(parse("x\ty\n1\t2\n", {.separator = '\t'}).values.shape(), Shape({1, 2}));
  EXPECT_EQ(parse("x y\n1 2\n", {.separator = ' '}).values.shape(), Shape({1, 2}));
  EXPECT_EQ(parse("7", {.header = false}).values.shape(), Shape({1, 1}));
}

TEST(Csv, LinesMayEndInSeveralWays) {
  for (const char* text : {"a,b\r\n1,2\r\n3,4\r\n", "a,b\n1,2\n3,4",
                           "\xef\xbb\xbf\"a\",b\n1,2\n3,4\n", "\n\na,b\n\n1,2\r\n\r\n3,4\n\n"}) {
    const CsvTable table = parse(text);
    EXPECT_EQ(table.columns, (Names{"a", "b"})) << text;
    EXPECT_EQ(table.values.to_vector<double>(), (Doubles{1, 2, 3, 4})) << text;
  }
  EXPECT_EQ(parse("\n\na,b\n\n1,2\r\n\r\n3,4\n\n").lines, (Lines{5, 7}));
}

TEST(Csv, FieldsMayBeInQuotes) {
  const CsvTable table = parse("\"a \"\"1\"\", x\",\"two\nlines\", b \n\"1\",\"2\",\" 3\"\r\n");
  EXPECT_EQ(table.columns, (Names{"a \"1\", x", "two\nlines", "b"}));
  EXPECT_EQ(table.values.to_vector<double>(), (Doubles{1, 2, 3}));
  EXPECT_EQ(table.lines, (Lines{3}));
}

TEST(Csv, NumbersAreExactAndMayBeNoneAtAll) {
  const auto values = parse("0.1,1e308,nan,-inf,5e-324", {.header = false}).values;
  const auto v = values.to_vector<double>();
  EXPECT_EQ(v[0], 0.1);
  EXPECT_EQ(v[1], 1e308);
  EXPECT_TRUE(v[2] != v[2]);
  EXPECT_EQ(v[3], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(v[4], 5e-324);
}

TEST(Csv, AFileMayHaveNoRows) {
  for (const char* text : {"a,b", "a,b\n", "a,b\r\n\r\n"}) {
    EXPECT_EQ(parse(text).values.shape(), Shape({0, 2}));
    EXPECT_TRUE(parse(text).lines.empty());
  }
}

TEST(Csv, ErrorsNameFileLineAndColumn) {
  const CheapScope cheap;
  const auto refused = [](const std::string& text, const std::string& message,
                          const CsvOptions& options = {}) {
    EXPECT_WEFT_ERROR(parse(text, options), Io, "CSV data: " + message);
  };
  refused("", "empty file");
  refused("\r\n\n", "empty file");
  refused("\xef\xbb\xbf", "empty file");
  refused("a,b\n1,2\n\n3,x\n", "line 4, column 2 \"b\": \"x\" is no number");
  refused("a,b\n\"1\n\",2\n", "line 2, column 1 \"a\": \"1?\" is no number");
  refused("a,b\n1,0x10\n", "line 2, column 2 \"b\": \"0x10\" is no number");
  refused("a,b\n1,1 000\n", "line 2, column 2 \"b\": \"1 000\" is no number");
  refused("a,b\n+-1,1\n", "line 2, column 1 \"a\": \"+-1\" is no number");
  refused("a,b\n1,\n", "line 2, column 2 \"b\": an empty field");
  refused("a,b\n1,\"\"\n", "line 2, column 2 \"b\": an empty field");
  refused("a,b\n1,1e999\n", "line 2, column 2 \"b\": \"1e999\" is outside f64");
  refused("a,b\n1,2,3\n", "line 2 has 3 fields, line 1 has 2");
  refused("a,b\n1\n", "line 2 has 1 fields, line 1 has 2");
  refused("a,b\n1,\"2\n3,4\n", "line 2, column 2: a quote that does not end");
  refused("a,\"b\"x\n", "line 1, column 2: text behind the quote's end");
  refused("a,b\n1,2\n", "line 1, column 1: \"a\" is no number (do names of columns come first?",
          {.header = false});
  TempFolder folder;
  write_file(folder.path("x.csv"), "a\nb\n");
  EXPECT_WEFT_ERROR(read_csv(folder.path("x.csv")), Io, "x.csv: line 2, column 1 \"a\": \"b\"");
  EXPECT_WEFT_ERROR(read_csv(folder.path("none.csv")), Io, "none.csv: cannot open: No such file");
  for (const char separator : {'"', '\n', '\r', '.', '-', '1', 'e'}) {
    EXPECT_WEFT_ERROR(parse("a", {.separator = separator}), InvalidArgument,
                      "the separator cannot be");
  }
}

}  // namespace
}  // namespace weft::io
