// What the image sets have in common: how their pictures become a batch.
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

/// From a picture to the images of a batch.
struct ImageFormat {
  /// Applied to each picture, in the loader's workers; several in a Compose. Its generator is
  /// seeded with the epoch's seed + the sample's index.
  Transform transform = nullptr;
  Normalize normalize = {};  ///< of the pixel divided by 255; one value per channel
  DType dtype = DType::f32;  ///< f32 or f64, computed in f32
};

/// Puts the pictures of one set into batches.
class ImageBatcher {
 public:
  /// `op` stands in messages. Throws Dtype for another dtype than f32 and f64, Shape when mean and
  /// std have not one value for each channel, InvalidArgument for a std of 0.
  ImageBatcher(const char* op, ImageFormat format, int channels);

  /// Writes the picture of a sample and returns its label.
  using Load = std::function<std::int64_t(std::int64_t index, Picture& picture)>;

  /// Fills `batch`. Throws InvalidArgument for no index and for one outside [0, size), Shape when
  /// the pictures have not all the same size after the transform, and what `load` throws.
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
