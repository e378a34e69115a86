// ImageSet: any of the image sets, chosen while the program runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "weft/data/image_batch.h"

namespace weft::data {

/// Holds a set whose batches are ImageBatches: Cifar10, FakeData, ImageFolder, one of your own.
///   data::ImageSet set = fake ? data::ImageSet(data::FakeData(...))
///                             : data::ImageSet(data::Cifar10(dir));
/// Copies share it. What its functions throw is what the set's throw.
class ImageSet {
 public:
  using Batch = ImageBatch;

  template <class Set>
    requires(!std::is_same_v<std::remove_cvref_t<Set>, ImageSet>)
  explicit ImageSet(Set set) : set_(std::make_shared<const Holder<Set>>(std::move(set))) {}

  std::int64_t size() const { return set_->size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const { return set_->get_batch(indices); }
  /// The same into `batch`, in the given memory.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const {
    set_->get_batch(indices, batch, memory, epoch_seed);
  }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual std::int64_t size() const = 0;
    virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
    virtual void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                           const HostMemory& memory, std::uint64_t epoch_seed) const = 0;
  };
  template <class Set>
  struct Holder final : Any {
    explicit Holder(Set s) : set(std::move(s)) {}
    std::int64_t size() const override { return set.size(); }
    Batch get_batch(std::span<const std::int64_t> indices) const override {
      return set.get_batch(indices);
    }
    void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                   std::uint64_t epoch_seed) const override {
      if constexpr (requires { set.get_batch(indices, batch, memory, epoch_seed); }) {
        set.get_batch(indices, batch, memory, epoch_seed);
      } else {
        set.get_batch(indices, batch, memory);  // nothing in it is random
      }
    }
    Set set;
  };

  std::shared_ptr<const Any> set_;
};

}  // namespace weft::data
