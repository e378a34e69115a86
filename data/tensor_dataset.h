// TensorDataset: the rows of tensors as samples.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>

#include "weft/data/dataset.h"

namespace weft::data {

namespace detail {

/// Makes each tensor row-major, copying it if needed. Throws like TensorDataset's constructor.
void check_rows(std::span<Tensor> tensors);
/// y = these rows of x, which must be row-major. Throws InvalidArgument for a row outside x.
void copy_rows(const Tensor& x, std::span<const std::int64_t> rows, Tensor& y,
               const HostMemory& memory);

}  // namespace detail

/// torch.utils.data.TensorDataset: sample i is row i (along the first dimension) of each tensor.
///   data::DataLoader train(data::TensorDataset(x, y), {.batch_size = 32, .shuffle = true});
///   for (auto& [x, y] : train) ...
/// Row-major tensors are shared, not copied, so later writes to them are seen; other tensors are
/// copied once. Safe to read from several threads.
template <std::size_t N>
class TensorDataset {
 public:
  /// The chosen rows of each tensor, as new tensors [B, ...] without a tape.
  using Batch = std::array<Tensor, N>;

  /// Throws InvalidArgument for an undefined tensor, Shape for tensors without dimensions or with
  /// unequal numbers of rows, Device for a tensor that is not on the CPU (the loader brings batches
  /// to a device).
  template <std::convertible_to<Tensor>... Tensors>
    requires(sizeof...(Tensors) == N && N > 0)
  explicit TensorDataset(const Tensors&... tensors) : tensors_{tensors...} {
    detail::check_rows(tensors_);
  }

  std::int64_t size() const { return tensors_[0].shape(0); }
  const std::array<Tensor, N>& tensors() const { return tensors_; }
  /// Throws InvalidArgument for an index outside [0, size()).
  Batch get_batch(std::span<const std::int64_t> indices) const {
    Batch batch;
    get_batch(indices, batch, HostMemory());
    return batch;
  }
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const HostMemory& memory) const {
    for (std::size_t i = 0; i < N; ++i) detail::copy_rows(tensors_[i], indices, batch[i], memory);
  }

 private:
  std::array<Tensor, N> tensors_;
};

template <class... Tensors>
TensorDataset(const Tensors&...) -> TensorDataset<sizeof...(Tensors)>;

}  // namespace weft::data
