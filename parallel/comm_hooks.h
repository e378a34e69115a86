// Communication hooks: other ways for DistributedDataParallel to average a bucket of gradients than
// the plain all-reduce.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "weft/comm/group/process_group.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// A bucket's reduction in progress; one made by default is already complete.
struct Reduction {
  Reduction() = default;
  /// Complete when `w` is done and then `after`, if it is given, has run. `after` runs on the
  /// thread that called backward, and copies the result to the gradients.
  Reduction(comm::Work w, std::function<void()> after = {})
      : work(std::move(w)), finish(std::move(after)) {}

  std::optional<comm::Work> work;
  std::function<void()> finish;
};

/// Starts to replace a bucket's gradients, one dense tensor [n], by the reduced ones. Called during
/// backward for each bucket, in an order that is the same on all ranks; must not wait for long. The
/// gradients have not been divided: for a mean the hook must divide.
using CommHook = std::function<Reduction(comm::ProcessGroup& group, const Tensor& gradients)>;

/// The mean, sent as bf16: half the bytes of f32, 8 bits of each gradient (PyTorch's
/// bf16_compress_hook). Each rank's part is rounded after the division, and the sum again.
Reduction bf16_compress(comm::ProcessGroup& group, const Tensor& gradients);
/// As bf16_compress(), but without the division: the sum.
Reduction bf16_sum(comm::ProcessGroup& group, const Tensor& gradients);

}  // namespace weft::parallel
