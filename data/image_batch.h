// Shared by the image data sets: how their pictures become a batch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/data/batch.h"
#include "weft/data/transforms.h"

namespace weft::data {

/// How a picture becomes an image of the batch.
struct ImageFormat {
  /// Applied to each picture, in the loader's workers; use Compose for several. The generator that
  /// it gets is seeded with the epoch's seed + the sample's index.
  Transform transform = nullptr;
  Normalize normalize = {};  ///< applied to pixel / 255; one value per channel
  DType dtype = DType::f32;  ///< f32 or f64; computed in f32
};

/// Puts the pictures of one data set into batches.
class ImageBatcher {
 public:
  /// op: the name in error messages. Throws Dtype for a dtype other than f32 and f64, Shape unless
  /// mean and std have one value per channel (or none), InvalidArgument for a std of 0.
  ImageBatcher(const char* op, ImageFormat format, int channels);

  /// Writes a sample's picture and returns its label.
  using Load = std::function<std::int64_t(std::int64_t index, Picture& picture)>;

  /// Fills `batch` with these samples of a data set of `size` samples. Throws InvalidArgument for
  /// an empty list of indices and for an index outside [0, size), Shape when the pictures differ in
  /// size after the transform or have another number of channels, and what `load` and the transform
  /// throw.
  void fill(std::span<const std::int64_t> indices, std::int64_t size, const Load& load,
            ImageBatch& batch, const HostMemory& memory, std::uint64_t epoch_seed) const;

 private:
  template <class T>
  void write(const Picture& picture, T* out) const;

  const char* op_;
  ImageFormat format_;
  int channels_;
};

}  // namespace weft::data
