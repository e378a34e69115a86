// Batch normalisation over the batches of all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/comm/process_group.h"
#include "weft/nn/batch_norm.h"

namespace weft::parallel {

/// Makes every nn::BatchNorm2d of `module`, at any depth, take in training the mean and variance of
/// all ranks' batches together (PyTorch's SyncBatchNorm.convert_sync_batchnorm): for ranks whose
/// own batches are small. Parameters, buffers, names, files, modes, handles and results in
/// evaluation stay; batches may differ in size. A second call gives them another group. Clones that
/// are made later are converted too.
///   parallel::convert_sync_batchnorm(model, group->duplicate());
///
/// Each forward and each backward in training is a collective of 2 C numbers that has to be waited
/// for, so all ranks must run the same layers in the same order. Give it a group of its own, a
/// duplicate(): in DistributedDataParallel's it would wait for buckets in backward. Statistics are
/// combined in f64. In a group of one rank nothing changes.
///
/// Throws InvalidArgument without a group.
void convert_sync_batchnorm(nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group);

/// An nn::BatchNorm2d that is converted from the first.
class SyncBatchNorm2d : public nn::BatchNorm2d {
 public:
  /// Throws InvalidArgument for channels < 1 and without a group.
  SyncBatchNorm2d(std::int64_t channels, std::shared_ptr<comm::ProcessGroup> group,
                  const nn::BatchNormOptions& options = {});
};

}  // namespace weft::parallel
