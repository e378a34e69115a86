#include "weft/data/loader_core.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/copy_stream.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/index_reports.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::data {
namespace {
constexpr const char* kOp = "dataloader";
// Larger numbers are mistakes: each worker is a thread, and each prefetched batch needs memory.
constexpr int kMostWorkers = 1024, kMostPrefetch = 1024;
constexpr const char* kStateFormat = "weft.dataloader.3";
constexpr const char* kOldFormat = "weft.dataloader.2";  // without what Place says of samples
constexpr const char* kAsBefore =
    "resume with as many ranks and the same batch size, or from the end of an epoch";
constexpr std::int64_t kMostBatches = std::int64_t{1} << 62;

void check_not_capturing() {
  graph::check_not_capturing(kOp, "a replay does not run it; take the batch before the step");
}
}  // namespace

// Batch b lives in slot b % slots. Workers claim batches in order as slots become free:
//
//       taken          claimed      taken + slots      count
//   ------+---------------+-------------+----------------+
//    used |ready / in work|    free     |   later        |
//
// `taken` counts the batches the caller is done with, so the one it holds keeps its slot.
struct LoaderCore::Workers {
  explicit Workers(LoaderCore& c)
      : core(c),
        ready(static_cast<std::size_t>(c.slot_count_), -1),
        errors(static_cast<std::size_t>(c.slot_count_)) {
    try {
      for (int i = 0; i < core.worker_count(); ++i) threads.emplace_back([this, i] { run(i); });
    } catch (const std::system_error& error) {
      join();
      WEFT_THROW(Library, kOp, "cannot start ", core.options_.workers,
                 " worker threads: ", error.what());
    } catch (...) {  // no memory
      join();
      throw;
    }
  }
  ~Workers() { join(); }

