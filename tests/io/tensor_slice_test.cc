// Files that several ranks write together, and of which each reads what it needs. The ranks are
// written here one after the other: they only exchange texts.
#include "weft/io/tensor_slice.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

using Ranks = std::vector<std::vector<TensorSlice>>;  // what each has

TensorSlice slice(const std::string& name, const Tensor& whole, const Shape& at,
                  const Shape& sizes) {
  Tensor part = whole;
  for (int d = 0; d < at.size(); ++d) part = raw::narrow(part, d, at[d], sizes[d]);
  return {name, whole.shape(), at, part};
}
TensorSlice all_of(const std::string& name, const Tensor& whole) {
  return slice(name, whole, Shape::filled(whole.dim(), 0), whole.shape());
}

/// Deals out a dimension in parts of ceil(size / n).
void deal_out(Ranks& ranks, const std::string& name, const Tensor& whole, int dim) {
  const std::int64_t n = std::ssize(ranks), most = (whole.shape(dim) + n - 1) / n;
  for (std::int64_t r = 0; r < n; ++r) {
    Shape at = Shape::filled(whole.dim(), 0), sizes = whole.shape();
    at[dim] = std::min(r * most, whole.shape(dim));
    sizes[dim] = std::min(most, whole.shape(dim) - at[dim]);
    ranks[static_cast<std::size_t>(r)].push_back(slice(name, whole, at, sizes));
  }
}

class TensorSlices : public ::testing::Test {
 protected:
  std::vector<SliceWriter> writers(const Ranks& ranks, const Metadata& metadata = {},
                                   std::uint64_t most_bytes = 5'000'000'000) const {
    std::vector<std::string> described;
    for (const auto& own : ranks) described.push_back(describe(own));
    std::vector<SliceWriter> result;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      result.emplace_back(stem, ranks[r], static_cast<int>(r), described, metadata, most_bytes);
    }
    return result;
  }
  /// Returns the files' paths.
  std::vector<std::string> save(const Ranks& ranks, const Metadata& metadata = {},
                                std::uint64_t most_bytes = 5'000'000'000) const {
    const std::vector<SliceWriter> all = writers(ranks, metadata, most_bytes);
    const std::string made = all[0].make_files();
    std::vector<std::string> written;
    for (const SliceWriter& writer : all) written.push_back(writer.write(made));
    all[0].finish(made, written);
    write_file_atomically(folder.path("model.safetensors.index.json"), all[0].index());
    std::vector<std::string> paths;
    for (const std::string& name : all[0].files()) paths.push_back(folder.path(name));
    return paths;
  }
  /// Expects that a load of the slice gives its values.
  static void expect_read(const SliceReader& reader, const TensorSlice& wanted) {
    const Tensor got = zeros(wanted.tensor.shape(), wanted.tensor.dtype());
    reader.read({wanted.name, wanted.whole, wanted.offsets, got});
    EXPECT_EQ(got.to_vector<double>(), wanted.tensor.to_vector<double>())
        << wanted.name << ' ' << wanted.tensor.shape() << " at " << wanted.offsets;
  }

  testing::TempFolder folder;
  std::string stem = folder.path("model-7");
};

// Rows, columns and blocks of three kinds; all dtypes; what has no dimensions or no elements.
Ranks many(int n, std::vector<std::pair<std::string, Tensor>>& whole) {
  Ranks ranks(static_cast<std::size_t>(n));
  const auto add = [&](const std::string& name, const Tensor& x, int dim) {
    whole.emplace_back(name, x);
    if (dim >= 0) return deal_out(ranks, name, x, dim);
    for (auto& own : ranks) own.push_back(all_of(name, x));  // each has it
  };
  Generator generator(3);
  const auto draw = [&](const Shape& shape, DType dtype) {
    return raw::to(uniform(shape, -9, 9, DType::f64, &generator), dtype);
  };
  add("rows", draw({7, 5}, DType::f32), 0);
  add("columns", draw({7, 5}, DType::f64), 1);
  add("middle", draw({3, 4, 5}, DType::bf16), 1);
  add("i64", draw({9}, DType::i64), 0);
  add("i32", draw({2, 3}, DType::i32), 1);
  add("u8", raw::to(uniform({5, 3}, 0, 9, DType::f64, &generator), DType::u8), 0);
  add("flags", raw::to(draw({11}, DType::i32), DType::boolean), 0);
  add("scalar", draw({}, DType::f32), -1);
  add("none", zeros({0, 4}), 0);
  add("none of columns", zeros({4, 0}), 1);
  add("same", draw({3}, DType::f32), -1);
  add("transposed", raw::transpose(draw({6, 4}, DType::f32), 0, 1), 0);
  return ranks;
}

