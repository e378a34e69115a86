// Batch normalisation over the batches of all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/comm/process_group.h"
#include "weft/nn/batch_norm.h"

namespace weft::parallel {

/// nn::BatchNorm2d whose mean and variance, in training, are those of all ranks' batches together
/// (PyTorch's SyncBatchNorm): for ranks whose own batches are small. Names, buffers and results in
/// evaluation are BatchNorm2d's, so files fit both; batches may differ in size.
///
/// Each forward and each backward in training is a collective of 2 C numbers that has to be waited
/// for, so all ranks must run the same layers in the same order. Give it a group of its own, a
/// subgroup() of all ranks: in DistributedDataParallel's it would wait for buckets in backward.
/// Statistics are combined in f64.
class SyncBatchNorm2d : public nn::Module<SyncBatchNorm2d> {
 public:
  /// Throws InvalidArgument for channels < 1 and without a group.
  SyncBatchNorm2d(std::int64_t channels, std::shared_ptr<comm::ProcessGroup> group,
                  const nn::BatchNormOptions& options = {});
  /// x [N,C,H,W]. Throws Shape for another number of channels, and in training of one rank when x
  /// has a single value per channel.
  Tensor forward(const Tensor& x, const BatchNormEpilogue& then = {});

  nn::Parameter weight, bias;                                    ///< undefined without affine
  nn::Parameter running_mean, running_var, num_batches_tracked;  ///< undefined when not tracked

 private:
  std::int64_t channels_;
  std::shared_ptr<comm::ProcessGroup> group_;
  nn::BatchNormOptions options_;
};

}  // namespace weft::parallel
