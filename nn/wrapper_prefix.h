// The prefixes that PyTorch's wrappers put before the names of a state dict.
#pragma once

#include <string>

#include "weft/nn/named_tensors.h"

namespace weft::nn {

/// The prefix of a PyTorch wrapper that all names have; empty if there is none. "module." is that
/// of DataParallel and DistributedDataParallel, "_orig_mod." of torch.compile, "partitions.N." of
/// torchgpipe's GPipe, where N may differ. Several wrappers add up: "module._orig_mod.".
std::string wrapper_prefix(const NamedTensors& values);

/// The values without that prefix, for load_state_dict(). `own` is the state dict of the model: a
/// prefix that its names have, too, stays (as in a model whose only child is called "module").
NamedTensors strip_wrappers(NamedTensors values, const NamedTensors& own = {});

}  // namespace weft::nn
