// Several ranks have written files; each rank reads what it needs of them.
#include "weft/io/slice_reader.h"

#include <cstdint>
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

// A tensor that is cut twice: a rank may have several boxes of it, of any kind.
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
  expect_refused(std::string((16 << 20) + 1, ' '), "too many for an index");
  expect_refused("[]", "not an index");
  expect_refused(R"({"weight_map": 1})", "not an index");
  expect_refused(R"({"weight_map": {"x": 1}})",
                 "\"x\": number is no name of a file beside the index");
  expect_refused(R"({"weight_map": {"x": "../x"}})",
                 "\"x\": \"../x\" is no name of a file beside the index");
  const int depth = 1'000'000;
  expect_refused(
      R"({"weight_map": {"x": )" + std::string(depth, '[') + std::string(depth, ']') + "}}",
      "\"x\": array is no");
  expect_refused(R"({"weight_map": {"x": ""}})", "no name of a file beside the index");
  expect_refused(R"({"weight_map": {"y": ")" + file + R"("}})", "which has no such tensor");
  expect_refused(R"({"weight_map": {"x": "missing.safetensors"}})", "No such file");
  testing::write_file(path, R"({"weight_map": {"x": ")" + file + R"("}})");
  expect_read(SliceReader({path}), all_of("x", x));
}

}  // namespace
}  // namespace weft::io
