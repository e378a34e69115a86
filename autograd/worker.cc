#include "weft/autograd/worker.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace weft::autograd {

namespace {

class Worker;

// Never destroyed: idle workers wait in it until the process is gone.
struct Pool {
  std::mutex mutex;
  std::vector<Worker*> idle[2][kMaxDevices];

  std::vector<Worker*>& idle_of(Device device) {
    return idle[static_cast<int>(device.type)][device.index];
  }
};

Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

class Worker {
 public:
  explicit Worker(Device device) : device_(device) {}

  void give(Job* job) {
    std::lock_guard lock(mutex_);
    job_ = job;
    wake_.notify_one();
  }

  void loop() {
    for (;;) {
      Job* job = take();
      job->run();
      {
        // Before done(): whoever waits for it finds this thread again for the next backward.
        std::lock_guard lock(pool().mutex);
        pool().idle_of(device_).push_back(this);
      }
      job->done();
    }
  }

 private:
  Job* take() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return job_ != nullptr; });
    return std::exchange(job_, nullptr);
  }

  const Device device_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Job* job_ = nullptr;
};

}  // namespace

void run_on_worker(Device device, Job* job) {
  Worker* worker = nullptr;
  {
    std::lock_guard lock(pool().mutex);
    auto& idle = pool().idle_of(device);
    if (!idle.empty()) {
      worker = idle.back();
      idle.pop_back();
    }
  }
  if (!worker) {
    auto fresh = std::make_unique<Worker>(device);
    std::thread([w = fresh.get()] { w->loop(); }).detach();
    worker = fresh.release();
  }
  worker->give(job);
}

}  // namespace weft::autograd
