// weft's own collectives on a device, over the messages of another backend.
#pragma once

#include <memory>

#include "weft/comm/backend/nccl.h"

namespace weft::comm {

/// The algorithms of comm/backend/collectives.h on memory of `stream`'s device: the messages go
/// through `connections`, of which only exchange() is used, and the numbers are added by kernels on
/// `stream`, on which `connections` queues its work. So a sum has the same bits, and sends as many
/// bytes, as that of the ring backend on the host.
std::unique_ptr<DeviceBackend> device_ring(std::unique_ptr<DeviceBackend> connections,
                                           const Stream& stream);

}  // namespace weft::comm
