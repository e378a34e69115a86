#include "weft/autograd/several_devices.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/internal.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

namespace {

// sum += grad, where grad is on another CPU device.
void add_from_afar(Tensor& sum, const Tensor& grad, Device device) {
  if (sum.defined() && may_write(sum)) {
    raw::add_from_afar_(sum, grad);
  } else {
    add_to(sum, raw::to(grad, device));
  }
}

// Adding this many elements takes about as long as waking a sleeping thread.
constexpr std::int64_t kWorthWaking = 1 << 16;  // elements

}  // namespace

// --- Before anything runs ------------------------------------------------------------------------

// Numbers the devices of the tasks.
void SeveralDevices::split() {
  part_count_ = 0;
  places_.assign(found_.tasks.size(), {});
  for (std::size_t i = 0; i < found_.tasks.size(); ++i) {
    if (!found_.tasks[i].wanted) continue;
    const Device device = found_.tasks[i].device();
    int part = 0;
    while (part < part_count_ && !(parts_[part]->device == device)) ++part;
    if (part == part_count_) {
      if (part_count_ == static_cast<int>(parts_.size()))
        parts_.push_back(std::make_unique<Part>(*this));
      parts_[part_count_++]->device = device;
    }
    places_[i].part = static_cast<std::int16_t>(part);
  }
  for (int i = 0; i < part_count_; ++i) {
    parts_[i]->ready.clear();
    parts_[i]->active = false;
  }
}

// Fills incoming_: the links grouped by target, and in each group those from the task recorded last
// first, the order in which a single thread would add them.
void SeveralDevices::sort_links() {
  const std::size_t n = found_.tasks.size();
  first_incoming_.assign(n + 1, 0);
  for (const Link& link : found_.links) {
    if (link.task >= 0) ++first_incoming_[link.task + 1];
  }
  for (std::size_t i = 0; i < n; ++i) first_incoming_[i + 1] += first_incoming_[i];
  incoming_.resize(first_incoming_[n]);
  filled_.assign(first_incoming_.begin(), first_incoming_.end() - 1);
  order_.resize(n);
  for (std::size_t i = 0; i < n; ++i) order_[i] = static_cast<std::int32_t>(i);
  std::sort(order_.begin(), order_.end(), [this](std::int32_t a, std::int32_t b) {
    const std::uint64_t left = found_.tasks[a].sequence, right = found_.tasks[b].sequence;
    return left != right ? left > right : a < b;
  });
  for (const std::int32_t source : order_) {
    if (found_.tasks[source].leaf) continue;
    const auto edges = static_cast<std::int32_t>(found_.tasks[source].node().edges().size());
    for (std::int32_t k = 0; k < edges; ++k) {
      const std::int32_t link = found_.tasks[source].first_link + k;
      const std::int32_t to = found_.links[link].task;
      if (to >= 0) incoming_[filled_[to]++] = link;
    }
  }
}

// --- Running it ----------------------------------------------------------------------------------