TEST_F(TensorSlices, TheFilesDoNotDependOnWhoHasWhat) {
  std::string one;
  for (int n = 1; n <= 4; ++n) {
    std::vector<std::pair<std::string, Tensor>> whole;
    const Ranks ranks = many(n, whole);
    const auto paths = save(ranks, {{"format", "pt"}});
    ASSERT_EQ(paths, std::vector{folder.path("model-7-00001-of-00001.safetensors")});
    const std::string bytes = testing::read_file(paths[0]);
    if (n == 1) one = bytes;
    EXPECT_EQ(bytes, one) << n << " ranks";
    const SafetensorsFile file = load_safetensors(paths[0]);
    EXPECT_EQ(file.metadata, (Metadata{{"format", "pt"}}));
    const std::map<std::string, Tensor> loaded(file.tensors.begin(), file.tensors.end());
    ASSERT_EQ(loaded.size(), whole.size());
    for (const auto& [name, x] : whole) {
      EXPECT_EQ(loaded.at(name).dtype(), x.dtype()) << name;
      EXPECT_EQ(loaded.at(name).shape(), x.shape()) << name;
      EXPECT_EQ(loaded.at(name).to_vector<double>(), x.to_vector<double>()) << name;
    }
  }
}

TEST_F(TensorSlices, AnyNumberOfRanksReadsWhatItNeeds) {
  std::vector<std::pair<std::string, Tensor>> whole;
  save(many(3, whole));
  for (int n = 1; n <= 4; ++n) {
    whole.clear();
    for (const auto& own : many(n, whole)) {
      const SliceReader reader({folder.path("model.safetensors.index.json")});
      EXPECT_EQ(reader.names().size(), whole.size());
      std::uint64_t bytes = 0;
      for (const TensorSlice& wanted : own) {
        expect_read(reader, wanted);
        bytes += static_cast<std::uint64_t>(wanted.tensor.numel()) * size_of(wanted.tensor.dtype());
      }
      EXPECT_EQ(reader.bytes_read(), bytes) << n << " ranks";
    }
  }
}

// What a cut of a cut gives: a rank may have several boxes of one tensor, of any kind.
TEST_F(TensorSlices, BoxesOfAnyKind) {
  const Tensor x = raw::reshape(arange(0, 60, 1, DType::f32), {6, 10});
  const Ranks ranks = {{slice("x", x, {0, 0}, {2, 5}), slice("x", x, {4, 5}, {2, 5})},
                       {slice("x", x, {2, 0}, {4, 5}), slice("x", x, {0, 5}, {4, 5})}};
  const SliceReader reader(save(ranks));
  for (const auto& own : ranks) {
    for (const TensorSlice& part : own) expect_read(reader, part);
  }
  expect_read(reader, all_of("x", x));
  expect_read(reader, slice("x", x, {1, 3}, {4, 6}));
  expect_read(reader, slice("x", x, {6, 0}, {0, 10}));
}

