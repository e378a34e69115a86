// Batch normalisation for pipelines, with running statistics of whole batches.
#pragma once

#include "weft/nn/module.h"

namespace weft::parallel {

/// Changes every nn::BatchNorm1d and nn::BatchNorm2d of `module`, at any depth: in training it
/// updates its running statistics once per `chunks` forwards, the micro-batches of a batch, by the
/// mean and the biased variance of all their values together. So the running statistics are those
/// of training without a pipeline: torchgpipe's DeferredBatchNorm (batchnorm.py). Each micro-batch
/// is still normalised by itself. A forward that is recomputed for a backward does not count.
///
/// A batch of fewer micro-batches, as an epoch's last may be, would be counted together with the
/// next ones: give the loader drop_last. After a batch that failed in the middle, call this again,
/// which forgets what was counted. Parameters, buffers, names, files and evaluation do not
/// change. Throws InvalidArgument for chunks < 1.
void convert_deferred_batch_norm(nn::ModuleBase& module, int chunks);

}  // namespace weft::parallel
