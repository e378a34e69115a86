// Which rule that may start backwards is running.
#pragma once

namespace weft::autograd {

/// The innermost rule in progress on this thread that may start backwards, as a checkpoint's does;
/// null outside. To be compared: two that run at the same time differ.
const void* nesting_rule();

}  // namespace weft::autograd
