// A data set in the memory of a device, from which batches are gathered there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "weft/data/loader_core.h"
#include "weft/tensor/tensor.h"

namespace weft::data {

/// What DataLoaderOptions::device_resident needs besides the data set itself.
class ResidentSet {
 public:
  ResidentSet(const DataLoaderOptions& options, std::int64_t size)
      : device_(options.device), limit_(options.device_resident_limit), size_(size) {}

  /// Reads the tensors of these samples, one row per sample, with the given seed. Pass 0 and pass 1
  /// have separate memory.
  using Read = std::function<std::vector<Tensor>(std::span<const std::int64_t> indices,
                                                 std::uint64_t seed, int pass)>;
  /// Copies all samples to the device. Throws InvalidArgument for a data set above the limit, for
  /// one whose samples change with the seed, and for tensors without one row per sample.
  void fill(const Read& read);

  /// Copies the epoch's order to the device.
  void start_epoch(std::span<const std::int64_t> order);
  /// These indices as a tensor on the device; `indices` is a part of `order`.
  Tensor rows(std::span<const std::int64_t> order, std::span<const std::int64_t> indices) const;
  /// These rows of the set's i-th tensor, on the current stream; the host does not wait.
  Tensor gather(std::size_t i, const Tensor& rows) const;

 private:
  const Device device_;
  const std::int64_t limit_;
  const std::int64_t size_;
  std::vector<Tensor> tensors_;
  Tensor order_;
};

}  // namespace weft::data