TEST_F(TensorSlices, ReadsFilesOfAnyKind) {
  const Tensor x = raw::reshape(arange(0, 24, 1, DType::f32), {2, 3, 4});
  const std::string path = folder.path("plain.safetensors");
  save_safetensors(path, {{"x", x}, {"flag", tensor({1, 0, 1}, DType::boolean)}}, {{"a", "b"}},
                   {.f16 = true});
  const SliceReader reader({path});
  EXPECT_EQ(reader.dtype("x"), DType::f32);
  EXPECT_EQ(reader.shape("x"), (Shape{2, 3, 4}));
  EXPECT_EQ(reader.metadata(), (Metadata{{"a", "b"}}));
  expect_read(reader, slice("x", x, {0, 1, 1}, {2, 1, 2}));
  EXPECT_EQ(reader.bytes_read(), 8U);  // of f16
  expect_read(reader, slice("flag", tensor({1, 0, 1}, DType::boolean), {1}, {2}));
  const Tensor other = zeros({2, 3, 4}, DType::f64);  // another dtype
  reader.read({"x", x.shape(), {0, 0, 0}, other});
  EXPECT_EQ(other.to_vector<double>(), x.to_vector<double>());
  EXPECT_WEFT_ERROR(reader.read({"y", {1}, {0}, zeros({1})}), InvalidArgument, "no tensor \"y\"");
  EXPECT_WEFT_ERROR(reader.read({"x", {2, 3}, {0, 0}, zeros({2, 3})}), InvalidArgument,
                    "tensor \"x\" is [2,3,4], expected [2,3]");
  EXPECT_WEFT_ERROR(reader.read({"x", {2, 3, 4}, {0, 2, 0}, zeros({2, 2, 4})}), InvalidArgument,
                    "lies outside: [2,2,4] at [0,2,0]");
}

TEST_F(TensorSlices, EachTensorIsWholeInOneFile) {
  Ranks ranks(2);
  for (const std::string name : {"a", "b", "c", "d"}) {
    deal_out(ranks, name, full({4, name == "c" ? 30 : 5}, name[0]), 0);
  }
  const auto paths = save(ranks, {}, 200);  // of a, b and d each has 80 bytes, c has 480
  ASSERT_EQ(paths.size(), 3U);
  EXPECT_EQ(paths[2], folder.path("model-7-00003-of-00003.safetensors"));
  const auto names = [&](int file) { return SliceReader({paths[std::size_t(file)]}).names(); };
  EXPECT_EQ(names(0), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names(1), (std::vector<std::string>{"c"}));
  EXPECT_EQ(names(2), (std::vector<std::string>{"d"}));
  const auto index =
      nlohmann::json::parse(testing::read_file(folder.path("model.safetensors.index.json")));
  EXPECT_EQ(index["metadata"]["total_size"], 720);
  EXPECT_EQ(index["weight_map"]["d"], "model-7-00003-of-00003.safetensors");
  const SliceReader reader({folder.path("model.safetensors.index.json")});
  for (const auto& own : ranks) {
    for (const TensorSlice& part : own) expect_read(reader, part);
  }
  EXPECT_WEFT_ERROR(SliceReader({paths[0], paths[0]}), Io, "tensor \"a\" is in ");
}

