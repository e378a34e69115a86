// Python's safetensors package and PyTorch read what weft wrote, and weft reads what they wrote.
#include <algorithm>
#include <cstdlib>

#include "weft/io/pickle.h"
#include "weft/io/safetensors.h"
#include "weft/io/slice_reader.h"
#include "weft/io/slice_writer.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

TEST(SafetensorsPeer, PythonReadsWeftsFilesAndBack) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and safetensors";
  const std::string python = given;
  testing::TempFolder folder;
  const std::string path = folder.path("weft.safetensors"), back = folder.path("back.safetensors");
  const NamedTensors tensors = {{"fc.weight", rand({3, 5})},
                                {"f64", rand({2}, DType::f64)},
                                {"bf16", tensor({1, -0.5, 3.140625}, DType::bf16)},
                                {"step", arange(0, 3)},
                                {"flag", weft::tensor({1, 0}, DType::boolean)},
                                {"empty", zeros({0, 4})},
                                {"scalar", scalar(2)}};
  save_safetensors(path, tensors, {{"format", "pt"}, {"note", "gr\xc3\xbc\xc3\x9f"}});
  ASSERT_EQ(std::system((python + " tests/io/read_back.py " + path + " " + back).c_str()), 0);
  const SafetensorsFile file = load_safetensors(back);
  EXPECT_EQ(file.metadata, (Metadata{{"format", "pt"}, {"note", "gr\xc3\xbc\xc3\x9f"}}));
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    for (const auto& [other, value] : file.tensors) {
      if (other != name) continue;
      EXPECT_EQ(value.dtype(), expected.dtype()) << name;
      EXPECT_EQ(value.shape(), expected.shape()) << name;
      EXPECT_EQ(value.to_vector<double>(), expected.to_vector<double>()) << name;
    }
  }
}

// Written by three ranks, in several files.
TEST(SafetensorsPeer, PythonReadsFilesThatRanksWrote) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch and safetensors";
  testing::TempFolder folder;
  const NamedTensors tensors = {{"rows", rand({300, 7})},
                                {"columns", rand({6, 500}, DType::f64)},
                                {"bf16", raw::to(rand({9}), DType::bf16)},
                                {"scalar", scalar(2)}};
  const auto slices = [&](int rank) {
    std::vector<TensorSlice> own;
    for (const auto& [name, x] : tensors) {
      const int dim = name == "columns" ? 1 : 0;
      Shape at = Shape::filled(x.dim(), 0);
      Tensor part = x;
      if (x.dim() > 0) {
        const std::int64_t most = (x.shape(dim) + 2) / 3;
        at[dim] = rank * most;
        part = raw::narrow(x, dim, at[dim], std::min(most, x.shape(dim) - at[dim]));
      }
      own.push_back({name, x.shape(), at, part});
    }
    return own;
  };
  const std::vector<std::string> described = {describe(slices(0)), describe(slices(1)),
                                              describe(slices(2))};
  std::vector<SliceWriter> writers;
  for (int rank = 0; rank < 3; ++rank) {
    writers.emplace_back(folder.path("model-1"), slices(rank), rank, described,
                         Metadata{{"format", "pt"}}, 10'000);
  }
  const std::string made = writers[0].make_files();
  writers[0].finish(made, {writers[0].write(made), writers[1].write(made), writers[2].write(made)});
  const std::string index = folder.path("model.safetensors.index.json"),
                    back = folder.path("back.safetensors");
  testing::write_file(index, writers[0].index());
  ASSERT_EQ(writers[0].files().size(), 3U);
  ASSERT_EQ(std::system((given + (" tests/io/read_slices.py " + index + " " + back)).c_str()), 0);
  const SliceReader read({back});
  ASSERT_EQ(read.names().size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const Tensor value = zeros(expected.shape(), read.dtype(name));
    read.read({name, expected.shape(), Shape::filled(expected.dim(), 0), value});
    EXPECT_EQ(value.dtype(), expected.dtype()) << name;
    EXPECT_EQ(value.to_vector<double>(), expected.to_vector<double>()) << name;
  }
}

TEST(PicklePeer, PyTorchReadsWeftsFilesAndBack) {
  const char* given = std::getenv("WEFT_PEER");
  if (given == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with torch";
  testing::TempFolder folder;
  const std::string path = folder.path("weft.pth"), back = folder.path("back.pth");
  const Tensor weight = raw::reshape(arange(0, 6, 1, DType::f32), {2, 3});
  const NamedTensors state = {
      {"weight", weight},
      {"tied", raw::slice(weight, 0, 0, 1)},
      {"transposed", raw::transpose(raw::reshape(arange(0, 6), {2, 3}), 0, 1)},
      {"f64", rand({2}, DType::f64)},
      {"bf16", tensor({1, -0.5, 3.140625}, DType::bf16)},
      {"i32", tensor({1, 2}, DType::i32)},
      {"u8", tensor({1, 255}, DType::u8)},
      {"flag", tensor({1, 0}, DType::boolean)},
      {"empty", zeros({0, 4})},
      {"scalar", scalar(2)}};
  using V = PickleValue;
  V::Items many;  // several batches
  V::Entries entries;
  for (int i = 0; i < 2500; ++i) many.emplace_back(i), entries.emplace_back(i, -i);
  save_pickle(
      path,
      V::dict({{"state", V::state_dict(state)},
               {"numbers",
                V::list({1, -70000, std::int64_t{1} << 40, 0.1, V(), true,
                         V::bytes(std::string("\0\xff", 2)), V::tuple({1, 2}), V::set({3})})},
               {"many", V::list({V::list(many), V::dict(std::move(entries))})},
               {"ordered",
                V::ordered_dict(
                    {}, V::dict({{"_metadata", V::dict({{"", V::dict({{"version", 1}})}})}}))},
               {7, "gr\xc3\xbc\xc3\x9f"}}));
  ASSERT_EQ(
      std::system(
          (std::string(given) + " tests/io/read_back_pickle.py " + path + " " + back).c_str()),
      0);
  const PickleValue read = load_pickle(back);
  for (const auto& [name, expected] : state) {
    const Tensor value = read.at("state").at(name).tensor();
    EXPECT_EQ(value.dtype(), expected.dtype()) << name;
    EXPECT_EQ(value.shape(), expected.shape()) << name;
    EXPECT_EQ(value.to_vector<double>(), expected.to_vector<double>()) << name;
  }
}

}  // namespace
}  // namespace weft::io
