#include "weft/io/safetensors.h"

#include <cmath>
#include <limits>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::read_file;
using testing::safetensors;
using testing::TempFolder;
using testing::write_file;

const Tensor& named(const SafetensorsFile& file, const std::string& name) {
  for (const auto& [key, tensor] : file.tensors) {
    if (key == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

void expect_same(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.dtype(), b.dtype());
  ASSERT_EQ(a.shape(), b.shape());
  const Tensor x = raw::contiguous(a), y = raw::contiguous(b);
  EXPECT_EQ(std::memcmp(x.raw_data(), y.raw_data(), x.numel() * size_of(x.dtype())), 0);
}

NamedTensors every_dtype() {
  return {{"f32", tensor({1, -2.5, 3})},
          {"f64", tensor({1.25, 1e300}, DType::f64)},
          {"bf16", tensor({1, 2, 3}, DType::bf16)},
          {"i64", from_vector(std::vector<std::int64_t>{-1, std::int64_t{1} << 60}, {2})},
          {"i32", from_vector(std::vector<std::int32_t>{-7, 7}, {2, 1})},
          {"u8", from_vector(std::vector<std::uint8_t>{0, 255, 3}, {3})},
          {"bool", tensor({1, 0, 1}, DType::boolean)},
          {"scalar", scalar(4)},
          {"empty", zeros({0, 3})}};
}

TEST(Safetensors, RoundTripsEveryDtype) {
  TempFolder folder;
  const std::string path = folder.path("a.safetensors");
  const Metadata metadata = {{"", "empty key"},
                             {"key \"quoted\"", "line\nbreak, \x01\x1f\\ \xc3\xa9"}};
  save_safetensors(path, every_dtype(), metadata);
  const SafetensorsFile file = load_safetensors(path);
  EXPECT_EQ(file.metadata, metadata);
  EXPECT_EQ(file.tensors.size(), every_dtype().size());
  for (const auto& [name, expected] : every_dtype()) expect_same(named(file, name), expected);
  EXPECT_EQ(folder.files(), 1);
}

TEST(Safetensors, RoundTripsNothing) {
  TempFolder folder;
  save_safetensors(folder.path("a"), {});
  const SafetensorsFile file = load_safetensors(folder.path("a"));
  EXPECT_TRUE(file.tensors.empty());
  EXPECT_TRUE(file.metadata.empty());
}

TEST(Safetensors, SavesStridedTensorsRowMajor) {
  TempFolder folder;
  const Tensor x = raw::reshape(arange(0, 6), {2, 3});
  save_safetensors(folder.path("a"),
                   {{"t", raw::transpose(x, 0, 1)}, {"s", raw::slice(x, 1, 1, 3)}});
  const SafetensorsFile file = load_safetensors(folder.path("a"));
  EXPECT_EQ(named(file, "t").to_vector<double>(), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(named(file, "s").to_vector<double>(), (std::vector<double>{1, 2, 4, 5}));
}

TEST(Safetensors, AlignsDataToTheElement) {
  TempFolder folder;
  save_safetensors(
      folder.path("a"),
      {{"b", zeros({3}, DType::u8)}, {"d", ones({1}, DType::f64)}, {"a", ones({1}, DType::i64)}});
  const std::string bytes = read_file(folder.path("a"));
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + header + 8 + 8 + 3);
  // Tensors with equal element sizes keep their order.
  EXPECT_EQ(load_safetensors(folder.path("a")).tensors[0].first, "d");
}

TEST(Safetensors, MapsToADevice) {
  TempFolder folder;
  set_host_devices(2);
  save_safetensors(folder.path("a"), {{"w", raw::to(tensor({1, 2}), Device("cpu:1"))}});
  EXPECT_EQ(named(load_safetensors(folder.path("a")), "w").device(), Device("cpu:0"));
  {
    const SafetensorsFile file = load_safetensors(folder.path("a"), {.device = "cpu:1"});
    EXPECT_EQ(named(file, "w").device(), Device("cpu:1"));
    EXPECT_EQ(named(file, "w").to_vector<double>(), (std::vector<double>{1, 2}));
  }
  set_host_devices(1);
}

TEST(Safetensors, StripsAndAddsTheModulePrefix) {
  TempFolder folder;
  const std::string path = folder.path("a");
  save_safetensors(path, {{"module.fc.weight", scalar(1)}, {"fc.bias", scalar(2)}});
  const auto names = [&](ModulePrefix prefix) {
    std::vector<std::string> list;
    for (const auto& item : load_safetensors(path, {.module_prefix = prefix}).tensors) {
      list.push_back(item.first);
    }
    return list;
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(names(ModulePrefix::keep), (List{"module.fc.weight", "fc.bias"}));
  EXPECT_EQ(names(ModulePrefix::strip), (List{"fc.weight", "fc.bias"}));
  EXPECT_EQ(names(ModulePrefix::add), (List{"module.module.fc.weight", "module.fc.bias"}));
  save_safetensors(path, {{"module.a", scalar(1)}, {"a", scalar(2)}});
  EXPECT_WEFT_ERROR(names(ModulePrefix::strip), InvalidArgument, "has \"a\" with and without");
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const SafetensorsFile file = load_safetensors("tests/io/goldens/python.safetensors");
  EXPECT_EQ(file.metadata, (Metadata{{"format", "pt"}, {"note", "gr\xc3\xbc\xc3\x9f"}}));
  EXPECT_EQ(file.tensors.size(), 8u);
  EXPECT_EQ(named(file, "encoder.conv1.weight").shape(), Shape({2, 1, 3, 3}));
  for (int i = 0; i < 18; ++i) {
    EXPECT_EQ(named(file, "encoder.conv1.weight").to_vector<double>()[static_cast<std::size_t>(i)],
              i / 8.0 - 1);
  }
  EXPECT_EQ(named(file, "f64").to_vector<double>(), (std::vector<double>{0.1, -1e-300}));
  EXPECT_EQ(named(file, "bf16").to_vector<double>(), (std::vector<double>{1, -0.5, 3.140625}));
  EXPECT_EQ(named(file, "i64").to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{-(std::int64_t{1} << 62), 5}));
  EXPECT_EQ(named(file, "i32").item<std::int32_t>(), -3);
  EXPECT_EQ(named(file, "u8").to_vector<double>(), (std::vector<double>{0, 128, 255}));
  EXPECT_EQ(named(file, "bool").to_vector<double>(), (std::vector<double>{1, 0}));
  EXPECT_EQ(named(file, "empty").shape(), Shape({0, 4}));
}

TEST(Safetensors, ReadsAndWritesHalves) {
  TempFolder folder;
  const std::string path = folder.path("a");
  const NamedTensors tensors = {{"f32", tensor({1, 1.0 / 3, -65504, 65520, 1e-8})},
                                {"f64", tensor({1.0 / 3}, DType::f64)},
                                {"empty", zeros({0, 3})},
                                {"u8", tensor({7}, DType::u8)}};
  save_safetensors(path, tensors, {}, {.f16 = true});
  EXPECT_HAS(read_file(path), R"("f32":{"dtype":"F16","shape":[5],"data_offsets":[8,18]})");
  const SafetensorsFile file = load_safetensors(path);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(named(file, "f32").dtype(), DType::f32);
  EXPECT_EQ(named(file, "f32").to_vector<double>(),
            (std::vector<double>{1, 1365.0 / 4096, -65504, infinity, 0}));
  EXPECT_EQ(named(file, "f64").to_vector<double>(), (std::vector<double>{1.0 / 3}));
  EXPECT_EQ(named(file, "empty").shape(), Shape({0, 3}));
  // Every bit pattern of a half is read, and written again, as it was; but a NaN becomes quiet.
  std::string all =
      safetensors(R"({"w":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})");
  for (unsigned i = 0; i < 65536; ++i) {
    all += static_cast<char>(i & 0xff);
    all += static_cast<char>(i >> 8);
  }
  save_safetensors(path, parse_safetensors(as_bytes(all)).tensors, {}, {.f16 = true});
  const std::string back = read_file(path);
  ASSERT_GT(back.size(), 131072U);
  for (unsigned i = 0; i < 65536; ++i) {
    std::uint16_t got = 0;
    std::memcpy(&got, back.data() + back.size() - 131072 + 2 * i, 2);
    const bool is_nan = (i & 0x7fffu) > 0x7c00u;
    ASSERT_EQ(got, is_nan ? i | 0x200u : i);
  }
}

// Halfway between two neighbours goes to the even one, and anything beyond to the nearer one.
TEST(Safetensors, RoundsToTheNearestHalf) {
  TempFolder folder;
  const auto rounded = [&](const std::vector<float>& values) {
    const auto count = static_cast<std::int64_t>(values.size());
    save_safetensors(folder.path("a"), {{"w", from_vector(values, {count})}}, {}, {.f16 = true});
    return named(load_safetensors(folder.path("a")), "w").to_vector<double>();
  };
  EXPECT_EQ(rounded({1 + 0x1p-11F, 1 + 3 * 0x1p-11F, std::nextafter(1 + 0x1p-11F, 2.F),
                     std::nextafter(65520.F, 0.F), -65520.F}),
            (std::vector<double>{1, 1 + 0x1p-9, 1 + 0x1p-10, 65504,
                                 -std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(rounded({0x1p-25F, 3 * 0x1p-25F, std::nextafter(0x1p-25F, 1.F),
                     std::nextafter(0x1p-14F, 0.F), -0x1p-26F}),
            (std::vector<double>{0, 0x1p-23, 0x1p-24, 0x1p-14, 0}));
}

TEST(Safetensors, RefusesToSaveWhatCannotBeLoaded) {
  TempFolder folder;
  const std::string path = folder.path("a");
  const Tensor x = scalar(1);
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", x}, {"w", x}}), InvalidArgument,
                    "two tensors are called \"w\"");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", Tensor()}}), InvalidArgument,
                    "tensor \"w\" is undefined");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"__metadata__", x}}), InvalidArgument,
                    "cannot be called __metadata__");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{std::string(4097, 'a'), x}}), InvalidArgument,
                    "a name has 4097 bytes");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"\xff", x}}), InvalidArgument, "not UTF-8");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", x}}, {{"k", "\xc3"}}), InvalidArgument,
                    "not UTF-8");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", x}}, {{"weft.crc32.w", "0"}}), InvalidArgument,
                    "kept for checksums");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", x}}, {{std::string(4097, 'k'), ""}}),
                    InvalidArgument, "would refuse it: [safetensors] the header: a string over");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", x}}, {{"k", std::string(1 << 24, 'v')}}),
                    InvalidArgument, "without an end of a string");
  EXPECT_WEFT_ERROR(save_safetensors(path, {{"w", zeros({0, std::int64_t{1} << 53})}}),
                    InvalidArgument, "no integer below 2^53");
  EXPECT_EQ(folder.files(), 0);
  EXPECT_WEFT_ERROR(save_safetensors(folder.path("no/a"), {{"w", x}}), Io, folder.path("no/a"));
}

