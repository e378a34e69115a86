// Files that several ranks write together.
#include "weft/io/slice_writer.h"

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/slices.h"

namespace weft::io {
namespace {

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
                 "tensor \"x\" [4,6]: no rank has a slice with its element [3,0]");
  expect_refused({{slice("x", x, {0, 0}, {2, 6})}, {slice("x", x, {2, 0}, {0, 6})}},
                 "no rank has a slice with its element [2,0]");
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

// Each rank has every third slice, and the last rank also has one of another rank.
TEST_F(TensorSlices, ThousandsOfSlicesOfATensor) {
  const Tensor x = uniform({12000, 2}, 0, 1);
  Ranks ranks(3);
  for (std::int64_t i = 0; i < 12000; ++i) {
    ranks[static_cast<std::size_t>(i % 3)].push_back(slice("x", x, {i, 0}, {1, 2}));
  }
  ranks[2].push_back(ranks[1][5]);
  expect_read(SliceReader(save(ranks)), all_of("x", x));
  ranks[1][5] = slice("x", x, {16, 0}, {2, 2});
  EXPECT_WEFT_ERROR(writers(ranks), InvalidArgument,
                    "slices overlap: [1,2] at [16,0] of rank 2 and [2,2] at [16,0] of rank 1");
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

  // A file of the same name and size, as in another folder.
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

}  // namespace
}  // namespace weft::io
