// Communication hooks: how DistributedDataParallel averages a bucket of gradients, where it is not
// to be the plain all-reduce.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "weft/comm/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A bucket's reduction under way, or one that is over (the default).
struct Reduction {
  Reduction() = default;
  /// Over when `after`, if there is one, has run, when `w` is done and on the thread that called
  /// backward: it brings the result to where the gradients are.
  Reduction(comm::Work w, std::function<void()> after = {})
      : work(std::move(w)), finish(std::move(after)) {}

  std::optional<comm::Work> work;
  std::function<void()> finish;
};

/// Starts to replace a bucket's gradients, one dense tensor [n], by what the ranks shall have in
/// their place. Called for the buckets in their order, the same on all ranks, during backward; may
/// not wait for long. Nothing has been divided: a mean is the hook's own business.
using CommHook = std::function<Reduction(comm::ProcessGroup& group, const Tensor& gradients)>;

/// The mean, by way of bf16: half the bytes of f32, 8 bits of each gradient (PyTorch's
/// bf16_compress_hook). Each rank's part is rounded after the division and the sum again.
Reduction bf16_compress(comm::ProcessGroup& group, const Tensor& gradients);
/// The same without the division: the sum.
Reduction bf16_sum(comm::ProcessGroup& group, const Tensor& gradients);

}  // namespace weft::parallel
