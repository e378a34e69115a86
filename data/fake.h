// Made-up images, where there are no real ones.
#pragma once

#include <cstdint>
#include <span>

#include "weft/data/image_batch.h"

namespace weft::data {

struct FakeDataOptions {
  std::uint64_t seed = 0;
  std::int64_t first = 0;  ///< sample i of this set is sample first + i of the seed's endless row
  ImageFormat format = {};
};

/// `size` images of one shape with labels, for trials without a data set, as torchvision's
/// FakeData; here they can be learned, too. Sample i follows from the seed and i alone, on every
/// machine, whatever the order and the workers:
///   label(i)      one of `classes`, each as likely
///   image(i) = pattern(label(i)) + noise(i), both uniform, in bytes
/// A class's pattern is 64 to 191, one value for each channel and each field of a 4 x 4 grid; noise
/// is -64 to 63 for every point. Patterns follow from the seed: a test set is made with the same
/// seed and an offset, `{.first = size of the training set}`. Nothing is kept in memory. Safe to
/// read from several threads.
class FakeData {
 public:
  /// x [B,C,H,W], or what the transform makes of it.
  using Batch = ImageBatch;

  /// shape [C,H,W]. Throws Shape for another one or an empty one, InvalidArgument for a negative
  /// size or first and for less than one class; what ImageBatcher throws for the format.
  FakeData(std::int64_t size, const Shape& shape, std::int64_t classes,
           const FakeDataOptions& options = {});

  std::int64_t size() const { return size_; }
  std::int64_t classes() const { return classes_; }
  /// Throws InvalidArgument for no index and for one outside [0, size()). The epoch's seed, for
  /// random transforms, is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same into `batch`, in the given memory.
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
