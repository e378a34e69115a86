// That all ranks have built the same model.
#pragma once

#include <string>

#include "weft/comm/process_group.h"
#include "weft/nn/module.h"

namespace weft::parallel {

/// Compares with rank 0: options (any text, on one line), then name, shape, dtype, strides and
/// whether it is trained of each parameter and buffer. Throws InvalidArgument on every rank when
/// one differs, naming the first such rank and the first difference.
void check_same_model(comm::ProcessGroup& group, const nn::ModuleBase& module,
                      const std::string& options);

}  // namespace weft::parallel