  void join() noexcept {
    {
      const std::lock_guard lock(mutex);
      quit = true;
    }
    space.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  void start(std::int64_t first, std::int64_t end) {
    {
      const std::lock_guard lock(mutex);
      // Workers run with the caller's state, but each on one core and with a generator of its own.
      // They are outside the caller's module, since its path is on the caller's stack. Counters
      // that belong to one thread do not count in them.
      state = thread_state();
      state.grad_enabled = false;
      state.num_threads = 1;
      state.path = nullptr;
      state.step = -1;
      state.multiply_adds = nullptr;
      std::ranges::fill(ready, -1);
      std::ranges::fill(errors, nullptr);
      claimed = taken = first;
      count = end;
    }
    space.notify_all();
  }

  void run(int number) {
    static thread_local const ExitGuard guard;
    static_cast<void>(guard);
    leave_thread_unbound();
    set_thread_name("loader " + std::to_string(number));
    GeneratorSet generators;
    std::unique_lock lock(mutex);
    for (;;) {
      space.wait(lock, [&] { return quit || can_claim(); });
      if (quit) return;
      const std::int64_t batch = claimed++;
      const auto slot = static_cast<std::size_t>(batch % core.slot_count_);
      ++in_work;
      ThreadState here = state;
      here.generators = &generators;
      lock.unlock();
      std::exception_ptr error;
      try {
        of_thread->fetching = this;
        const ThreadStateGuard as_caller(here);
        core.fetch(batch, generators);
      } catch (...) {
        error = std::current_exception();
      }
      if (OfThread* const mine = of_thread.get()) mine->fetching = nullptr;
      lock.lock();
      --in_work;
      ready[slot] = batch;
      if (error) {
        errors[slot] = error;
        count = std::min(count, batch + 1);  // later batches are not needed
      }
      arrived.notify_all();
    }
  }

  // exit() first destroys the thread's own objects, then static objects; it crashes if several
  // threads destroy these at once (calling exit() twice is undefined). So the first worker whose
  // fetch calls exit() goes on, and others that call it meanwhile stay here until the process ends.
  struct OfThread {
    Workers* fetching = nullptr;
    bool exiting = false;  // this thread runs exit()
  };
  struct ExitGuard {
    ~ExitGuard() {
      OfThread* const mine = of_thread.get();
      Workers* const fetching = mine ? mine->fetching : nullptr;
      if (!fetching || fetching->process != fork_count()) return;
      {
        const std::lock_guard lock(fetching->mutex);
        --fetching->in_work;
      }
      fetching->arrived.notify_all();
      mine->exiting = true;
      first_exit.lock();
    }
  };

  // Whether this is the destructor of a static loader, run by an exit() in a worker of some loader.
  // A thread that may also have called exit() cannot be joined there. It may never come to its
  // guard (from version 2.41 on, glibc makes it wait before), so the wait is limited.
  bool are_left_by_exit() {
    const OfThread* const mine = of_thread.get();
    if (!mine || !mine->exiting) return false;
    std::unique_lock lock(mutex);
    quit = true;
    space.notify_all();
    arrived.wait_for(lock, std::chrono::seconds(5), [&] { return in_work == 0; });
    return true;
  }

  static constinit std::mutex first_exit;
  static constinit ThreadLocal<OfThread> of_thread;

  bool can_claim() const { return claimed < count && claimed < taken + core.slot_count_; }

  LoaderCore& core;
  const int process = fork_count();
  std::mutex mutex;
  std::condition_variable space;    // a slot is free, or the workers have to end
  std::condition_variable arrived;  // a batch is ready, or a worker is done
  ThreadState state;
  std::int64_t claimed = 0, taken = 0, count = 0;
  int in_work = 0;
  bool quit = false;
  std::vector<std::int64_t> ready;  // per slot: the batch in it
  std::vector<std::exception_ptr> errors;
  std::vector<std::thread> threads;
};

constinit std::mutex LoaderCore::Workers::first_exit;
constinit ThreadLocal<LoaderCore::Workers::OfThread> LoaderCore::Workers::of_thread;

LoaderCore::LoaderCore(std::int64_t dataset_size, DataLoaderOptions options, Fetch fetch,
                       void* context)
    : dataset_size_(dataset_size), options_(std::move(options)), fetch_(fetch), context_(context) {
  WEFT_CHECK(options_.batch_size >= 1, InvalidArgument, kOp, "batch_size is ", options_.batch_size,
             ", needs at least 1");
  WEFT_CHECK(options_.workers >= 0 && options_.workers <= kMostWorkers, InvalidArgument, kOp,
             "workers is ", options_.workers, ", needs 0 to ", kMostWorkers);
  WEFT_CHECK(options_.prefetch >= 1 && options_.prefetch <= kMostPrefetch, InvalidArgument, kOp,
             "prefetch is ", options_.prefetch, ", needs 1 to ", kMostPrefetch);
  WEFT_CHECK(!(options_.sampler && options_.shuffle), InvalidArgument, kOp,
             "a sampler decides the order; leave shuffle off beside it");
  WEFT_CHECK(
      !options_.batch_sampler || options_.batch_sampler->overrules() ||
          (options_.batch_size == 1 && !options_.shuffle && !options_.sampler &&
           !options_.drop_last),
      InvalidArgument, kOp,
      "a batch sampler decides the batches; leave batch_size, shuffle, sampler and drop_last "
      "out beside it");
  if (options_.sampler) {
    sampler_ = options_.sampler;
  } else if (options_.shuffle) {
    sampler_ = std::make_shared<RandomSampler>(dataset_size_);
  } else {
    sampler_ = std::make_shared<SequentialSampler>(dataset_size_);
  }
  if (options_.device.is_cpu()) {
    memory_.device = options_.device;
  } else {
    runtime(options_.device);  // throws here if there is no such device, and not in a worker
    memory_.pinned = !options_.device_resident;
  }
  // With workers: the prefetched batches and the one that the caller has. Without: staging needs a
  // second slot, to fetch into it while the device still copies the first.
  slot_count_ = worker_count() > 0 ? options_.workers * options_.prefetch + 1 : staged() ? 2 : 1;
  if (staged()) {
    for (int i = 0; i < slot_count_; ++i) {
      for (auto* events : {&copied_, &used_})
        events->push_back(runtime(options_.device).new_event(options_.device.index));
    }
  }
}

LoaderCore::~LoaderCore() { shut_down(); }

void LoaderCore::shut_down() noexcept {
  forget_parents_workers();
  if (workers_ && workers_->are_left_by_exit()) static_cast<void>(workers_.release());
  workers_.reset();
}

// A child of fork() does not have these threads, and what they share is as they left it.
void LoaderCore::forget_parents_workers() {
  if (workers_ && workers_->process != fork_count()) static_cast<void>(workers_.release());
}

std::int64_t LoaderCore::batches_after(std::int64_t samples) const {
  if (options_.batch_sampler) {
    return active_ ? std::ssize(ends_) : options_.batch_sampler->size();
  }
  const std::int64_t n = sampler_->size_after(samples), b = options_.batch_size;
  return n / b + (!options_.drop_last && n % b != 0 ? 1 : 0);
}

std::span<const std::int64_t> LoaderCore::indices() const {
  WEFT_CHECK(active_ && unfinished_ && position_ > first_batch_, InvalidArgument, kOp,
             "indices() are those of a batch, and no loop over this loader has one");
  return indices_of(position_ - 1);
}

std::int64_t LoaderCore::batch_count() const { return first_batch_ + batches_after(first_sample_); }

std::span<const std::int64_t> LoaderCore::indices_of(std::int64_t batch) const {
  if (options_.batch_sampler) {
    const auto b = static_cast<std::size_t>(batch);
    const std::size_t begin = b == 0 ? 0 : ends_[b - 1];
    return std::span(order_).subspan(begin, ends_[b] - begin);
  }
  const std::int64_t begin = (batch - first_batch_) * options_.batch_size;
  const std::int64_t count = std::min(options_.batch_size, std::ssize(order_) - begin);
  return std::span(order_).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

void LoaderCore::fetch(std::int64_t batch, GeneratorSet& generators) {
  Span span("loader", "fetch");
  span.set_arg("batch", batch);
  const int slot = slot_of(batch);
  if (staged()) {
    const OwnWait own;
    copied_[static_cast<std::size_t>(slot)]->synchronize();
  }
  generators.manual_seed(base_seed_ + static_cast<std::uint64_t>(batch));
  fetch_(context_, slot, indices_of(batch));
}

void LoaderCore::take_batches() {
  order_.clear();
  ends_.clear();
  for (const auto& batch : options_.batch_sampler->batches(default_generator())) {
    WEFT_CHECK(!batch.empty(), InvalidArgument, kOp, "batch ", ends_.size(),
               " of the batch sampler has no indices");
    order_.insert(order_.end(), batch.begin(), batch.end());
    ends_.push_back(order_.size());
  }
}

void LoaderCore::start_epoch() {
  check_not_capturing();
  WEFT_CHECK(!active_, InvalidArgument, kOp,
             "an epoch of this loader is running; end that loop first, or use a second loader");
  if (!resume_) {
    Generator& generator = default_generator();
    base_seed_ = draw_int64(generator);
    if (!options_.batch_sampler) sampler_seed_ = sampler_->draw_seed(generator);
    position_ = first_batch_ = first_sample_ = 0;
  }
  if (options_.batch_sampler) {
    take_batches();
  } else {
    sampler_->order_after(sampler_seed_, first_sample_, order_);
    const std::int64_t promised = sampler_->size_after(first_sample_);
    WEFT_CHECK(std::ssize(order_) == promised, InvalidArgument, kOp, "the sampler promised ",
               promised, " indices, gave ", order_.size());
  }
  const auto outside = std::ranges::find_if(
      order_, [&](std::int64_t index) { return index < 0 || index >= dataset_size_; });
  WEFT_CHECK(outside == order_.end(), InvalidArgument, kOp, "the sampler gave index ", *outside,
             ", the data set has ", dataset_size_);
  if (worker_count() > 0) {
    forget_parents_workers();
    if (!workers_) workers_ = std::make_unique<Workers>(*this);
    workers_->start(position_, options_.batch_sampler ? std::ssize(ends_) : batch_count());
  }
  // The caller may still use batches of the last epoch.
  if (staged()) {
    for (int slot = 0; slot < slot_count_; ++slot) record_use(slot);
  }
  active_ = unfinished_ = true;
  resume_ = failed_ = false;
}

int LoaderCore::next() {
  check_not_capturing();
  if (failed_) return -1;
  if (position_ >= batch_count()) {
    unfinished_ = false;
    return -1;
  }
  failed_ = true;  // unless the batch comes
  if (staged() && position_ > 0) record_use(slot_of(position_ - 1));
  const int slot = slot_of(position_);
  if (!workers_) {
    Scoped generators(&ThreadState::generators, &own_generators_);
    Scoped no_grad(&ThreadState::grad_enabled, false);
    fetch(position_, own_generators_);
  } else {
    Span span("loader", "wait");
    span.set_arg("batch", position_);
    Workers& w = *workers_;
    WEFT_CHECK(
        w.process == fork_count(), Internal, kOp,
        "the worker threads are those of the parent process; fork() does not copy them. Start "
        "the epoch in the child");
    std::exception_ptr error;
    {
      std::unique_lock lock(w.mutex);
      const std::int64_t done = position_;  // the caller does not use these batches again
      const bool wake = done > w.taken;
      w.taken = done;
      if (wake) w.space.notify_one();
      // Uses only the workers: if one of them calls exit(), they stay, but `this` may be destroyed.
      w.arrived.wait(lock,
                     [&w, slot, done] { return w.ready[static_cast<std::size_t>(slot)] == done; });
      error = std::exchange(w.errors[static_cast<std::size_t>(slot)], nullptr);
    }
    if (error) std::rethrow_exception(error);
  }
  failed_ = false;
  ++position_;
  return slot;
}

void LoaderCore::take_back() {
  --position_;
  failed_ = true;
}

void LoaderCore::stop_epoch() noexcept {
  active_ = false;
  if (!unfinished_) first_batch_ = first_sample_ = 0;
  forget_parents_workers();
  if (!workers_) return;
  Workers& w = *workers_;
  std::unique_lock lock(w.mutex);
  w.count = w.claimed;
  w.arrived.wait(lock, [&] { return w.in_work == 0; });
}

struct LoaderCore::Place {
  std::int64_t dataset_size = 0, order_size = 0, batch_size = 0;
  bool shuffle = false, running = false;
  std::uint64_t base_seed = 0;
  std::int64_t position = 0, first_batch = 0, first_sample = 0;
  std::int64_t done = -1;  // samples of the shared order; -1: not known
  std::string sampler_seed;
};

// At the end of the epoch also counts samples that were left out, so that nothing is left.
std::int64_t LoaderCore::samples_done() const {
  const std::int64_t replicas = sampler_->num_replicas();
  if (replicas == 0) return -1;
  if (position_ >= batch_count()) return std::max(dataset_size_, sampler_->size());
  return first_sample_ + (position_ - first_batch_) * options_.batch_size * replicas;
}

void LoaderCore::check_has_state() const {
  WEFT_CHECK(
      !options_.batch_sampler, Unsupported, kOp,
      "a loader with a batch sampler has no state: what its sampler gives next is not known");
}

std::string LoaderCore::state() const {
  check_has_state();
  std::ostringstream out;
  out.imbue(std::locale::classic());
  const bool running = unfinished_ || resume_;
  out << kStateFormat << ' ' << dataset_size_ << ' ' << sampler_->size() << ' '
      << options_.batch_size << ' ' << options_.shuffle << ' ' << running << ' ';
  if (running) {
    out << base_seed_ << ' ' << position_ << ' ' << first_batch_ << ' ' << first_sample_ << ' '
        << samples_done();
    if (!sampler_seed_.empty()) out << ' ' << sampler_seed_;
  } else {
    out << "0 0 0 0 0";
  }
  return out.str();
}

LoaderCore::Place LoaderCore::read_place(const std::string& text) const {
  check_has_state();
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  std::string format;
  Place p;
  in >> format >> p.dataset_size >> p.order_size >> p.batch_size >> p.shuffle >> p.running >>
      p.base_seed >> p.position;
  if (format != kOldFormat) in >> p.first_batch >> p.first_sample >> p.done;
  const bool parsed = !in.fail() && (format == kStateFormat || format == kOldFormat) &&
                      p.first_batch >= 0 && p.first_batch <= p.position &&
                      p.position <= kMostBatches && p.first_sample >= 0 && p.done >= -1;
  if (in.get() == ' ') std::getline(in, p.sampler_seed);
  WEFT_CHECK(parsed && (p.running || p.sampler_seed.empty()) && in.eof(), InvalidArgument, kOp,
             "not a loader's state: \"", text.substr(0, 80), '"');
  WEFT_CHECK(p.dataset_size == dataset_size_, InvalidArgument, kOp,
             "the state is of a data set of ", p.dataset_size, " (", p.order_size,
             " per epoch), this one has ", dataset_size_, " (", sampler_->size(), ')');
  return p;
}

void LoaderCore::set_place(const Place& p) {
  WEFT_CHECK(!active_, InvalidArgument, kOp, "set_state while an epoch is running");
  if (p.running) {
    std::vector<std::int64_t> order;
    sampler_->order_after(p.sampler_seed, p.first_sample, order);  // throws if it cannot
  }
  resume_ = p.running;
  unfinished_ = false;
  base_seed_ = p.base_seed;
  sampler_seed_ = p.sampler_seed;
  position_ = p.position;
  first_batch_ = p.first_batch;
  first_sample_ = p.first_sample;
}

void LoaderCore::set_state(const std::string& text) {
  const Place p = read_place(text);
  WEFT_CHECK(p.order_size == sampler_->size(), InvalidArgument, kOp,
             "the state is of a loader with ", p.order_size, " samples per epoch, this one has ",
             sampler_->size());
  WEFT_CHECK(p.batch_size == options_.batch_size, InvalidArgument, kOp,
             "the state is of batch size ", p.batch_size, ", this loader's is ",
             options_.batch_size);
  WEFT_CHECK(p.shuffle == options_.shuffle, InvalidArgument, kOp,
             "the state is of a loader with shuffle ", p.shuffle ? "on" : "off", ", here it is ",
             options_.shuffle ? "on" : "off");
  const std::int64_t count = p.first_batch + batches_after(p.first_sample);
  WEFT_CHECK(p.position <= count, InvalidArgument, kOp, "the state is after batch ", p.position,
             ", an epoch has ", count);
  set_place(p);
}

void LoaderCore::set_state_of_other_ranks(const std::vector<std::string>& texts,
                                          std::int64_t samples_per_step, std::int64_t replicas) {
  WEFT_CHECK(!texts.empty(), InvalidArgument, kOp, "the states of no ranks");
  Place p = read_place(texts[0]);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    const Place other = read_place(texts[r]);
    WEFT_CHECK(other.running == p.running && other.position == p.position &&
                   (other.done < 0) == (p.done < 0) && other.sampler_seed == p.sampler_seed,
               InvalidArgument, kOp, "rank ", r,
               " had another order, or place in it, than rank 0: ",
               "they cannot be dealt out anew; ", kAsBefore);
    p.done = std::min(p.done, other.done);  // without padding some ranks end before others
  }
  if (p.running) {
    const std::int64_t all = std::max(dataset_size_, sampler_->size());
    if (samples_per_step > 0 && 0 <= p.done && p.done < all) {
      const std::int64_t done = p.done - p.first_sample, steps = p.position - p.first_batch;
      WEFT_CHECK(done % samples_per_step == 0 && done / samples_per_step == steps, InvalidArgument,
                 kOp, "after ", steps, " steps of ", samples_per_step, " samples ", done,
                 " of a common order are done: the ranks did not share one; ", kAsBefore);
    }
    WEFT_CHECK(replicas < 1 || sampler_->num_replicas() == replicas, InvalidArgument, kOp,
               "this loader's sampler shares its order with ", sampler_->num_replicas(),
               " ranks, the run has ", replicas, "; ", kAsBefore);
    if (p.done < 0 && samples_per_step > 0 && texts[0].starts_with(kOldFormat)) {
      p.done = all;
      if (p.position <= p.done / samples_per_step) p.done = p.position * samples_per_step;
    }
    WEFT_CHECK(p.done >= 0 && sampler_->num_replicas() > 0, InvalidArgument, kOp,
               p.done < 0 ? "the state does" : "this loader's sampler does",
               " not say which samples of a common order are done; ", kAsBefore);
    p.first_batch = p.position;
    p.first_sample = p.done;
  }
  set_place(p);
}

void LoaderCore::record_use(int slot) {
  used_[static_cast<std::size_t>(slot)]->record(current_stream(options_.device));
}

void LoaderCore::stage(int slot, const Tensor& host, Tensor& device) {
  const Device target = options_.device;
  if (!device.defined() || device.shape() != host.shape() || device.dtype() != host.dtype()) {
    const Scoped owner(&ThreadState::memory_owner, MemoryOwner::batches);
    device = empty(host.shape(), TensorOptions(host.dtype(), target));
    record_use(slot);  // a use by whatever had the memory before
  }
  const Stream stream = upload_stream(target);
  const StreamScope scope(stream);
  used_[static_cast<std::size_t>(slot)]->block(stream);
  if (host.is_contiguous()) {
    device.storage()->bump_version();  // the caller may have copied it to another device
    runtime(target).copy(device.raw_data(), target, host.raw_data(), host.device(),
                         static_cast<std::size_t>(host.numel()) * size_of(host.dtype()), stream);
    // A loader that ends early frees the memory before it has been read.
    if (host.storage()->pinned()) host.storage()->record_stream(stream);
  } else {
    raw::copy_(device, host);
  }
}

void LoaderCore::staged_all(int slot) {
  Event& copied = *copied_[static_cast<std::size_t>(slot)];
  copied.record(upload_stream(options_.device));
  copied.block(current_stream(options_.device));
}

}  // namespace weft::data
