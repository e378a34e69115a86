#include "weft/data/mnist.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "weft/data/pixels.h"
#include "weft/io/idx.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "mnist";
constexpr int kClasses = 10;

/// `folder`/`name`, plain or gzipped. Throws Io with the names that were looked for.
std::string find_file(const std::string& folder, const std::string& name) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  if (std::filesystem::exists(path, error)) return path.string();
  const std::string zipped = path.string() + ".gz";
  if (std::filesystem::exists(zipped, error)) return zipped;
  const bool has_folder = std::filesystem::is_directory(folder, error);
  WEFT_THROW(Io, kOp, folder, has_folder ? ": no file " : ": no such folder; looked for ", name,
             " or ", name, ".gz in it; give a folder of MNIST's IDX files");
}

template <class T>
void fill_images(std::span<const std::int64_t> indices, const std::uint8_t* images,
                 std::int64_t pixels, const Normalize& normalize, T* out) {
  // A hardware prefetcher cannot follow a shuffled order: fetch two images ahead.
  constexpr std::size_t kAhead = 2;
  constexpr std::int64_t kCacheLine = 64;
  const float mean = normalize.mean.empty() ? 0 : normalize.mean[0];
  const float std = normalize.std.empty() ? 1 : normalize.std[0];
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (i + kAhead < indices.size()) {
      const std::uint8_t* next = images + indices[i + kAhead] * pixels;
      for (std::int64_t at = 0; at < pixels; at += kCacheLine) __builtin_prefetch(next + at);
    }
    scale_pixels(images + indices[i] * pixels, out, pixels, mean, std);
    out += pixels;
  }
}

}  // namespace

Mnist::Mnist(const std::string& folder, const MnistOptions& options)
    : format_{options.transform, options.normalize, options.dtype}, batcher_(kOp, format_, 1) {
  const std::string prefix = options.train ? "train" : "t10k";
  const std::string image_file = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::string label_file = find_file(folder, prefix + "-labels-idx1-ubyte");
  images_ = io::read_idx(image_file);
  WEFT_CHECK(images_.dim() == 3 && images_.numel() > 0, Io, kOp, image_file,
             ": images need the shape [count, height, width], got ", images_.shape());
  labels_ = io::read_idx(label_file);
  WEFT_CHECK(labels_.dim() == 1, Io, kOp, label_file, ": labels need the shape [count], got ",
             labels_.shape());
  WEFT_CHECK(labels_.shape(0) == images_.shape(0), Io, kOp, images_.shape(0), " images in ",
             image_file, ", but ", labels_.shape(0), " labels in ", label_file);
  const std::uint8_t* label = labels_.data<std::uint8_t>();
  const std::uint8_t* bad =
      std::find_if(label, label + size(), [](std::uint8_t value) { return value >= kClasses; });
  WEFT_CHECK(bad == label + size(), Io, kOp, label_file, ": label ", int{*bad}, " of image ",
             bad - label, " is not in 0 to ", kClasses - 1);
}

Mnist::Batch Mnist::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), format_.transform ? default_generator().random64() : 0);
  return batch;
}

void Mnist::get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                      std::uint64_t epoch_seed) const {
  if (format_.transform) {
    // A capture of only `this` fits into a std::function without heap memory.
    const auto load = [this](std::int64_t index, Picture& picture) -> std::int64_t {
      picture.height = static_cast<int>(images_.shape(1));
      picture.width = static_cast<int>(images_.shape(2));
      picture.planes = picture.depth = 1;
      const std::size_t bytes = picture.plane_bytes();
      const std::uint8_t* image =
          images_.data<std::uint8_t>() + static_cast<std::size_t>(index) * bytes;
      picture.pixels.assign(image, image + bytes);
      return labels_.data<std::uint8_t>()[index];
    };
    return batcher_.fill(indices, size(), load, batch, memory, epoch_seed);
  }
  // Directly from the set into the batch.
  for (const std::int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < size(), InvalidArgument, kOp, "index ", index,
               " is outside the ", size(), " images");
  }
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t height = images_.shape(1), width = images_.shape(2);
  memory.prepare(batch.x, {count, 1, height, width}, format_.dtype);
  memory.prepare(batch.label, {count}, DType::i64);
  const std::uint8_t* images = images_.data<std::uint8_t>();
  if (format_.dtype == DType::f32) {
    fill_images(indices, images, height * width, format_.normalize, batch.x.data<float>());
  } else {
    fill_images(indices, images, height * width, format_.normalize, batch.x.data<double>());
  }
  const std::uint8_t* labels = labels_.data<std::uint8_t>();
  std::int64_t* label = batch.label.data<std::int64_t>();
  for (const std::int64_t index : indices) *label++ = labels[index];
}

}  // namespace weft::data
