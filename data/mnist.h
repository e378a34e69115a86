// MNIST and data sets in its format with ten classes: Fashion-MNIST, KMNIST, the digits of EMNIST.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/data/image_batch.h"

namespace weft::data {

/// The folder in which Debian's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistDir = "/usr/share/datasets/fashion-mnist";

struct MnistOptions {
  bool train = true;              ///< false: the test set
  DType dtype = DType::f32;       ///< of the images in a batch: f32 or f64
  Transform transform = nullptr;  ///< as ImageFormat's
  Normalize normalize = {};       ///< as ImageFormat's; one value
};

/// Grey images with labels 0 to 9, from a folder of IDX files, plain or gzipped:
/// {train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz].
/// Copies share the images. Safe to read from several threads.
class Mnist {
 public:
  /// x [B,1,H,W], or what the transform makes of it. Values are pixel / 255, so 0 to 1, then
  /// normalised; computed in f32 for both dtypes.
  using Batch = ImageBatch;

  /// Reads both files into memory (as u8). Throws Io for a missing folder or file, with the names
  /// it looked for, for damaged files (io/idx.h), for labels above 9, and for
  /// unequal numbers of images and labels. Throws what ImageBatcher throws for the format.
  explicit Mnist(const std::string& folder = kFashionMnistDir, const MnistOptions& options = {});

  std::int64_t size() const { return images_.shape(0); }
  /// Throws InvalidArgument for an index outside [0, size()) and, with a transform, for an empty
  /// list of indices. With a transform the epoch's seed is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed = 0) const;

  const Tensor& images() const { return images_; }  ///< u8 [N,H,W]
  const Tensor& labels() const { return labels_; }  ///< u8 [N]

 private:
  Tensor images_;
  Tensor labels_;
  ImageFormat format_;
  ImageBatcher batcher_;
};

}  // namespace weft::data