// --- Malformed files: each rule of the format ----------------------------------------------------

struct Malformed {
  const char* name;
  std::string file;
  const char* message;
  bool unsupported = false;
};

/// A file with one tensor, w, and so many bytes of data.
std::string one(const std::string& fields, std::size_t bytes = 0) {
  return safetensors("{\"w\":{" + fields + "}}", bytes);
}

const std::string kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

// A header of `bytes` bytes: `fill` repeated between `start` and `finish`.
std::string huge(std::size_t bytes, const std::string& start, const std::string& fill,
                 const std::string& finish) {
  std::string block;
  while (block.size() < 100'000) block += fill;
  std::string text = start;
  text.reserve(bytes + finish.size());
  while (text.size() + block.size() + finish.size() <= bytes) text += block;
  return text += finish;
}

std::string many_tensors(std::size_t count) {
  std::string text = "{";
  for (std::size_t i = 0; i < count; ++i) {
    text += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  text.back() = '}';
  return text;
}

std::vector<Malformed> malformed() {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + a +
           R"(]},"b":{"dtype":"U8","shape":[4],"data_offsets":[)" + b + "]}}";
  };
  const auto metadata = [](const std::string& text) { return "{\"__metadata__\":" + text + "}"; };
  std::string over_limit(8, '\0');
  const std::uint64_t too_long = 100'000'001;
  std::memcpy(over_limit.data(), &too_long, 8);
  return {
      {"Empty", "", "0 bytes are too few for a header"},
      {"SevenBytes", "1234567", "7 bytes are too few for a header"},
      {"HeaderOver100MB", over_limit,
       "claims a header of 100000001 bytes, over the format's limit"},
      {"HeaderLargerThanMemory", std::string(8, '\xff'), "over the format's limit of 100000000"},
      {"HeaderPastTheEnd", safetensors("{}").substr(0, 9),
       "claims a header of 2 bytes, the file has 1"},
      {"HeaderOfNothing", safetensors(""), "does not begin with '{'"},
      {"LeadingSpace", safetensors(" {}"), "does not begin with '{'"},
      {"Array", safetensors("[]"), "does not begin with '{'"},
      {"ByteOrderMark", safetensors("\xef\xbb\xbf{}"), "does not begin with '{'"},
      {"NotUtf8", safetensors("{\"\xff\":1}"), "ill-formed UTF-8 byte, at byte 2"},
      {"Utf8Overlong", safetensors("{\"\xc0\xaf\":1}"), "ill-formed UTF-8 byte, at byte"},
      {"Utf8OverlongThree", safetensors("{\"\xe0\x80\xaf\":1}"), "ill-formed UTF-8 byte, at byte"},
      {"Utf8Surrogate", safetensors("{\"\xed\xa0\x80\":1}"), "ill-formed UTF-8 byte, at byte"},
      {"Utf8AboveUnicode", safetensors("{\"\xf4\x90\x80\x80\":1}"),
       "ill-formed UTF-8 byte, at byte"},
      {"Utf8CutOff", safetensors("{\"abcdefghijkl\xc3"), "ill-formed UTF-8 byte, at byte"},
      {"DeepNesting", safetensors("{\"w\":{\"shape\":[[1]]}}"),
       "an array where the format has none for tensor \"w\""},
      {"MillionBrackets", safetensors("{" + std::string(1'000'000, '[')),
       "unexpected '['; expected string literal, at byte 1"},
      {"NotJson", safetensors("{\"w\": nope}"),
       "not JSON for tensor \"w\": syntax error while parsing value - invalid literal, at byte 7"},
      {"CutOffJson", safetensors("{\"w\":{"),
       "unexpected end of input; expected string literal, at byte 6"},
      {"AZeroAfterTheHeader", safetensors(std::string("{} \0 x", 6)), "a byte of 0, at byte 3"},
      {"TwoValues", safetensors("{}{}"), "unexpected '{'; expected end of input, at byte 2"},
      {"Comment", safetensors("{/**/}"), "invalid literal, at byte 1"},
      {"ControlCharacter", safetensors(std::string("{\"a\0b\":1}", 9)),
       "U+0000 (NUL) must be escaped to \\u0000, at byte 3"},
      {"LongNumber", one("\"shape\":[" + std::string(21, '1') + "]"),
       "no integer below 2^53 for tensor \"w\""},
      {"LeadingZero", one("\"shape\":[01]"), "unexpected number literal; expected ']', at byte"},
      {"NoColon", safetensors("{\"w\" 1}"), "unexpected number literal; expected ':', at byte 5"},
      {"NoComma", safetensors("{\"w\":{} \"v\":{}}"), "no dtype for tensor \"w\""},
      {"NoCommaInArray", one("\"shape\":[1 2]"),
       "unexpected number literal; expected ']', at byte 17"},
      {"NoCommaInEntry", one("\"dtype\":\"F32\" 1"),
       "unexpected number literal; expected '}', at byte 20"},
      {"TrailingComma", one("\"dtype\":\"F32\","),
       "unexpected '}'; expected string literal, at byte 20"},
      {"OpenString", safetensors("{\"w"), "missing closing quote"},
      {"UnknownEscape", safetensors("{\"\\x\":1}"), "forbidden character after backslash"},
      {"ShortEscape", safetensors("{\"\\u12g4\":1}"), "must be followed by 4 hex digits"},
      {"HalfSurrogate", safetensors("{\"\\ud800\":1}"),
       "must be followed by U+DC00..U+DFFF, at byte 8"},
      {"LowSurrogate", safetensors("{\"\\udc00\":1}"), "must follow U+D800..U+DBFF"},
      {"TwoHighSurrogates", safetensors("{\"\\ud800\\ud800\":1}"),
       "must be followed by U+DC00..U+DFFF, at byte 13"},
      {"TensorTwice", safetensors("{\"w\":{" + kGood + "},\"w\":{" + kGood + "}}", 8),
       "key \"w\" appears twice"},
      {"TensorTwiceEscaped", safetensors("{\"w\":{" + kGood + "},\"\\u0077\":{" + kGood + "}}", 8),
       "key \"w\" appears twice"},
      {"MetadataTwice", safetensors(R"({"__metadata__":{},"__metadata__":{}})"),
       "key \"__metadata__\" appears twice"},
      {"MetadataKeyTwice", safetensors(metadata(R"({"k":"1","k":"2"})")),
       "metadata key \"k\" appears twice"},
      {"FieldTwice", one(kGood + ",\"dtype\":\"F32\"", 8),
       "field \"dtype\" appears twice for tensor \"w\""},
      {"ShapeTwice", one(R"("shape":[1],"shape":[2])", 8), "field \"shape\" appears twice"},
      {"UnknownField", one(kGood + ",\"stride\":[1]", 8),
       "unknown field \"stride\" for tensor \"w\""},
      {"UnknownDtype", one(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])", 8),
       "unknown dtype \"F33\" for tensor \"w\""},
      {"LowerCaseDtype", one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", 8),
       "unknown dtype \"f32\""},
      {"DtypeWeftLacks", one(R"("dtype":"I16","shape":[2],"data_offsets":[0,4])", 4),
       "weft has no dtype I16 for tensor \"w\"; convert it", true},
      {"NoDtype", one(R"("shape":[2],"data_offsets":[0,8])", 8), "no dtype for tensor \"w\""},
      {"NoShape", one(R"("dtype":"F32","data_offsets":[0,8])", 8), "no shape for tensor"},
      {"NoOffsets", one(R"("dtype":"F32","shape":[2])", 8), "no data_offsets for tensor"},
      {"TensorIsNull", safetensors("{\"w\":null}"),
       "null where the format has none for tensor \"w\""},
      {"TensorIsString", safetensors("{\"w\":\"x\"}"), "a string where the format has none"},
      {"TensorIsNumber", safetensors("{\"w\":1}"), "a number where the format has none"},
      {"TensorIsArray", safetensors("{\"w\":[]}"), "an array where the format has none"},
      {"DtypeIsNumber", one("\"dtype\":1"), "a number where the format has none"},
      {"DtypeIsArray", one("\"dtype\":[]"), "an array where the format has none"},
      {"ShapeIsObject", one("\"shape\":{}"), "an object where the format has none"},
      {"ShapeOfStrings", one("\"shape\":[\"2\"]"), "a string where the format has none"},
      {"ShapeOfTruth", one("\"shape\":[true]"), "a boolean where the format has none"},
      {"MetadataIsArray", safetensors(metadata("[]")), "an array where the format has none"},
      {"MetadataOfNumbers", safetensors(metadata("{\"k\":1}")),
       "a number where the format has none in __metadata__"},
      {"MetadataOfObjects", safetensors(metadata("{\"k\":{}}")),
       "an object where the format has none"},
      {"NegativeDimension", one("\"shape\":[-1]"), "a negative number for tensor \"w\""},
      {"NegativeOffset", one("\"data_offsets\":[-8,0]"), "a negative number for tensor"},
      {"FractionalDimension", one("\"shape\":[2.0]"), "no integer below 2^53"},
      {"ExponentDimension", one("\"shape\":[1e2]"), "no integer below 2^53"},
      {"LargeInteger", one("\"shape\":[9007199254740992]"), "no integer below 2^53"},
      {"IntegerOver64Bits", one("\"shape\":[99999999999999999999]"), "no integer below 2^53"},
      {"NineDimensions", one("\"shape\":[1,1,1,1,1,1,1,1,1]"), "more than 8 dimensions"},
      {"OneOffset", one("\"data_offsets\":[0]"), "data_offsets needs two numbers, has 1"},
      {"ThreeOffsets", one("\"data_offsets\":[0,8,8]"), "more than two offsets"},
      {"OffsetsBackwards", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8),
       "data_offsets [8, 0] run backwards"},
      {"SizeMismatch", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8),
       "8 bytes of data, f32 [3] needs 12 for tensor \"w\""},
      {"DtypeMismatch", one(R"("dtype":"F64","shape":[2],"data_offsets":[0,8])", 8),
       "8 bytes of data, f64 [2] needs 16"},
      {"ShapeOverflow",
       one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       "is larger than any memory"},
      {"ShapeOverflowTimesZero",
       one(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
       "is larger than any memory"},
      {"ShapeOverflowAfterZero",
       one(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"),
       "is larger than any memory"},
      {"ShapeOverflowByDtype",
       one(R"("dtype":"F64","shape":[4503599627370496,1024],"data_offsets":[0,0])"),
       "is larger than any memory"},
      {"DataPastTheEnd", one(kGood, 7), "tensor \"w\" ends at byte 8 of the data, which has 7"},
      {"DataMissing", one(kGood), "which has 0 (is the file cut off?)"},
      {"TrailingData", one(kGood, 9), "1 bytes follow the last tensor"},
      {"TrailingDataAlone", safetensors("{}", 1), "1 bytes follow the last tensor"},
      {"Overlap", safetensors(two("0,4", "3,7"), 7), "tensors \"a\" and \"b\" overlap"},
      {"SameData", safetensors(two("0,4", "0,4"), 4), "tensors \"a\" and \"b\" overlap"},
      {"Hole", safetensors(two("0,4", "5,9"), 9), "a hole of 1 bytes before tensor \"b\", at 4"},
      {"HoleInFront", safetensors(two("8,12", "4,8"), 12),
       "a hole of 4 bytes before tensor \"b\", at 0"},
      {"BoolOfSeven", one(R"("dtype":"BOOL","shape":[1],"data_offsets":[0,1])") + '\7',
       "value 7 in BOOL tensor \"w\""},
      {"LongName", safetensors("{\"" + std::string(4097, 'n') + "\":{" + kGood + "}}", 8),
       "a string over 4096 bytes"},
      {"HeaderCrcMissing", safetensors(metadata(R"({"weft.crc32.w":"00000000"})")),
       "checksum of the header is missing"},
      {"HeaderCrcWrong", safetensors(metadata(R"({"weft.header_crc32":"00000000"})")),
       "checksum of the header does not match"},
      {"HeaderCrcShort", safetensors(metadata(R"({"weft.header_crc32":"00"})")),
       "checksum of the header does not match"},
      {"HeaderCrcSpaced", safetensors(metadata(R"({"weft.header_crc32" : "00000000"})")),
       "checksum of the header does not match"},
  };
}

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRefused) {
  const Malformed& item = GetParam();
  TempFolder folder;
  write_file(folder.path("bad"), item.file);
  const CheapScope cheap;
  if (item.unsupported) {
    EXPECT_WEFT_ERROR(parse_safetensors(as_bytes(item.file)), Unsupported, item.message);
  } else {
    EXPECT_WEFT_ERROR(parse_safetensors(as_bytes(item.file)), Io, item.message);
    EXPECT_WEFT_ERROR(load_safetensors(folder.path("bad")), Io, folder.path("bad"));
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, MalformedSafetensors, ::testing::ValuesIn(malformed()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, EveryRuleHasItsOwnMessage) {
  // By the fixed words of a message; the values vary.
  std::map<std::string, int> count;
  for (const Malformed& item : malformed()) ++count[item.message];
  EXPECT_GE(count.size(), 40u);
}

// Headers just under the format's limit that try to make the reader use much memory.
TEST(Safetensors, HugeHeadersCostLittle) {
  constexpr std::size_t kBytes = 99'000'000;
  constexpr const char* kNoEnd =
      "16777216 bytes of the header without an end of a string or number";
  const auto refuse = [](const std::string& header, const char* message) {
    SCOPED_TRACE(header.substr(0, 30));
    TempFolder folder;
    write_file(folder.path("bad"), safetensors(header));
    const CheapScope cheap;
    EXPECT_WEFT_ERROR(load_safetensors(folder.path("bad")), Io, message);
  };
  refuse(huge(kBytes, "{\"", "a", "\":1}"), kNoEnd);
  refuse(huge(kBytes, "{\"w\":{\"shape\":[", "1,", "1]}}"), "more than 8 dimensions");
  refuse(huge(kBytes, "{", "\"\":0,", "\"\":0}"), "a number where the format has none");
  refuse(many_tensors(1'000'000), "more than 262144 tensors");
  std::string metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 4'000'000; ++i) metadata += "\"" + std::to_string(i) + "\":\"\",";
  metadata.back() = '}';
  refuse(metadata + "}", "more than 524288 metadata entries");
  refuse(huge(kBytes, "{\"__metadata__\":{\"\":\"", "a", "\"}}"), kNoEnd);
  refuse(huge(kBytes, "{\"__metadata__\":{\"\":\"", "\\u00e9", "\"}}"), kNoEnd);
  refuse(huge(kBytes, "{", " ", "?"), kNoEnd);
  refuse(huge(kBytes, "{\"w\":{\"shape\":[", "9", "]}}"), kNoEnd);
}

TEST(Safetensors, ReadsEveryWayToWriteAString) {
  const std::string header =
      R"( "\u0041\u00e9\u20AC\ud83d\ude00\"\\\/\b\f\n\r\t" :{"shape" : [ ] ,"data_offsets":[0,1],"dtype":"U8"})";
  const SafetensorsFile file = parse_safetensors(as_bytes(safetensors("{" + header + "\n}\t ", 1)));
  ASSERT_EQ(file.tensors.size(), 1u);
  EXPECT_EQ(file.tensors[0].first, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"\\/\b\f\n\r\t");
}