TEST_F(TensorSlices, SlicesThatDoNotFitAreFound) {
  const Tensor x = zeros({4, 6});
  const auto expect_refused = [&](const Ranks& ranks, const std::string& text) {
    EXPECT_WEFT_ERROR(writers(ranks), InvalidArgument, text);
    EXPECT_EQ(folder.files(), 0);
  };
  expect_refused({{slice("x", x, {0, 0}, {2, 6})}, {slice("x", x, {2, 0}, {1, 6})}},
                 "tensor \"x\" [4,6]: the slices of all ranks have 18 of its 24 elements");
  expect_refused({{slice("x", x, {0, 0}, {2, 6})}, {slice("x", x, {2, 0}, {0, 6})}},
                 "12 of its 24");
  expect_refused({{slice("x", x, {0, 0}, {3, 6})}, {slice("x", x, {2, 0}, {2, 6})}},
                 "tensor \"x\": slices overlap: [3,6] at [0,0] of rank 0 and [2,6] at [2,0] of "
                 "rank 1");
  TensorSlice outside = slice("x", x, {2, 0}, {2, 6});
  outside.offsets[0] = 3;
  expect_refused({{slice("x", x, {0, 0}, {2, 6})}, {outside}}, "outside: [2,6] at [3,0] of rank 1");
  outside.offsets[0] = -1;
  expect_refused({{outside}}, "outside: [2,6] at [-1,0] of rank 0");
  outside.offsets[0] = std::int64_t{1} << 62;
  expect_refused({{outside}}, "outside");
  expect_refused({{all_of("x", x)}, {all_of("x", zeros({4, 5}))}},
                 "tensor \"x\" is f32 [4,6] on rank 0 and f32 [4,5] on rank 1");
  expect_refused({{all_of("x", x)}, {all_of("x", raw::to(x, DType::f64))}},
                 "and f64 [4,6] on rank 1");
  EXPECT_WEFT_ERROR(describe({{"x", {4}, {0}, Tensor()}}), InvalidArgument, "undefined");
  EXPECT_WEFT_ERROR(describe({all_of("__metadata__", x)}), InvalidArgument, "cannot be called");
  EXPECT_WEFT_ERROR(describe({all_of("\xff", x)}), InvalidArgument, "not UTF-8");
  EXPECT_WEFT_ERROR(describe({all_of(std::string(4082, 'x'), x)}), InvalidArgument, "over 4081");
  expect_read(SliceReader(save({{all_of(std::string(4081, 'x'), x)}})),
              all_of(std::string(4081, 'x'), x));
}

TEST_F(TensorSlices, NothingIsLoadedBeforeAllIsWritten) {
  std::vector<std::pair<std::string, Tensor>> whole;
  const std::vector<SliceWriter> all = writers(many(2, whole));
  const std::string path = folder.path(all[0].files()[0]);
  EXPECT_WEFT_ERROR(all[1].write("1"), Io, "cannot open " + path + ": No such file");
  EXPECT_FALSE(is_of_slice_writer(path));
  const std::string made = all[0].make_files();
  EXPECT_TRUE(is_of_slice_writer(path));
  EXPECT_WEFT_ERROR(load_safetensors(path), Io, "claims a header of");
  std::vector<std::string> written = {all[0].write(made)};
  EXPECT_WEFT_ERROR(load_safetensors(path), Io, "claims a header of");
  written.push_back(all[1].write(made));
  all[0].finish(made, written);
  EXPECT_EQ(load_safetensors(path).tensors.size(), whole.size());
  EXPECT_TRUE(is_of_slice_writer(path));
  EXPECT_WEFT_ERROR(all[1].write(made), Io, "this is not the file that another rank has made");

  // One of the same name and size, as in another folder.
  const std::string again = all[0].make_files();
  EXPECT_NE(again, made);
  EXPECT_WEFT_ERROR(all[1].write(made), Io, "this is not the file that another rank has made");
  EXPECT_WEFT_ERROR(all[0].finish(made, written), Io, "this is not the file");
  written = {all[0].write(again), all[1].write(again)};
  all[0].finish(again, written);

  const std::string bytes = testing::read_file(path);
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{7}, std::size_t{100}, bytes.size() - 1}) {
    testing::write_file(path, std::string_view(bytes).substr(0, kept));
    EXPECT_WEFT_ERROR(SliceReader({path}), Io, path);
    EXPECT_WEFT_ERROR(all[1].write(again), Io, "this is not the file that another rank has made");
  }
}

