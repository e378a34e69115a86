#include "weft/data/mnist.h"

#include <algorithm>

#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

using testing::CheapScope;
using testing::gzip;
using testing::idx_header;
using testing::TempFolder;
using testing::write_file;

using Indices = std::vector<std::int64_t>;

std::string pixels(std::size_t n) {
  std::string text(n, '\0');
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i);
  return text;
}

// Three training images of 2 x 4 with labels 7, 0, 9.
void write_set(const TempFolder& folder, bool zipped) {
  const auto put = [&](const std::string& name, const std::string& bytes) {
    write_file(folder.path(name + (zipped ? ".gz" : "")), zipped ? gzip(bytes) : bytes);
  };
  put("train-images-idx3-ubyte", idx_header({3, 2, 4}) + pixels(24));
  put("train-labels-idx1-ubyte", idx_header({3}) + std::string("\7\0\11", 3));
}

TEST(Mnist, ReadsAFolderPlainOrZipped) {
  for (const bool zipped : {false, true}) {
    TempFolder folder;
    write_set(folder, zipped);
    const Mnist set(folder.root());
    EXPECT_EQ(set.size(), 3);
    auto [x, label] = set.get_batch(Indices{2, 0});
    EXPECT_EQ(x.shape(), Shape({2, 1, 2, 4}));
    EXPECT_EQ(x.dtype(), DType::f32);
    EXPECT_EQ(x.to_vector<float>()[1], 17.0f / 255.0f);
    EXPECT_EQ(x.to_vector<float>()[8], 0.0f);
    EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{9, 7}));
    EXPECT_EQ(set.get_batch(Indices{}).x.shape(), Shape({0, 1, 2, 4}));
  }
}

TEST(Mnist, ScalesEveryPixelAsADivisionWould) {
  TempFolder folder;
  std::string all(512, '\0');  // two images of 16 x 16: all values, then the same in reverse
  for (std::size_t i = 0; i < 256; ++i) all[i] = all[511 - i] = static_cast<char>(i);
  write_file(folder.path("train-images-idx3-ubyte"), idx_header({2, 16, 16}) + all);
  write_file(folder.path("train-labels-idx1-ubyte"), idx_header({2}) + std::string(2, '\0'));
  const auto f32 = Mnist(folder.root()).get_batch(Indices{0, 1}).x.to_vector<float>();
  const auto f64 =
      Mnist(folder.root(), {.dtype = DType::f64}).get_batch(Indices{0, 1}).x.to_vector<double>();
  for (std::size_t i = 0; i < 512; ++i) {
    const float expected = static_cast<float>(static_cast<unsigned char>(all[i])) / 255.0f;
    EXPECT_EQ(f32[i], expected);
    EXPECT_EQ(f64[i], static_cast<double>(expected));  // .float() / 255, then .double()
  }
}

TEST(Mnist, FillsTheSameMemoryAgain) {
  TempFolder folder;
  write_set(folder, false);
  const Mnist set(folder.root());
  Mnist::Batch batch;
  set.get_batch(Indices{0, 1, 2}, batch, HostMemory());
  const void* x = batch.x.raw_data();
  const void* label = batch.label.raw_data();
  set.get_batch(Indices{2}, batch, HostMemory());  // smaller, so it uses a part of the memory
  EXPECT_EQ(batch.x.shape(), Shape({1, 1, 2, 4}));
  EXPECT_EQ(batch.x.raw_data(), x);
  set.get_batch(Indices{2, 1, 0}, batch, HostMemory());
  EXPECT_EQ(batch.x.raw_data(), x);
  EXPECT_EQ(batch.label.raw_data(), label);
  // Unless another handle shares it.
  const Tensor kept = batch.x;
  const auto values = kept.to_vector<float>();
  set.get_batch(Indices{0, 0, 0}, batch, HostMemory());
  EXPECT_NE(batch.x.raw_data(), x);
  EXPECT_EQ(kept.to_vector<float>(), values);
  const Tensor view = raw::slice(batch.x, 0, 0, 1);
  const void* viewed = batch.x.raw_data();
  set.get_batch(Indices{1, 1, 1}, batch, HostMemory());
  EXPECT_NE(batch.x.raw_data(), viewed);
}

TEST(Mnist, ReadsTheTestSet) {
  TempFolder folder;
  write_file(folder.path("t10k-images-idx3-ubyte"), idx_header({1, 2, 2}) + "abcd");
  write_file(folder.path("t10k-labels-idx1-ubyte.gz"), gzip(idx_header({1}) + "\5"));
  EXPECT_EQ(Mnist(folder.root(), {.train = false}).size(), 1);
}

TEST(Mnist, SaysWhatIsMissing) {
  const CheapScope cheap;
  TempFolder folder;
  const std::string remedy = "; give a folder of MNIST's IDX files at data/mnist.cc:";
  EXPECT_WEFT_ERROR(Mnist(folder.path("none")), Io,
                    folder.path("none") +
                        ": no such folder; looked for train-images-idx3-ubyte or "
                        "train-images-idx3-ubyte.gz in it" +
                        remedy);
  EXPECT_WEFT_ERROR(Mnist(folder.root()), Io,
                    folder.root() +
                        ": no file train-images-idx3-ubyte or train-images-idx3-ubyte.gz "
                        "in it" +
                        remedy);
  write_file(folder.path("train-images-idx3-ubyte"), idx_header({1, 2, 2}) + "abcd");
  EXPECT_WEFT_ERROR(Mnist(folder.root()), Io, "no file train-labels-idx1-ubyte or");
}