TEST(Safetensors, ReadsHeadersOfManyTensors) {
  EXPECT_EQ(parse_safetensors(as_bytes(safetensors(many_tensors(20'000)))).tensors.size(), 20'000u);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  TempFolder folder;
  save_safetensors(folder.path("a"), every_dtype());
  const std::string good = read_file(folder.path("a"));
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_WEFT_ERROR(parse_safetensors(as_bytes(std::string_view(good).substr(0, size))), Io, "");
  }
}

TEST(Safetensors, EveryFlippedBitIsDetected) {
  TempFolder folder;
  save_safetensors(folder.path("a"), {{"first", rand({40})}, {"second", rand({3, 7}, DType::f64)}},
                   {{"generator", "some text"}});
  const std::string good = read_file(folder.path("a"));
  ASSERT_NO_THROW(parse_safetensors(as_bytes(good)));
  int detected = 0, named = 0;
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    try {
      parse_safetensors(as_bytes(bad));
      ADD_FAILURE() << "bit " << bit << " of " << good.size() * 8;
    } catch (const Error& error) {
      ++detected;
      const std::string what = error.what();
      named += what.find("checksum of tensor \"first\"") != std::string::npos ||
               what.find("checksum of tensor \"second\"") != std::string::npos;
    }
  }
  EXPECT_EQ(detected, static_cast<int>(good.size() * 8));
  EXPECT_EQ(named, (40 * 4 + 21 * 8) * 8);  // every bit of the data
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  TempFolder folder;
  EXPECT_WEFT_ERROR(load_safetensors(folder.path("none")), Io, "cannot open: No such file");
  EXPECT_WEFT_ERROR(load_safetensors(folder.root()), Io, "not a regular file");
  EXPECT_WEFT_ERROR(load_safetensors("/dev/zero"), Io, "not a regular file");
}

}  // namespace
}  // namespace weft::io