// The second one is larger than a file may be, and the first has been made.
TEST_F(TensorSlices, FilesThatCannotBeMadeLeaveNone) {
  const std::vector<SliceWriter> all =
      writers({{all_of("a", ones({3})), all_of("b", zeros({100'000}))}}, {}, 100);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100'000;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_WEFT_ERROR(all[0].make_files(), Io, "model-7-00002-of-00002.safetensors");
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(folder.files(), 0);
}

TEST_F(TensorSlices, TheFilesDoNotDependOnWhoSpeaksFirst) {
  const TensorSlice a = all_of("a", ones({3})), b = all_of("b", zeros({5}));
  const std::string bytes = testing::read_file(save({{a, b}})[0]);
  EXPECT_EQ(testing::read_file(save({{b}, {a}})[0]), bytes);
}

TEST_F(TensorSlices, OnlyOwnFilesAreTakenForSuch) {
  const std::string path = folder.path("other.safetensors");
  save_safetensors(path, {{"x", ones({3})}});
  EXPECT_FALSE(is_of_slice_writer(path));
  testing::write_file(path, "text and more text");
  EXPECT_FALSE(is_of_slice_writer(path));
  testing::write_file(path, "");  // killed before it had its size
  EXPECT_TRUE(is_of_slice_writer(path));
  EXPECT_TRUE(is_of_slice_writer(save({{}})[0]));
}

// A file of 2.5 blocks of 1 MiB and one of a few bytes, written by rows and by columns.
TEST_F(TensorSlices, DamageIsFoundInWhatIsRead) {
  const Tensor x = uniform({640, 1024}, 0, 1);
  for (const int dim : {0, 1}) {
    Ranks ranks(3);
    deal_out(ranks, "x", x, dim);
    deal_out(ranks, "small", arange(0, 9), 0);
    const std::string path = save(ranks)[0];
    std::string bytes = testing::read_file(path);
    expect_read(SliceReader({path}), all_of("x", x));
    const std::size_t data = bytes.size() - 4 * 640 * 1024;
    bytes[data + (std::size_t{5} << 18)] ^= 1;  // in the second block
    testing::write_file(path, bytes);
    const SliceReader reader({path});
    EXPECT_WEFT_ERROR(expect_read(reader, all_of("x", x)), Io, "checksum of tensor \"x\"");
    EXPECT_WEFT_ERROR(expect_read(reader, slice("x", x, {256, 0}, {256, 1024})), Io, "checksum");
    expect_read(reader, slice("x", x, {0, 0}, {256, 1024}));
    expect_read(reader, slice("x", x, {512, 0}, {128, 1024}));
    expect_read(reader, all_of("small", arange(0, 9)));
    EXPECT_WEFT_ERROR(load_safetensors(path), Io, "checksum of tensor \"x\"");

    bytes[bytes.find("weft.header_crc32")] ^= 1;
    testing::write_file(path, bytes);
    EXPECT_WEFT_ERROR(SliceReader({path}), Io, "checksum of the header is missing");
  }
}

TEST_F(TensorSlices, AnIndexNamesFilesBesideIt) {
  const Tensor x = ones({3});
  save({{all_of("x", x)}});
  const std::string path = folder.path("other.safetensors.index.json");
  const auto expect_refused = [&](const std::string& text, const std::string& reason) {
    testing::write_file(path, text);
    EXPECT_WEFT_ERROR(SliceReader({path}), Io, reason);
  };
  const std::string file = "model-7-00001-of-00001.safetensors";
  expect_refused("", "not an index");
  expect_refused("[]", "not an index");
  expect_refused(R"({"weight_map": 1})", "not an index");
  expect_refused(R"({"weight_map": {"x": 1}})", "no name of a file beside the index");
  expect_refused(R"({"weight_map": {"x": "../x"}})", "no name of a file beside the index");
  expect_refused(R"({"weight_map": {"x": ""}})", "no name of a file beside the index");
  expect_refused(R"({"weight_map": {"y": ")" + file + R"("}})", "which has no such tensor");
  expect_refused(R"({"weight_map": {"x": "missing.safetensors"}})", "No such file");
  testing::write_file(path, R"({"weight_map": {"x": ")" + file + R"("}})");
  expect_read(SliceReader({path}), all_of("x", x));
}

}  // namespace
}  // namespace weft::io
