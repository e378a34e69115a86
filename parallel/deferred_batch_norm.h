// Batch normalisation in a pipeline, whose running statistics follow whole batches.
#pragma once

#include "weft/nn/module.h"

namespace weft::parallel {

/// Makes the running statistics of every nn::BatchNorm2d of `module`, at any depth, follow once per
/// `chunks` forwards in training, the micro-batches of a batch, by the mean and the biased variance
/// of all their values together: torchgpipe's DeferredBatchNorm (batchnorm.py), so that they are
/// those of training without a pipeline. What is normalised is still each micro-batch by itself. A
/// forward that is only run again for a backward does not count.
///
/// A batch of fewer micro-batches, an epoch's last, is counted together with the next ones: give
/// the loader drop_last. Parameters, buffers, names, files and evaluation stay. Throws
/// InvalidArgument for chunks < 1.
void convert_deferred_batch_norm(nn::ModuleBase& module, int chunks);

}  // namespace weft::parallel
