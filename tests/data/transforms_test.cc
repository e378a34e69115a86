#include "weft/data/transforms.h"

#include <limits>

#include "weft/data/image_batch.h"
#include "weft/io/safetensors.h"
#include "weft/tests/core/expect_error.h"

namespace weft::data {
namespace {

using Bytes = std::vector<std::uint8_t>;

class Goldens {
 public:
  Tensor operator[](const std::string& name) const {
    for (const auto& [key, tensor] : file_.tensors) {
      if (key == name) return tensor;
    }
    ADD_FAILURE() << "no golden " << name;
    return {};
  }
  Bytes bytes(const std::string& name) const { return (*this)[name].to_vector<std::uint8_t>(); }
  std::int64_t number(const std::string& name) const {
    return (*this)[name].to_vector<std::int64_t>()[0];
  }
  /// The picture from which the goldens were made: as decoded, or in planes like CIFAR's.
  Picture picture(bool in_planes) const {
    const Tensor golden = (*this)["picture"];
    Picture p;
    p.height = static_cast<int>(golden.shape(0));
    p.width = static_cast<int>(golden.shape(1));
    p.pixels = golden.to_vector<std::uint8_t>();
    if (!in_planes) return p;
    const Bytes points = p.pixels;
    p.planes = 3;
    p.depth = 1;
    for (std::size_t i = 0; i < points.size(); ++i) {
      p.pixels[i % 3 * (points.size() / 3) + i / 3] = points[i];
    }
    return p;
  }

