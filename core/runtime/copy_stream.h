// Streams for copies between CUDA devices and from the host; other work of the devices does not
// wait for them.
#pragma once

#include "weft/core/base/device.h"
#include "weft/core/runtime/runtime.h"

namespace weft {

/// The stream for copies from `device` to other CUDA devices: one for the process, made at its
/// first use. Throws Device if there is no such CUDA device.
Stream copy_stream(Device device);

/// The stream for copies of a loader's batches to `device`: one for the process, made at its first
/// use. Throws Device if there is no such CUDA device.
Stream upload_stream(Device device);

/// Work queued on `stream` from now on waits for the copies from its device queued until now. Does
/// nothing if there were none.
void wait_for_copies(const Stream& stream);

}  // namespace weft
