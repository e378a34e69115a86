// Persistent threads that belong to a device. Private to autograd/.
#pragma once

#include "weft/core/device.h"

namespace weft::autograd {

class Job {
 public:
  virtual ~Job() = default;
  /// Must not throw.
  virtual void run() = 0;
  /// Comes after run(), when the worker is already free for other jobs; the job may be gone after
  /// it.
  virtual void done() = 0;
};

/// Runs the job on an idle worker thread of the device, or on a new one: a job that waits for other
/// jobs never holds them up. The pool is as large as the number of jobs ever in progress at once.
void run_on_worker(Device device, Job* job);

}  // namespace weft::autograd
