#include "weft/data/image_batch.h"

#include <algorithm>
#include <utility>

#include "weft/core/runtime/thread_local.h"
#include "weft/data/pixels.h"

namespace weft::data {
namespace {

// Memory that a thread keeps for its next batch.
struct Spare {
  std::vector<std::uint8_t> planes;
  Picture picture;
  Generator generator;
};
constinit ThreadLocal<Spare> spare;

}  // namespace

ImageBatcher::ImageBatcher(const char* op, ImageFormat format, int channels)
    : op_(op), format_(std::move(format)), channels_(channels) {
  WEFT_CHECK(format_.dtype == DType::f32 || format_.dtype == DType::f64, Dtype, op_,
             "images come as f32 or f64, got ", format_.dtype);
  const auto& [mean, std] = format_.normalize;
  const auto values = static_cast<std::size_t>(channels);
  WEFT_CHECK((mean.empty() && std.empty()) || (mean.size() == values && std.size() == values),
             Shape, op_, "normalize: ", mean.size(), " means and ", std.size(),
             " standard deviations for images of ", channels, " channels");
  WEFT_CHECK(std::ranges::none_of(std, [](float value) { return value == 0; }), InvalidArgument,
             op_, "normalize: a standard deviation is 0");
}

template <class T>
void ImageBatcher::write(const Picture& picture, T* out) const {
  std::vector<std::uint8_t>& planes = spare->planes;
  const std::int64_t points = std::int64_t{picture.height} * picture.width;
  const std::uint8_t* in = picture.pixels.data();
  if (picture.depth != 1) {
    planes.resize(static_cast<std::size_t>(points * picture.depth));
    split_channels(in, planes.data(), points, picture.depth);
    in = planes.data();
  }
  for (int c = 0; c < channels_; ++c, in += points, out += points) {
    const bool plain = format_.normalize.mean.empty();
    const auto at = static_cast<std::size_t>(c);
    scale_pixels(in, out, points, plain ? 0 : format_.normalize.mean[at],
                 plain ? 1 : format_.normalize.std[at]);
  }
}

void ImageBatcher::fill(std::span<const std::int64_t> indices, std::int64_t size, const Load& load,
                        ImageBatch& batch, const HostMemory& memory,
                        std::uint64_t epoch_seed) const {
  WEFT_CHECK(!indices.empty(), InvalidArgument, op_, "a batch of no images");
  for (const std::int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < size, InvalidArgument, op_, "index ", index,
               " is outside the ", size, " images");
  }
  Picture& picture = spare->picture;
  Generator& generator = spare->generator;
  const auto count = static_cast<std::int64_t>(indices.size());
  memory.prepare(batch.label, {count}, DType::i64);
  std::int64_t* label = batch.label.data<std::int64_t>();
  std::int64_t height = 0, width = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = indices[static_cast<std::size_t>(i)];
    label[i] = load(index, picture);
    if (format_.transform) {
      generator.manual_seed(epoch_seed + static_cast<std::uint64_t>(index));
      format_.transform(picture, generator);
    }
    if (i == 0) {
      height = picture.height;
      width = picture.width;
      memory.prepare(batch.x, {count, channels_, height, width}, format_.dtype);
    }
    WEFT_CHECK(
        picture.channels() == channels_ && picture.height == height && picture.width == width,
        Shape, op_, "image ", index, " is [", picture.channels(), ',', picture.height, ',',
        picture.width, "], the batch is of [", channels_, ',', height, ',', width,
        "]: transforms must give all images one size (Resize(h, w), CenterCrop, "
        "RandomResizedCrop)");
    const std::int64_t values = channels_ * height * width;
    if (format_.dtype == DType::f32) {
      write(picture, batch.x.data<float>() + i * values);
    } else {
      write(picture, batch.x.data<double>() + i * values);
    }
  }
}

}  // namespace weft::data
