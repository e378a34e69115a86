// The streams of copies between CUDA devices, which the devices' own work does not wait for.
#pragma once

#include "weft/core/base/device.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

/// Where copies from `device` to other CUDA devices are queued: one stream for the process, made at
/// its first use. Throws Device when there is no such CUDA device.
Stream copy_stream(Device device);

/// Makes work queued on `stream` from now on wait for the copies from its device queued until now.
/// Does nothing if there were none.
void wait_for_copies(const Stream& stream);

}  // namespace weft
