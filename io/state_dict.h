// The weights of a model from a file of any kind: safetensors, or PyTorch's.
#pragma once

#include <string>

#include "weft/core/base/device.h"
#include "weft/io/named_tensors.h"

namespace weft::io {

struct StateDictOptions {
  Device device = Device();  ///< of the tensors, whichever they were saved from
};

/// Reads the state dict in FILE or FILE:KEY. The first bytes of the file, not its name, say which
/// format it has. KEY names one of several dicts, of which only that is read:
///   load_state_dict("checkpoint.pt:state_dict")           torch.save({"state_dict": ..., ...})
///   load_state_dict("checkpoint.pt:ema:model")            torch.save({"ema": {"model": ...}, ...})
///   load_state_dict("checkpoint.safetensors:model")       the tensors "model.NAME", as NAME
/// FILE may be an index of safetensors files, whose name ends with ".index.json".
/// Names stay as they are; nn::strip_wrappers() removes what PyTorch's wrappers put before them.
///
/// Throws as load_safetensors() and load_pickle(). Throws InvalidArgument for a file that holds
/// something else than named tensors; the text says which keys have a state dict. Beside the dict
/// that is asked for, a file of torch.save may hold values that weft lacks.
NamedTensors load_state_dict(const std::string& file, const StateDictOptions& options = {});

/// Whether the file begins like one of torch.save. Throws Io if it cannot be read.
bool is_pickle_file(const std::string& path);

}  // namespace weft::io
