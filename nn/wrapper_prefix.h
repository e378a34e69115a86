// What wrappers of PyTorch's put before the names of a state dict.
#pragma once

#include <string>

#include "weft/nn/named_tensors.h"

namespace weft::nn {

/// The prefix that all names have, as a wrapper of PyTorch's saves them; empty if there is none.
/// "module." is of DataParallel and DistributedDataParallel, "_orig_mod." of torch.compile,
/// "partitions.N." of torchgpipe's GPipe, where N may differ. It may be of several wrappers, as
/// "module._orig_mod.".
std::string wrapper_prefix(const NamedTensors& values);

/// The values without that prefix, for load_state_dict(). Of a prefix that the names of the model
/// have, too (`own`, its state dict), as those of one whose only child is called "module", only
/// what is more is taken.
NamedTensors strip_wrappers(NamedTensors values, const NamedTensors& own = {});

}  // namespace weft::nn
