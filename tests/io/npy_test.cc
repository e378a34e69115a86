#include "weft/io/npy.h"

#include <limits>

#include "weft/core/runtime/allocator.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/zip_files.h"

namespace weft::io {
namespace {

using testing::as_bytes;
using testing::CheapScope;
using testing::deflated;
using testing::little;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;
using testing::zip;
using testing::ZipPart;

using Doubles = std::vector<double>;

/// A file with this dict.
std::string npy(const std::string& dict, const std::string& values, int version = 1) {
  return "\x93NUMPY" + little(version, 1) + little(0, 1) +
         little(dict.size(), version == 1 ? 2 : 4) + dict + values;
}

std::string dict(const std::string& type, const std::string& shape,
                 const std::string& fortran_order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape +
         ", }";
}

Tensor parse(const std::string& file) { return parse_npy(as_bytes(file)); }
Tensor parse(const std::string& dict, const std::string& values) {
  return parse(npy(dict, values));
}

std::string f32_bytes(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

const std::string kSix = f32_bytes({0, 1, 2, 3, 4, 5});

// --- What numpy wrote: goldens/write_npys.py -------------------------------------------------------

Tensor golden(const std::string& name) { return load_npy("tests/io/goldens/" + name + ".npy"); }

TEST(Npy, ReadsEveryDtype) {
  const Tensor f32 = golden("f32"), f64 = golden("f64"), f16 = golden("f16"), i64 = golden("i64");
  const Tensor i32 = golden("i32"), u8 = golden("u8"), boolean = golden("bool");
  EXPECT_EQ(f32.dtype(), DType::f32);
  EXPECT_EQ(f32.shape(), Shape({2, 3}));
  EXPECT_EQ(f32.to_vector<double>(), (Doubles{0, 1, 2, 3, 4, -5.5}));
  EXPECT_EQ(f64.dtype(), DType::f64);
  EXPECT_EQ(f64.to_vector<double>(), (Doubles{0.1, -1e-300}));
  EXPECT_EQ(f16.dtype(), DType::f32);
  EXPECT_EQ(f16.to_vector<double>(),
            (Doubles{1, -0.5, 65504, 0x1p-24, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(i64.dtype(), DType::i64);
  EXPECT_EQ(i64.to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{-(std::int64_t{1} << 62), 5}));
  EXPECT_EQ(i32.dtype(), DType::i32);
  EXPECT_EQ(i32.to_vector<double>(), (Doubles{-7, 8}));
  EXPECT_EQ(u8.dtype(), DType::u8);
  EXPECT_EQ(u8.to_vector<double>(), (Doubles{0, 128, 255}));
  EXPECT_EQ(boolean.dtype(), DType::boolean);
  EXPECT_EQ(boolean.to_vector<double>(), (Doubles{1, 0}));
}

TEST(Npy, ReadsEveryShape) {
  EXPECT_EQ(golden("scalar").shape(), Shape());
  EXPECT_EQ(golden("scalar").item<double>(), 7);
  EXPECT_EQ(golden("empty").shape(), Shape({0, 4}));
  EXPECT_EQ(golden("version2").shape(), Shape({3}));
  EXPECT_EQ(golden("version3").to_vector<double>(), (Doubles{1, 2, 3}));
  const Tensor fortran = golden("fortran");
  EXPECT_EQ(fortran.shape(), Shape({2, 3, 4}));
  EXPECT_EQ(fortran.strides(), Strides({1, 2, 6}));
  Doubles ramp(24);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<double>(i);
  EXPECT_EQ(fortran.to_vector<double>(), ramp);
}

TEST(Npy, TakesDictsThatOthersWrite) {
  for (const std::string text : {"{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
                                 "{\"shape\": (2L, 3L,), \"fortran_order\": False,\n"
                                 " \"descr\": \"=f4\"}  \n",
                                 " { 'shape' : ( 2 , 3 ) , 'descr' : '<f4' , "
                                 "'fortran_order' : False , } "}) {
    EXPECT_EQ(parse(text, kSix).shape(), Shape({2, 3})) << text;
  }
}

TEST(Npy, HalvesInFortransOrder) {
  const Tensor x = parse(dict("<f2", "(2, 2)", "True"), little(0x3c00, 2) + little(0x4000, 2) +
                                                            little(0x4200, 2) + little(0x4400, 2));
  EXPECT_EQ(x.dtype(), DType::f32);
  EXPECT_EQ(x.to_vector<double>(), (Doubles{1, 3, 2, 4}));
}

TEST(Npy, RefusesWhatIsNoNpyFile) {
  const CheapScope cheap;
  const std::string good = npy(dict("<f4", "(2, 3)"), kSix);
  EXPECT_WEFT_ERROR(parse(""), Io, "npy data: empty file");
  EXPECT_WEFT_ERROR(parse("hello, world"), Io, "no .npy file: it does not begin with \\x93NUMPY");
  EXPECT_WEFT_ERROR(parse(zip({})), Io, "no .npy file");
  EXPECT_WEFT_ERROR(parse(zip({{"x.npy", good}})), Io, "a zip archive, as .npz files are");
  EXPECT_WEFT_ERROR(parse("\x80\x04]."), Unsupported, "begins like a pickle");
  for (std::size_t size = 1; size < good.size() - kSix.size(); ++size) {
    EXPECT_WEFT_ERROR(parse(good.substr(0, size)), Io, size < 6 ? "no .npy file" : "cut off");
  }
  EXPECT_WEFT_ERROR(parse(npy(dict("<f4", "(2, 3)"), kSix, 4)), Unsupported, "version 4");
  EXPECT_WEFT_ERROR(parse("\x93NUMPY" + little(2, 2) + little(0xffffffff, 4)), Io,
                    "claims a header of 4294967295 bytes, over 65535");
  EXPECT_WEFT_ERROR(load_npy("/"), Io, "/: not a regular file");
  EXPECT_WEFT_ERROR(load_npy("nowhere.npy"), Io, "nowhere.npy: cannot open: No such file");
}

TEST(Npy, RefusesWrongSizes) {
  const CheapScope cheap;
  const auto six = [](const std::string& shape) { return parse(dict("<f4", shape), kSix); };
  EXPECT_WEFT_ERROR(six("(2, 2)"), Io, "24 bytes of values behind the header, f32 [2,2] needs 16");
  EXPECT_WEFT_ERROR(six("(2, 4)"), Io, "f32 [2,4] needs 32 (is it cut off");
  EXPECT_WEFT_ERROR(six("(4611686018427387904,)"), Io, "[4611686018427387904] is larger than any");
  EXPECT_WEFT_ERROR(six("(0, 4611686018427387904)"), Io, "is larger than any memory");
  EXPECT_WEFT_ERROR(six("(4294967296, 4294967296)"), Io, "is larger than any memory");
  EXPECT_WEFT_ERROR(parse(dict("|u1", "(4611686018427387904,)"), "x"), Io,
                    "needs 4611686018427387904");
  EXPECT_WEFT_ERROR(six("(9223372036854775808,)"), Io, "size 9223372036854775808 in the shape");
  EXPECT_WEFT_ERROR(six("(-6,)"), Io, "size -6 in the shape");
  EXPECT_WEFT_ERROR(six("(1, 1, 1, 1, 1, 1, 1, 1, 6)"), Unsupported,
                    "more dimensions than weft's 8");
  EXPECT_WEFT_ERROR(parse(dict("<f2", "(3,)"), "12345"), Io, "f16 [3] needs 6");
  EXPECT_WEFT_ERROR(parse(dict("|b1", "(3,)"), std::string("\0\1\2", 3)), Io, "value 2 at byte 69");
}

TEST(Npy, RefusesOtherDtypesByName) {
  const auto typed = [](const std::string& type) { return parse(dict(type, "(1,)"), "12345678"); };
  EXPECT_WEFT_ERROR(typed(">f4"), Unsupported,
                    "dtype \">f4\" is big-endian; convert it with array.astype('<f4')");
  EXPECT_WEFT_ERROR(typed("|O"), Unsupported, "an array of Python objects (dtype \"|O\")");
  for (const char* type :
       {"<i2", "|i1", "<u8", "<c8", "<U3", "|S3", "<V2", "<M8[ns]", "<f16", "", "<", "float32"}) {
    EXPECT_WEFT_ERROR(typed(type), Unsupported,
                      "weft has no dtype \"" + std::string(type) + "\"; convert it");
  }
  EXPECT_WEFT_ERROR(parse("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""),
                    Unsupported, "its values are structs");
}

TEST(Npy, RefusesBadDicts) {
  const CheapScope cheap;
  const auto refused = [](const std::string& text, const std::string& message) {
    EXPECT_WEFT_ERROR(parse(text, kSix), Io, message);
  };
  refused("", "byte 10, in the header: expected '{', got the end of the header");
  refused("[]", "byte 10, in the header: expected '{', got \"[]\"");
  refused("{}", "the header has no 'descr'");
  refused("{'descr': '<f4', 'shape': (2, 3)}", "the header has no 'fortran_order'");
  refused("{'descr': '<f4', 'descr': '<f4'}", "key \"descr\" is twice");
  refused("{'descr': '<f4', 'more': 1}", "unknown key \"more\"");
  refused("{'descr': '<f4' 'shape': (2, 3)}", "byte 26, in the header: expected '}'");
  refused("{'descr' '<f4'}", "byte 19, in the header: expected ':'");
  refused("{'descr': 4}", "byte 20, in the header: expected ''', got \"4}\"");
  refused("{'descr': '<f4", "expected the end of a string");
  refused("{'des\\x63r': '<f4'}", "expected a string without '\\'");
  refused("{'fortran_order': 0}", "expected True or False, got \"0}\"");
  refused("{'shape': 6}", "expected '(', got \"6}\"");
  refused("{'shape': (6)}", "expected ',' after the only size");
  refused("{'shape': (2, x)}", "expected a number");
  refused("{'shape': (2, 3", "expected ')', got the end of the header");
  refused("{'shape': (,)}", "expected a number");
  refused(dict("<f4", "(2, 3)") + "x", "nothing but spaces after the dict");
  refused(std::string(65'535, '{'), "expected '''");
}

TEST(Npy, WritesWhatNumpyWrites) {
  TempFolder folder;
  const std::string path = folder.path("x.npy");
  for (const char* name : {"f32", "f64", "i64", "i32", "u8", "bool", "scalar", "empty"}) {
    const Tensor x = golden(name);
    save_npy(path, x);
    EXPECT_EQ(read_file(path), read_file("tests/io/goldens/" + std::string(name) + ".npy")) << name;
  }
  const Tensor x = raw::reshape(arange(0, 24, 1, DType::f32), {2, 3, 4});
  save_npy(path, raw::permute(x, {2, 0, 1}));
  EXPECT_EQ(load_npy(path).strides(), Strides({6, 3, 1}));
  EXPECT_EQ(load_npy(path).to_vector<double>(), raw::permute(x, {2, 0, 1}).to_vector<double>());
  save_npy(path, tensor({1, -0.5, 3.140625}, DType::bf16));
  EXPECT_EQ(load_npy(path).dtype(), DType::f32);
  EXPECT_EQ(load_npy(path).to_vector<double>(), (Doubles{1, -0.5, 3.140625}));
  save_npy(path, ones({1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(load_npy(path).shape(), Shape({1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_WEFT_ERROR(save_npy(path, Tensor()), InvalidArgument, "the tensor is undefined");
  EXPECT_WEFT_ERROR(save_npy(path, zeros({0, std::int64_t{1} << 61})), InvalidArgument,
                    "[0,2305843009213693952] is larger than any memory");
  EXPECT_WEFT_ERROR(save_npy(folder.path("no/x.npy"), x), Io, "no/x.npy");
  EXPECT_EQ(folder.files(), 1);
}

TEST(Npy, LoadsOntoADevice) {
  set_host_devices(2);
  const Tensor x = load_npy("tests/io/goldens/fortran.npy", {.device = Device(DeviceType::cpu, 1)});
  EXPECT_EQ(x.device(), Device(DeviceType::cpu, 1));
  EXPECT_EQ(x.strides(), Strides({1, 2, 6}));
  TempFolder folder;
  save_npy(folder.path("x.npy"), x);
  EXPECT_EQ(load_npy(folder.path("x.npy")).to_vector<double>(), x.to_vector<double>());
}

// --- npz -------------------------------------------------------------------------------------------

NamedTensors parse_archive(const std::string& file) { return parse_npz(as_bytes(file)); }

TEST(Npz, ReadsStoredAndDeflatedArrays) {
  for (const char* name : {"stored.npz", "deflated.npz"}) {
    const std::string path = std::string("tests/io/goldens/") + name;
    const NamedTensors arrays = load_npz(path);
    ASSERT_EQ(arrays.size(), 3u);
    EXPECT_EQ(arrays[0].first, "x");
    EXPECT_EQ(arrays[0].second.shape(), Shape({10, 20}));
    EXPECT_EQ(arrays[1].first, "labels");
    EXPECT_EQ(arrays[1].second.to_vector<double>(), (Doubles{1, 2, 3}));
    EXPECT_EQ(arrays[2].first, "nothing");
    EXPECT_EQ(arrays[2].second.shape(), Shape({0}));
    Doubles ramp(200);
    for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<double>(i);
    EXPECT_EQ(arrays[0].second.to_vector<double>(), ramp);
    EXPECT_EQ(load_npz(path, "labels").dtype(), DType::i64);
    EXPECT_WEFT_ERROR(load_npz(path, "y"), InvalidArgument,
                      "no array \"y\"; there are \"x\" \"labels\" \"nothing\"");
  }
}

TEST(Npz, OneArrayIsReadWhateverTheOthersAre) {
  TempFolder folder;
  const std::string path = folder.path("mixed.npz");
  write_file(path, zip({{"names.npy", npy(dict("<U3", "(2,)"), std::string(24, '\0'))},
                        {"x.npy", npy(dict("<f4", "(2, 3)"), kSix)},
                        {"readme.txt", "text"}}));
  EXPECT_EQ(load_npz(path, "x").to_vector<double>(), (Doubles{0, 1, 2, 3, 4, 5}));
  EXPECT_WEFT_ERROR(load_npz(path), Unsupported, "mixed.npz: \"names.npy\": weft has no dtype");
  EXPECT_WEFT_ERROR(load_npz(path, "readme.txt"), Unsupported,
                    "record \"readme.txt\" is no array, whose name ends with .npy");
}

TEST(Npz, RefusesDamagedArchives) {
  const CheapScope cheap;
  const std::string good = npy(dict("<f4", "(2, 3)"), kSix);
  const auto with = [&](const ZipPart& part) { return parse_archive(zip({part})); };
  const std::string packed = deflated(good);
  const ZipPart deflated_part = {.name = "x.npy", .data = packed, .method = 8, .unpacked = good};
  EXPECT_EQ(with(deflated_part)[0].second.shape(), Shape({2, 3}));
  EXPECT_WEFT_ERROR(parse_archive(good), Io, "one array, as in .npy files");
  EXPECT_WEFT_ERROR(parse_archive(""), Io, "too few for a zip archive");
  EXPECT_WEFT_ERROR(with({.name = "x.npy", .data = good, .crc_change = 1}), Io,
                    "record \"x.npy\": its checksum does not match");
  EXPECT_WEFT_ERROR(with({.name = "x.npy", .data = good, .flags = 1}), Unsupported, "is encrypted");
  EXPECT_WEFT_ERROR(with({.name = "x.npy", .data = good, .method = 12}), Unsupported,
                    "compressed by another method than deflate");
  ZipPart part = deflated_part;
  part.crc_change = 1;
  EXPECT_WEFT_ERROR(with(part), Io, "its checksum does not match");
  part = deflated_part;
  part.data.resize(part.data.size() - 4);
  EXPECT_WEFT_ERROR(with(part), Io, "cut off inside the compressed data");
  part = deflated_part;
  part.data += "more";
  EXPECT_WEFT_ERROR(with(part), Io, "bytes follow the end of the compressed data");
  part = deflated_part;
  part.data = "no deflated data";
  EXPECT_WEFT_ERROR(with(part), Io, "record \"x.npy\": damaged: ");
  part = deflated_part;
  part.data = deflated(good + "more");
  EXPECT_WEFT_ERROR(with(part), Io, "bytes follow the 24 of shape [2,3]");
  part = deflated_part;
  part.data = deflated(good.substr(0, good.size() - 1));
  EXPECT_WEFT_ERROR(with(part), Io, "claims");
  // The sizes of the directory and of the shape agree, and the data cannot be that large.
  const std::string lie = npy(dict("|u1", "(1099511627776,)"), "");
  part = {.name = "x.npy", .data = deflated(lie), .method = 8, .unpacked = lie};
  part.unpacked_change = std::uint64_t{1} << 40;
  part.in64 = true;
  EXPECT_WEFT_ERROR(with(part), Io, "and cannot (is the file damaged?)");
}

TEST(Npz, WritesArrays) {
  TempFolder folder;
  const std::string path = folder.path("x.npz");
  const NamedTensors arrays = {{"a", rand({3, 4})},
                               {"folder/b", tensor({1, 0}, DType::boolean)},
                               {"empty", zeros({0, 2}, DType::f64)},
                               {"scalar", scalar(3, DType::i64)}};
  save_npz(path, arrays);
  const NamedTensors back = load_npz(path);
  ASSERT_EQ(back.size(), arrays.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].first, arrays[i].first);
    EXPECT_EQ(back[i].second.dtype(), arrays[i].second.dtype());
    EXPECT_EQ(back[i].second.shape(), arrays[i].second.shape());
    EXPECT_EQ(back[i].second.to_vector<double>(), arrays[i].second.to_vector<double>());
  }
  save_npz(path, {});
  EXPECT_EQ(load_npz(path).size(), 0u);
  EXPECT_WEFT_ERROR(load_npz(path, "x"), InvalidArgument, "no array \"x\"; there are none");
  EXPECT_WEFT_ERROR(save_npz(path, {{"a", ones({1})}, {"a", ones({1})}}), InvalidArgument,
                    "two arrays are called \"a\"");
  EXPECT_WEFT_ERROR(save_npz(path, {{"a", Tensor()}}), InvalidArgument, "\"a\" is undefined");
  EXPECT_WEFT_ERROR(save_npz(path, {{"", ones({1})}}), InvalidArgument, "name has 0 bytes");
  EXPECT_WEFT_ERROR(save_npz(path, {{std::string(4093, 'x'), ones({1})}}), InvalidArgument,
                    "name has 4093 bytes, 1 to 4092 are allowed");
  for (const std::string& name : {std::string("a\xff"), std::string("a\0b", 3)}) {
    EXPECT_WEFT_ERROR(save_npz(path, {{name, ones({1})}}), InvalidArgument,
                      "is not UTF-8, or has a byte of 0");
  }
  save_npz(path, {{std::string(4092, 'x'), ones({1})}});
  EXPECT_EQ(load_npz(path)[0].first.size(), 4092u);
}

}  // namespace
}  // namespace weft::io
