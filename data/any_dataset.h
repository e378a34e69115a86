// AnyDataset: any data set with batches of one type, chosen while the program runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "weft/data/dataset.h"

namespace weft::data {

/// Holds any data set whose batches are of this type. Copies share it. Its functions throw the
/// errors of the data set.
template <class BatchType>
class AnyDataset {
 public:
  using Batch = BatchType;

  template <Dataset Set>
    requires(std::is_same_v<BatchOf<Set>, Batch> && !std::is_same_v<Set, AnyDataset>)
  explicit AnyDataset(Set set) : set_(std::make_shared<const Holder<Set>>(std::move(set))) {}

  std::int64_t size() const { return set_->size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const { return set_->get_batch(indices); }
  /// The same, but fills `batch`, in memory of the given kind if the set can.
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
      read_batch(set, indices, batch, memory, epoch_seed);
    }
    Set set;
  };

  std::shared_ptr<const Any> set_;
};

}  // namespace weft::data
