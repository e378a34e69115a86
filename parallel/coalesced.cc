#include "weft/parallel/coalesced.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

std::int64_t bytes_of(const Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
}

}  // namespace

Coalesced::Coalesced(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  constexpr std::int64_t kAlignment = 64;
  std::vector<std::int64_t> starts;
  std::int64_t bytes = 0;
  for (const Tensor& x : tensors_) {
    starts.push_back(bytes);
    bytes += (bytes_of(x) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (tensors_.empty()) return;
  // The gaps between tensors are sent, too: zeros, so that no undefined bytes leave the process.
  memory_ = zeros({bytes}, {DType::u8, tensors_[0].device()});
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& x = tensors_[i];
    parts_.push_back(as_strided(memory_.storage(), x.dtype(), x.shape(),
                                contiguous_strides(x.shape()),
                                starts[i] / static_cast<std::int64_t>(size_of(x.dtype()))));
  }
}

void Coalesced::broadcast(comm::ProcessGroup& group, int root) {
  if (tensors_.empty()) return;
  start(group, root).wait();
  finish(group, root);
}

comm::Work Coalesced::start(comm::ProcessGroup& group, int root) {
  const bool is_root = group.rank() == root;
  for (std::size_t i = 0; is_root && i < parts_.size(); ++i) raw::copy_(parts_[i], tensors_[i]);
  return group.broadcast(memory_, root);
}

void Coalesced::finish(const comm::ProcessGroup& group, int root) {
  const bool is_root = group.rank() == root;
  for (std::size_t i = 0; !is_root && i < parts_.size(); ++i) raw::copy_(tensors_[i], parts_[i]);
}

void broadcast_coalesced(comm::ProcessGroup& group, std::span<const Tensor> tensors, int root,
                         std::int64_t limit) {
  std::vector<Tensor> together;
  std::int64_t bytes = 0;
  const auto send = [&] {
    Coalesced(std::exchange(together, {})).broadcast(group, root);
    bytes = 0;
  };
  for (const Tensor& x : tensors) {
    if (bytes_of(x) > limit && x.is_contiguous()) {
      group.broadcast(x, root).wait();
      continue;
    }
    const bool fits = bytes + bytes_of(x) <= limit;
    if (!together.empty() && (!fits || !(together[0].device() == x.device()))) send();
    together.push_back(x);
    bytes += bytes_of(x);
  }
  send();
}

}  // namespace weft::parallel