void SeveralDevices::run() {
  graph::check_not_capturing("backward", "the tape has nodes on several devices");
  split();
  sort_links();
  contributions_.resize(found_.links.size());
  shared_.clear();
  error_ = nullptr;
  remaining_ = std::ranges::count_if(found_.tasks, &Task::wanted);
  caller_ = std::this_thread::get_id();
  caller_waits_ = false;
  caller_wanted_ = false;
  for_caller_.clear();
  for_caller_.reserve(parts_.size());
  JobGroup jobs;
  jobs_ = &jobs;
  std::unique_lock lock(mutex_);
  whole_.for_each_root([this](std::int32_t task) { push_ready(task); });
  // As long as only one device has work, this thread does it: waking another thread takes longer
  // than a small operation. Work that can run at the same time goes to its device's worker.
  while (remaining_ > 0 && !error_) {
    if (for_caller_.empty()) {
      caller_waits_ = true;
      caller_wanted_ = false;
      lock.unlock();
      {
        const WaitScope waiting;
        spin_until([this] { return caller_wanted_.load(std::memory_order_acquire); });
        lock.lock();
        wake_caller_.wait(lock, [this] { return caller_wanted_.load(); });
      }
      caller_waits_ = false;
      continue;
    }
    Part& part = *for_caller_.front();
    for_caller_.erase(for_caller_.begin());
    share_out();
    run_ready(part, lock);
  }
  lock.unlock();
  jobs.wait();
  at_once_.reset();
  jobs_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void SeveralDevices::deliver(std::int32_t from, std::int32_t index, Tensor grad) {
  contributions_[index] = std::move(grad);
  const std::int32_t to = found_.links[index].task;
  const std::lock_guard lock(mutex_);
  places_[to].crossed |= places_[to].part != places_[from].part;
  if (--found_.tasks[to].pending > 0) return;
  if (any_worker_may_add(to)) return push_shared(to);
  push_ready(to);
}

void SeveralDevices::gather(std::int32_t index) {
  const Task& task = found_.tasks[index];
  std::optional<Span> reduces;
  if (task.leaf && places_[index].crossed) {
    reduces.emplace("parallel", "reduce_gradients", thread_state().device);
  }
  for (std::int32_t i = first_incoming_[index]; i < first_incoming_[index + 1]; ++i) {
    const std::int32_t link = incoming_[i];
    Tensor grad = std::move(contributions_[link]);
    if (!grad.defined()) continue;
    Tensor& sum = whole_.gradient(task, found_.links[link].output);
    const Device device = task.leaf ? task.device() : grad.device();
    if (grad.device() == device) {
      add_to(sum, std::move(grad));
    } else {
      add_from_afar(sum, grad, device);
    }
  }
}

// --- Who runs which task, with the lock held -----------------------------------------------------

// Whether idle workers may add the gradients of the leaf. Hooks need the leaf's own device.
bool SeveralDevices::any_worker_may_add(std::int32_t index) const {
  const Task& task = found_.tasks[index];
  if (!task.leaf || !places_[index].crossed || !task.device().is_cpu()) return false;
  if (numel(task.impl()->shape) < kWorthWaking) return false;
  const LeafState& state = *meta_of(task.impl())->leaf;
  return !state.grad_hooks.get() && !state.leaf_hooks.get() && !state.final_hooks.get();
}

void SeveralDevices::push_ready(std::int32_t task) {
  Part& part = *parts_[places_[task].part];
  part.ready.push(task);
  if (!part.active) activate(part);
}

// Ready tasks for any CPU device whose part has no tasks of its own.
void SeveralDevices::push_shared(std::int32_t task) {
  shared_.push_back(task);
  for (int i = 0; i < part_count_; ++i) {
    if (parts_[i]->device.is_cpu() && !parts_[i]->active) return activate(*parts_[i]);
  }
}

// Called when a part gets its first ready task. The thread that called backward takes the part if
// it has no work or may soon have none, else the device's worker takes it.
void SeveralDevices::activate(Part& part) {
  part.active = true;
  const bool here = std::this_thread::get_id() == caller_;
  if (!here && !caller_waits_) {
    try {
      return jobs_->submit(part.device, part);
    } catch (...) {  // no thread is available: the part has to wait for the caller
    }
  }
  for_caller_.push_back(&part);
  caller_waits_ = false;
  caller_wanted_.store(true, std::memory_order_release);
  if (!here) wake_caller_.notify_one();
}

// Gives the parts that wait for the caller to the workers.
void SeveralDevices::share_out() {
  while (!for_caller_.empty()) {
    try {
      jobs_->submit(for_caller_.back()->device, *for_caller_.back());
    } catch (...) {
      return;  // no thread is available: the caller runs the parts one after the other
    }
    for_caller_.pop_back();
    if (!at_once_) at_once_.emplace("parallel", "parallel_backward");
  }
}

void SeveralDevices::run_ready(Part& part, std::unique_lock<std::mutex>& lock) {
  const bool here = std::this_thread::get_id() == caller_;
  try {
    while (!error_) {
      std::int32_t task;
      if (!part.ready.empty()) {
        task = part.ready.pop();
      } else if (part.device.is_cpu() && !shared_.empty()) {
        task = shared_.back();
        shared_.pop_back();
      } else {
        break;
      }
      const Scoped device(&ThreadState::device, parts_[places_[task].part]->device);
      lock.unlock();
      whole_.run_task(task);
      lock.lock();
      --remaining_;
      if (here && !part.ready.empty()) share_out();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!error_) error_ = std::current_exception();
  }
  part.active = false;
}

void SeveralDevices::work(Part& part) {
  const Span span("phase", "backward");
  Session* const outer = Session::set_current(&whole_.session());
  std::unique_lock lock(mutex_);
  run_ready(part, lock);
  if (remaining_ == 0 || error_) {
    caller_wanted_.store(true, std::memory_order_release);
    wake_caller_.notify_one();
  }
  lock.unlock();
  Session::set_current(outer);
}

void SeveralDevices::clear() { contributions_.clear(); }

}  // namespace weft::autograd