TEST(Mnist, RefusesFilesThatDoNotFitTogether) {
  const CheapScope cheap;
  TempFolder folder;
  const auto read = [&](const std::string& images, const std::string& labels) {
    write_file(folder.path("train-images-idx3-ubyte"), images);
    write_file(folder.path("train-labels-idx1-ubyte"), labels);
    return Mnist(folder.root()).size();
  };
  const std::string images = idx_header({2, 2, 2}) + "abcdefgh";
  EXPECT_WEFT_ERROR(read(images, idx_header({3}) + std::string(3, '\0')), Io, "2 images in");
  EXPECT_WEFT_ERROR(read(images, idx_header({3}) + std::string(3, '\0')), Io, "but 3 labels in");
  EXPECT_WEFT_ERROR(read(images, idx_header({2}) + std::string("\0\12", 2)), Io,
                    "label 10 of image 1 is not in 0 to 9");
  EXPECT_WEFT_ERROR(read(images, images), Io, "labels need the shape [count], got [2,2,2]");
  EXPECT_WEFT_ERROR(read(idx_header({2}) + "ab", idx_header({2}) + "ab"), Io,
                    "images need the shape [count, height, width], got [2]");
  EXPECT_WEFT_ERROR(read(idx_header({0, 2, 2}), idx_header({0})), Io, "got [0,2,2]");
  EXPECT_WEFT_ERROR(read("", idx_header({0})), Io, "empty file");
}

TEST(Mnist, RefusesOtherDtypesAndIndices) {
  TempFolder folder;
  write_set(folder, false);
  EXPECT_WEFT_ERROR(Mnist(folder.root(), {.dtype = DType::bf16}), Dtype, "f32 or f64, got bf16");
  const Mnist set(folder.root());
  EXPECT_WEFT_ERROR(set.get_batch(Indices{0, 3}), InvalidArgument,
                    "index 3 is outside the 3 images");
  EXPECT_WEFT_ERROR(set.get_batch(Indices{-1}), InvalidArgument, "index -1");
}

TEST(Mnist, TransformsAndNormalizes) {
  TempFolder folder;
  write_set(folder, false);
  const auto scaled = [](float pixel) { return (pixel / 255.0f - 0.5f) / 0.25f; };
  const Normalize normalize{{0.5f}, {0.25f}};
  for (const DType dtype : {DType::f32, DType::f64}) {
    // The same values with a transform and without; these use different code.
    const Mnist plain(folder.root(), {.dtype = dtype, .normalize = normalize});
    const Mnist padded(folder.root(),
                       {.dtype = dtype, .transform = Pad(1), .normalize = normalize});
    const auto small = plain.get_batch(Indices{2, 0}).x.to_vector<double>();
    const auto [x, label] = padded.get_batch(Indices{2, 0});
    EXPECT_EQ(x.shape(), Shape({2, 1, 4, 6}));
    EXPECT_EQ(x.dtype(), dtype);
    EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{9, 7}));
    EXPECT_EQ(small[1], scaled(17));
    EXPECT_EQ(raw::slice(raw::slice(x, 2, 1, 3), 3, 1, 5).to_vector<double>(), small);
    EXPECT_EQ(x.to_vector<double>()[0], scaled(0));
  }
  EXPECT_WEFT_ERROR(Mnist(folder.root(), {.normalize = {{0, 0}, {1, 1}}}), Shape, "2 means");
  EXPECT_WEFT_ERROR(Mnist(folder.root(), {.transform = Pad(1)}).get_batch(Indices{3}),
                    InvalidArgument, "index 3 is outside the 3 images");
}

// The epoch's seed and the index determine a sample's random transforms.
TEST(Mnist, SeedsTransformsBySample) {
  TempFolder folder;
  write_set(folder, false);
  const Mnist set(folder.root(), {.transform = RandomCrop(2, 3, 2)});
  const auto pixels = [&](const Indices& indices, std::uint64_t seed) {
    Mnist::Batch batch;
    set.get_batch(indices, batch, HostMemory(), seed);
    return batch.x.to_vector<float>();
  };
  const auto all = pixels({0, 1, 2}, 5);
  EXPECT_EQ(pixels({2}, 5), std::vector<float>(all.end() - 6, all.end()));
  EXPECT_EQ(pixels({2}, 5), pixels({2}, 5));
  EXPECT_NE(pixels({0, 1, 2}, 6), all);
}

TEST(Mnist, ReadsDebiansFashionMnist) {
  if (!std::filesystem::exists(kFashionMnistDir))
    GTEST_SKIP() << "dataset-fashion-mnist is missing";
  const Mnist train, test(kFashionMnistDir, {.train = false});
  EXPECT_EQ(train.size(), 60000);
  EXPECT_EQ(test.size(), 10000);
  EXPECT_EQ(train.images().shape(), Shape({60000, 28, 28}));
  // Known facts about the data set: the first labels, and equal numbers of each.
  const auto labels = train.labels().to_vector<std::uint8_t>();
  EXPECT_EQ((std::vector<std::uint8_t>(labels.begin(), labels.begin() + 5)),
            (std::vector<std::uint8_t>{9, 0, 0, 3, 0}));
  for (std::uint8_t c = 0; c < 10; ++c) EXPECT_EQ(std::ranges::count(labels, c), 6000);
}

}  // namespace
}  // namespace weft::data
