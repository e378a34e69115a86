#include "weft/data/fake.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "fake_data";
constexpr int kGrid = 4;

/// SplitMix64: one stream of numbers per state. A state is cheap to set up, unlike a Mersenne
/// Twister's.
class Numbers {
 public:
  explicit Numbers(std::uint64_t state) : state_(state) {}
  std::uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// A stream for each pair of seed and i.
Numbers numbers(std::uint64_t seed, std::uint64_t i) {
  return Numbers(Numbers(seed)() ^ Numbers(~i)());
}

// The streams of one seed: a pattern for each class, then the samples.
constexpr std::uint64_t kSamples = std::uint64_t{1} << 62;

Shape checked(const Shape& shape) {
  WEFT_CHECK(shape.size() == 3, Shape, kOp, "images need a shape [channels, height, width], got ",
             shape);
  std::int64_t left = kMostPictureBytes;
  for (const std::int64_t n : shape) {
    WEFT_CHECK(n > 0 && n <= left, Shape, kOp,
               "images need a shape [channels, height, width] of 1 ", "to ", kMostPictureBytes,
               " points, got ", shape);
    left /= n;
  }
  return shape;
}

}  // namespace

FakeData::FakeData(std::int64_t size, const Shape& shape, std::int64_t classes,
                   const FakeDataOptions& options)
    : size_(size),
      shape_(checked(shape)),
      classes_(classes),
      seed_(options.seed),
      first_(options.first),
      batcher_(kOp, options.format, static_cast<int>(shape[0])) {
  WEFT_CHECK(size >= 0, InvalidArgument, kOp, "size is ", size, ", needs at least 0");
  WEFT_CHECK(first_ >= 0, InvalidArgument, kOp, "first is ", first_, ", needs at least 0");
  WEFT_CHECK(classes >= 1, InvalidArgument, kOp, "classes is ", classes, ", needs at least 1");
}

std::int64_t FakeData::make(std::int64_t index, Picture& picture) const {
  picture.planes = static_cast<int>(shape_[0]);
  picture.height = static_cast<int>(shape_[1]);
  picture.width = static_cast<int>(shape_[2]);
  picture.depth = 1;
  picture.pixels.resize(static_cast<std::size_t>(numel(shape_)));

  Numbers sample = numbers(
      seed_, kSamples + static_cast<std::uint64_t>(first_) + static_cast<std::uint64_t>(index));
  const auto label = static_cast<std::int64_t>(sample() % static_cast<std::uint64_t>(classes_));
  Numbers pattern = numbers(seed_, static_cast<std::uint64_t>(label));
  std::uint8_t* out = picture.pixels.data();
  std::uint64_t noise = 0;
  int left = 0;  // bytes of noise
  for (int c = 0; c < picture.planes; ++c) {
    int field[kGrid][kGrid];
    for (auto& row : field) {
      for (int& value : row) value = 64 + static_cast<int>(pattern() % 128) - 64;
    }
    for (int y = 0; y < picture.height; ++y) {
      const auto& row = field[std::int64_t{y} * kGrid / picture.height];
      for (int x = 0; x < picture.width; ++x) {
        if (left == 0) {
          noise = sample();
          left = 8;
        }
        const int shade = row[std::int64_t{x} * kGrid / picture.width];
        *out++ = static_cast<std::uint8_t>(shade + static_cast<int>(noise % 128));
        noise >>= 8;
        --left;
      }
    }
  }
  return label;
}

FakeData::Batch FakeData::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), default_generator().random64());
  return batch;
}

void FakeData::get_batch(std::span<const std::int64_t> indices, Batch& batch,
                         const HostMemory& memory, std::uint64_t epoch_seed) const {
  const auto load = [this](std::int64_t index, Picture& picture) { return make(index, picture); };
  batcher_.fill(indices, size_, load, batch, memory, epoch_seed);
}

}  // namespace weft::data
