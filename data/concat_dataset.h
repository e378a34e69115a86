// ConcatDataset: data sets joined one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/data/any_dataset.h"

namespace weft::data {

namespace detail {

/// The part of a batch that comes from one of the data sets.
struct Share {
  std::size_t set;
  std::vector<std::int64_t> indices;  ///< in that data set
  std::vector<std::int64_t> rows;     ///< row in the batch of each index
};
/// ends[i]: the number of samples in the sets 0 to i. The shares come in the order of the sets; for
/// no indices there is one empty share of the first set. Throws InvalidArgument for an index
/// outside [0, ends.back()).
std::vector<Share> shares_of(std::span<const std::int64_t> ends,
                             std::span<const std::int64_t> indices);

/// Builds the tensors of a batch from the tensors of its shares.
class RowJoiner {
 public:
  /// For a batch of `rows` rows in `memory`. The memory of `tensors` may be used again.
  RowJoiner(std::int64_t rows, const HostMemory& memory, std::vector<Tensor> tensors)
      : rows_(rows), memory_(memory), tensors_(std::move(tensors)) {}
  /// Copies the rows of one share. Throws Shape for tensors without a row for each sample, and when
  /// their number, dtype or row shape differs from the shares before.
  void add(std::span<const Tensor> part, const Share& share);
  std::vector<Tensor>& tensors() { return tensors_; }

 private:
  const std::int64_t rows_;
  const HostMemory& memory_;
  std::vector<Tensor> tensors_;
  bool first_ = true;
};

}  // namespace detail

/// torch.utils.data.ConcatDataset: the samples of the first set, then those of the second, and so
/// on. The sets may be of any types whose batches have one type.
///   data::DataLoader train(data::ConcatDataset(data::Mnist(dir), data::ImageFolder(other)), ...);
/// A batch with samples of several sets is joined from a batch of each. Each of its tensors needs
/// one row per sample, with the same dtype and row shape in all sets. Members that are no tensors
/// come from the first of these sets. Random transforms of sample i of a set follow from the
/// epoch's seed + i + the samples before the set, so no two samples of whole sets draw alike; a
/// Subset's i is that of its data set, so its samples may draw like those of another member. Copies
/// share the sets. As safe to read from several threads as the sets are. The constructors throw
/// Shape for more than 2^63 - 1 samples.
template <class BatchType>
class ConcatDataset {
 public:
  using Batch = BatchType;

  template <Dataset... Sets>
    requires(sizeof...(Sets) > 0 && (std::is_same_v<BatchOf<Sets>, Batch> && ...))
  explicit ConcatDataset(Sets... sets) {
    (add(AnyDataset<Batch>(std::move(sets))), ...);
  }
  /// Throws InvalidArgument for an empty vector.
  template <Dataset Set>
    requires std::is_same_v<BatchOf<Set>, Batch>
  explicit ConcatDataset(std::vector<Set> sets) {
    WEFT_CHECK(!sets.empty(), InvalidArgument, "concat_dataset", "got no data set");
    for (Set& set : sets) add(AnyDataset<Batch>(std::move(set)));
  }

  std::int64_t size() const { return ends_.back(); }
  /// Throws InvalidArgument for an index outside [0, size()), Shape for rows that do not fit
  /// together, and what the sets throw.
  Batch get_batch(std::span<const std::int64_t> indices) const {
    Batch batch;
    join(indices, batch, HostMemory(),
         [&](const detail::Share& share, Batch& part, const HostMemory&) {
           part = sets_[share.set].get_batch(share.indices);
         });
    return batch;
  }
  /// The same, but fills `batch`, in memory of the given kind if the sets can.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const {
    join(indices, batch, memory,
         [&](const detail::Share& share, Batch& part, const HostMemory& of_part) {
           const std::int64_t before = share.set == 0 ? 0 : ends_[share.set - 1];
           sets_[share.set].get_batch(share.indices, part, of_part,
                                      epoch_seed + static_cast<std::uint64_t>(before));
         });
  }

 private:
  void add(AnyDataset<Batch> set) {
    ends_.push_back(checked_add(ends_.empty() ? 0 : ends_.back(), set.size(), "concat_dataset"));
    sets_.push_back(std::move(set));
  }

  template <class Read>
  void join(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
            const Read& read) const {
    const std::vector<detail::Share> shares = detail::shares_of(ends_, indices);
    if (shares.size() == 1) return read(shares[0], batch, memory);
    std::vector<Tensor> tensors;
    for_each_tensor(batch, [&](Tensor& x) { tensors.push_back(std::move(x)); });
    detail::RowJoiner joiner(std::ssize(indices), memory, std::move(tensors));
    for (const detail::Share& share : shares) {
      Batch part;
      read(share, part, HostMemory());  // rows are copied from here: need not be pinned
      tensors.clear();
      for_each_tensor(part, [&](Tensor& x) { tensors.push_back(std::move(x)); });
      joiner.add(tensors, share);
      if (&share == &shares[0]) batch = std::move(part);
    }
    auto joined = joiner.tensors().begin();
    for_each_tensor(batch, [&](Tensor& x) { x = std::move(*joined++); });
  }

  std::vector<AnyDataset<Batch>> sets_;
  std::vector<std::int64_t> ends_;
};

template <Dataset First, Dataset... Rest>
ConcatDataset(First, Rest...) -> ConcatDataset<BatchOf<First>>;
template <Dataset Set>
ConcatDataset(std::vector<Set>) -> ConcatDataset<BatchOf<Set>>;

}  // namespace weft::data
