// One backward over several devices, in their workers and in the thread that called it. Private to
// autograd/.
//
// Each contribution to a task waits in the slot of its link until all of them have arrived. Then
// they are added in an order that does not depend on timing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "weft/autograd/engine.h"
#include "weft/core/runtime/worker.h"
#include "weft/core/trace/trace.h"

namespace weft::autograd {

class SeveralDevices final : public Distribution {
 public:
  explicit SeveralDevices(Run& whole) : whole_(whole), found_(whole.found) {}

  void run() override;
  void deliver(std::int32_t from, std::int32_t link, Tensor grad) override;
  void gather(std::int32_t task) override;
  void clear() override;

 private:
  // The tasks of one device. While a part is active, one thread runs its ready tasks. The thread
  // leaves when there are none, so no worker waits for a task of another device.
  struct Part final : Job {
    explicit Part(SeveralDevices& w) : whole(w), ready(w.found_) {}
    void run() override { whole.work(*this); }

    SeveralDevices& whole;
    Device device;
    ReadyTasks ready;
    bool active = false;
  };
  struct Place {
    std::int16_t part = 0;
    bool crossed = false;  // a gradient comes from another device
  };

  void split();
  void sort_links();
  void work(Part& part);
  bool any_worker_may_add(std::int32_t task) const;
  void push_ready(std::int32_t task);
  void push_shared(std::int32_t task);
  void activate(Part& part);
  void share_out();
  void run_ready(Part& part, std::unique_lock<std::mutex>& lock);

  Run& whole_;
  Discovery& found_;
  std::vector<std::unique_ptr<Part>> parts_;
  int part_count_ = 0;
  std::vector<Place> places_;                 // by task
  std::vector<Tensor> contributions_;         // by link
  std::vector<std::int32_t> incoming_;        // links, grouped by target task
  std::vector<std::int32_t> first_incoming_;  // by task
  std::vector<std::int32_t> order_, filled_;  // of sort_links()
  std::vector<std::int32_t> shared_;          // ready tasks that any idle CPU device may run
  std::mutex mutex_;
  std::condition_variable wake_caller_;
  std::atomic<bool> caller_wanted_{false};  // the caller has work
  std::vector<Part*> for_caller_;           // active parts without a worker
  std::thread::id caller_;
  bool caller_waits_ = false;
  std::int64_t remaining_ = 0;
  std::exception_ptr error_;
  JobGroup* jobs_ = nullptr;
  std::optional<Span> at_once_;  // from the first part that a worker gets to the end
};

}  // namespace weft::autograd