 private:
  io::SafetensorsFile file_ = io::load_safetensors("tests/data/goldens/transforms.safetensors");
};

/// The pixels, channels interleaved.
Bytes interleaved(const Picture& p) {
  Bytes out(p.pixels.size());
  const std::size_t planes = static_cast<std::size_t>(p.planes), points = out.size() / planes;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = p.pixels[i % planes * points + i / planes];
  return out;
}

void expect_golden(const Picture& p, const Goldens& goldens, const std::string& name) {
  SCOPED_TRACE(name);
  const Tensor golden = goldens[name];
  EXPECT_EQ(Shape({p.height, p.width, p.channels()}), golden.shape());
  EXPECT_EQ(interleaved(p), golden.to_vector<std::uint8_t>());
}

TEST(Transforms, ResizeIsPillows) {
  const Goldens goldens;
  Generator generator;
  const std::vector<std::pair<int, int>> sizes = {{16, 16}, {80, 90}, {80, 20}, {37, 20}, {20, 53},
                                                  {1, 1},   {5, 7},   {36, 52}, {37, 53}, {20, 80}};
  for (const bool in_planes : {false, true}) {
    for (const auto& [h, w] : sizes) {
      Picture p = goldens.picture(in_planes);
      Resize(h, w)(p, generator);
      expect_golden(p, goldens, "resize." + std::to_string(h) + "." + std::to_string(w));
    }
  }
}

TEST(Transforms, RowsAreResizedAsEachAloneIs) {
  // Processing several points at once, as on some machines, makes no difference.
  Generator generator;
  for (const int rows : {4, 5, 9, 11}) {
    for (const int width : {1, 7, 30, 90}) {
      Picture all{.height = rows, .width = 31};
      for (int i = 0; i < rows * 31 * 3; ++i)
        all.pixels.push_back(static_cast<std::uint8_t>(generator.random32() & 255));
      Bytes expected;
      for (int y = 0; y < rows; ++y) {
        const auto row = all.pixels.begin() + y * 31 * 3;
        Picture one{.height = 1, .width = 31, .pixels = Bytes(row, row + 31 * 3)};
        Resize(1, width)(one, generator);
        expected.insert(expected.end(), one.pixels.begin(), one.pixels.end());
      }
      Resize(rows, width)(all, generator);
      EXPECT_EQ(all.pixels, expected) << rows << " rows, width " << width;
    }
  }
}

TEST(Transforms, ResizeOfTheShorterSideKeepsTheProportions) {
  Generator generator;
  const Goldens goldens;
  Picture wide = goldens.picture(false);  // 37 x 53
  Resize(20)(wide, generator);
  EXPECT_EQ(wide.height, 20);
  EXPECT_EQ(wide.width, 28);  // 20 * 53 / 37 = 28.6
  Picture high = goldens.picture(false);
  CenterCrop(37, 10)(high, generator);
  Resize(20)(high, generator);
  EXPECT_EQ(high.height, 74);
  EXPECT_EQ(high.width, 20);
}

TEST(Transforms, RandomOnesAreTorchvisions) {
  const Goldens goldens;
  for (const bool in_planes : {false, true}) {
    for (int seed = 0; seed < 4; ++seed) {
      const std::string number = "." + std::to_string(seed);
      Generator generator(static_cast<std::uint64_t>(seed));
      const auto next = [&] { return std::int64_t{generator.random32() % (1u << 20)}; };
      Picture p = goldens.picture(in_planes);
      RandomCrop(32, 4)(p, generator);
      expect_golden(p, goldens, "random_crop" + number);
      EXPECT_EQ(next(), goldens.number("random_crop" + number + ".next"));

      generator.manual_seed(static_cast<std::uint64_t>(seed));
      p = goldens.picture(in_planes);
      RandomResizedCrop(24)(p, generator);
      expect_golden(p, goldens, "random_resized_crop" + number);
      EXPECT_EQ(next(), goldens.number("random_resized_crop" + number + ".next"));

      generator.manual_seed(static_cast<std::uint64_t>(seed));
      p = goldens.picture(in_planes);
      RandomHorizontalFlip()(p, generator);
      expect_golden(p, goldens, "flip" + number);
    }
    Generator generator(0);
    Picture p = goldens.picture(in_planes);
    RandomResizedCrop(24, {0.9, 1.0}, {0.3, 0.4})(p, generator);
    expect_golden(p, goldens, "random_resized_crop.wide");
    p = goldens.picture(in_planes);
    RandomResizedCrop(24, {0.9, 1.0}, {3.0, 4.0})(p, generator);
    expect_golden(p, goldens, "random_resized_crop.flat");
  }
}

/// One plane of 3 x 4: 0 1 2 3 / 10 11 12 13 / 20 21 22 23.
Picture small() {
  return {.height = 3,
          .width = 4,
          .planes = 1,
          .depth = 1,
          .pixels = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}};
}

TEST(Transforms, CenterCropTakesTheMiddle) {
  Generator generator;
  Picture p = small();
  CenterCrop(1, 2)(p, generator);
  EXPECT_EQ(p.pixels, (Bytes{11, 12}));
  p = small();
  CenterCrop(2, 1)(p, generator);  // halves are rounded to even: row 0, column 2
  EXPECT_EQ(p.pixels, (Bytes{2, 12}));
}

TEST(Transforms, PadPutsBlackAround) {
  Generator generator;
  const std::string before = generator.state();
  Picture p = small();
  for (auto& value : p.pixels) value = static_cast<std::uint8_t>(value + 1);
  Pad(1)(p, generator);
  EXPECT_EQ(p.pixels, (Bytes{0,  0,  0, 0, 0,  0,  0,  1,  2, 3, 4, 0, 0, 11, 12,
                             13, 14, 0, 0, 21, 22, 23, 24, 0, 0, 0, 0, 0, 0,  0}));
  EXPECT_EQ(p.height, 5);
  EXPECT_EQ(p.width, 6);
  EXPECT_EQ(generator.state(), before);
}

TEST(Transforms, RandomCropReachesEveryPlaceAndPadsWithBlack) {
  Generator generator;
  std::vector<int> corners(25);
  for (int i = 0; i < 2000; ++i) {
    Picture p = small();
    for (auto& value : p.pixels) value = static_cast<std::uint8_t>(value + 1);
    RandomCrop(1, 1, 1)(p, generator);
    ++corners[p.pixels[0]];
  }
  // 5 x 6 places, 18 of them black; each is drawn about 67 times.
  EXPECT_NEAR(corners[0], 1200, 150);
  for (const int value : {1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24})
    EXPECT_NEAR(corners[value], 67, 40);
}

TEST(Transforms, FlipIsARatio) {
  Generator generator;
  int flips = 0;
  for (int i = 0; i < 1000; ++i) {
    Picture p = small();
    RandomHorizontalFlip(0.3)(p, generator);
    EXPECT_TRUE(p.pixels[0] == 0 || p.pixels[0] == 3);
    flips += p.pixels[0] == 3 ? 1 : 0;
  }
  EXPECT_NEAR(flips, 300, 60);  // 4 standard deviations
}

// This seed's first number is 0.7 in f32, which is less than 0.7 in f64.
TEST(Transforms, FlipComparesInF32) {
  constexpr std::uint64_t kSeed = 5254236;
  float drawn = 0;
  Generator(kSeed).uniform({&drawn, 1}, 0, 1);
  ASSERT_EQ(drawn, 0.7F);
  Generator generator(kSeed);
  Picture p = small();
  RandomHorizontalFlip(0.7)(p, generator);
  EXPECT_EQ(p.pixels[0], 0);
}

TEST(Transforms, ComposeAppliesInOrder) {
  Generator generator;
  Picture p = small();
  Compose({CenterCrop(1, 2), RandomHorizontalFlip(1)})(p, generator);
  EXPECT_EQ(p.pixels, (Bytes{12, 11}));
  EXPECT_EQ(p.height, 1);
  EXPECT_EQ(p.width, 2);
}

TEST(Transforms, RefuseWhatCannotBe) {
  Generator generator;
  Picture p = small();
  EXPECT_WEFT_ERROR(RandomCrop(0), InvalidArgument, "size of at least 1 x 1, got 0 x 0");
  EXPECT_WEFT_ERROR(RandomCrop(2, -1), InvalidArgument, "padding is -1");
  EXPECT_WEFT_ERROR(Pad(-1), InvalidArgument, "padding is -1");
  EXPECT_WEFT_ERROR(RandomCrop(6, 1)(p, generator), Shape,
                    "a picture of 3 x 4 with padding 1 has no window of 6 x 6");
  EXPECT_WEFT_ERROR(CenterCrop(3, 5)(p, generator), Shape,
                    "a picture of 3 x 4 has no window of 3 x 5");
  EXPECT_WEFT_ERROR(Resize(-1), InvalidArgument, "got -1 x -1");
  const int most = std::numeric_limits<int>::max();
  EXPECT_WEFT_ERROR(
      Pad{most}(p, generator), Shape,
      "a picture of 4294967297 x 4294967298 and 1 channels takes more than 2147483647");
  EXPECT_WEFT_ERROR(RandomCrop(2, most)(p, generator), Shape, "padding 2147483647 makes a side of");
  EXPECT_WEFT_ERROR(Resize{most}(p, generator), Shape, "takes more than 2147483647 bytes");
  EXPECT_WEFT_ERROR(Resize(most, 2)(p, generator), Shape, "takes more than 2147483647 bytes");
  EXPECT_WEFT_ERROR(RandomResizedCrop{most}(p, generator), Shape, "takes more than 2147483647");
  EXPECT_WEFT_ERROR(RandomHorizontalFlip(1.5), InvalidArgument, "p is a probability, got 1.5");
  EXPECT_WEFT_ERROR(RandomResizedCrop(8, {0, 1}), InvalidArgument, "scale needs 0 < low <= high");
  EXPECT_WEFT_ERROR(RandomResizedCrop(8, {0.5, 1}, {2, 1}), InvalidArgument,
                    "ratio needs 0 < low <= high, got 2 to 1");
}

TEST(ImageBatcher, NormalizesAsTorchvision) {
  const Goldens goldens;
  const Normalize normalize{{0.4914f, 0.4822f, 0.4465f}, {0.247f, 0.2435f, 0.2616f}};
  const Transform top_left = [](Picture& p, Generator&) {
    Bytes part;
    for (int y = 0; y < 4; ++y) {
      const auto row = p.pixels.begin() + static_cast<std::ptrdiff_t>(p.row_bytes()) * y;
      part.insert(part.end(), row, row + 5 * 3);
    }
    p.spare = part;
    p.take_spare(4, 5);
  };
  const auto load = [&](std::int64_t, Picture& p) {
    p = goldens.picture(false);
    return std::int64_t{7};
  };
  const std::vector<std::int64_t> one = {0};
  for (const DType dtype : {DType::f32, DType::f64}) {
    ImageBatch batch;
    const ImageBatcher batcher("test", {top_left, normalize, dtype}, 3);
    batcher.fill(one, 1, load, batch, HostMemory(), 0);
    EXPECT_EQ(batch.x.shape(), Shape({1, 3, 4, 5}));
    EXPECT_EQ(batch.label.to_vector<std::int64_t>(), std::vector<std::int64_t>{7});
    const auto want = goldens["normalized"].to_vector<float>();
    if (dtype == DType::f32) {
      EXPECT_EQ(batch.x.to_vector<float>(), want);  // the same three roundings
    } else {
      EXPECT_EQ(batch.x.to_vector<double>(), std::vector<double>(want.begin(), want.end()));
    }
  }
}

TEST(ImageBatcher, MakesPlanesOfPointsOfAnyDepth) {
  constexpr int kWidth = 37;
  for (const int depth : {1, 2, 3, 4}) {
    const ImageBatcher batcher("test", {}, depth);
    const auto load = [depth](std::int64_t, Picture& p) -> std::int64_t {
      p = {.height = 1, .width = kWidth, .planes = 1, .depth = depth};
      for (int i = 0; i < kWidth * depth; ++i) p.pixels.push_back(static_cast<std::uint8_t>(i));
      return 0;
    };
    ImageBatch batch;
    batcher.fill(std::vector<std::int64_t>{0}, 1, load, batch, HostMemory(), 0);
    const std::vector<float> values = batch.x.to_vector<float>();
    for (int c = 0; c < depth; ++c) {
      for (int x = 0; x < kWidth; ++x)
        EXPECT_EQ(values[static_cast<std::size_t>(c * kWidth + x)],
                  static_cast<float>(x * depth + c) / 255.0f);
    }
  }
}

TEST(ImageBatcher, RefusesWhatDoesNotFit) {
  EXPECT_WEFT_ERROR(ImageBatcher("test", {.dtype = DType::bf16}, 3), Dtype, "f32 or f64, got bf16");
  EXPECT_WEFT_ERROR(ImageBatcher("test", {.normalize = {{0.5f}, {1.0f}}}, 3), Shape,
                    "1 means and 1 standard deviations for images of 3 channels");
  EXPECT_WEFT_ERROR(ImageBatcher("test", {.normalize = {{0.5f}, {0.0f}}}, 1), InvalidArgument,
                    "a standard deviation is 0");
  const ImageBatcher batcher("test", {}, 1);
  const auto growing = [](std::int64_t index, Picture& p) {
    p = small();
    p.height = static_cast<int>(index + 1);
    return index;
  };
  ImageBatch batch;
  const std::vector<std::int64_t> some = {1, 1, 2}, none, outside = {3};
  EXPECT_WEFT_ERROR(batcher.fill(some, 3, growing, batch, HostMemory(), 0), Shape,
                    "image 2 is [1,3,4], the batch is of [1,2,4]");
  EXPECT_WEFT_ERROR(batcher.fill(none, 3, growing, batch, HostMemory(), 0), InvalidArgument,
                    "a batch of no images");
  EXPECT_WEFT_ERROR(batcher.fill(outside, 3, growing, batch, HostMemory(), 0), InvalidArgument,
                    "index 3 is outside the 3 images");
}

}  // namespace
}  // namespace weft::data
