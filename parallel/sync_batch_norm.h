// Batch normalisation with the statistics of all ranks' batches together.
#pragma once

#include <cstdint>
#include <memory>

#include "weft/comm/group/process_group.h"
#include "weft/nn/batch_norm.h"

namespace weft::parallel {

/// Makes every nn::BatchNorm1d and nn::BatchNorm2d of `module`, at any depth, use in training the
/// mean and variance of all ranks' batches together (PyTorch's
/// SyncBatchNorm.convert_sync_batchnorm): for ranks whose own batches are small. Parameters,
/// buffers, names, files, modes, handles and results in evaluation do not change; batches may
/// differ in size. A second call sets another group. Clones made later are converted, too.
///   parallel::convert_sync_batchnorm(model, group->duplicate());
///
/// Each forward and each backward in training waits for a collective of 2 C numbers, so all ranks
/// must run the same layers in the same order. Give it its own group, a duplicate(): in the group
/// of DistributedDataParallel it would wait for buckets in backward. Statistics are combined in
/// f64. In a group of one rank nothing changes.
///
/// Throws InvalidArgument without a group. A forward in training throws Shape on every rank if all
/// of them together have one value per channel, as nn::BatchNorm2d does in one process.
void convert_sync_batchnorm(nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group);

/// An nn::BatchNorm2d that is created converted.
class SyncBatchNorm2d : public nn::BatchNorm2d {
 public:
  /// Throws InvalidArgument for channels < 1 and without a group.
  SyncBatchNorm2d(std::int64_t channels, std::shared_ptr<comm::ProcessGroup> group,
                  const nn::BatchNormOptions& options = {});
};

}  // namespace weft::parallel
