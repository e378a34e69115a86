// Made-up images, for use without a real data set.
#pragma once

#include <cstdint>
#include <span>

#include "weft/data/image_batch.h"

namespace weft::data {

struct FakeDataOptions {
  std::uint64_t seed = 0;
  std::int64_t first = 0;  ///< sample i is sample first + i of the seed's endless sequence
  ImageFormat format = {};
};

/// `size` images of one shape with labels, for trials without a data set, as torchvision's
/// FakeData; but a model can learn these. Sample i depends on the seed, first + i, the shape and
/// the number of classes only: it is the same on every machine, in any order and with any number of
/// workers.
///   label(i)      one of `classes`, all equally likely
///   image(i) = pattern(label(i)) + noise(i), both uniform, in bytes
/// The pattern of a class has values from 64 to 191, one for each channel and each field of a 4 x 4
/// grid; the noise of a pixel is -64 to 63. The patterns depend on the seed, so make the test set
/// with the same seed and an offset, `{.first = size of the training set}`. No image is kept in
/// memory. Safe to read from several threads.
class FakeData {
 public:
  /// x [B,C,H,W], or what the transform makes of it.
  using Batch = ImageBatch;

  /// shape: [C,H,W]. Throws Shape unless it has three dimensions, none of them 0, and for an image
  /// of more than 2^31 - 1 bytes; InvalidArgument
  /// for a negative size or first and for less than one class; and what ImageBatcher throws for the
  /// format.
  FakeData(std::int64_t size, const Shape& shape, std::int64_t classes,
           const FakeDataOptions& options = {});

  std::int64_t size() const { return size_; }
  std::int64_t classes() const { return classes_; }
  /// Throws InvalidArgument for an empty list of indices and for an index outside [0, size()). The
  /// epoch's seed, for random transforms, is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const;

 private:
  std::int64_t make(std::int64_t index, Picture& picture) const;

  std::int64_t size_;
  Shape shape_;
  std::int64_t classes_;
  std::uint64_t seed_;
  std::int64_t first_;
  ImageBatcher batcher_;
};

}  // namespace weft::data
