// The part of the DataLoader that is the same for all data sets: order, threads, errors, staging.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/core/runtime/runtime.h"
#include "weft/data/batch.h"
#include "weft/data/sampler.h"

namespace weft::data {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  int workers = 0;         ///< threads that fetch ahead, up to 1024; 0: the caller fetches
  bool drop_last = false;  ///< leave out the last batch if it is not full
  std::shared_ptr<const Sampler> sampler = nullptr;  ///< instead of shuffle
  /// The device of the batches. For CUDA they are fetched into pinned memory and copied on a stream
  /// of their own beside the caller's work; its current stream waits for them, the host does not.
  Device device = Device();
  /// Decides batches of any sizes, in place of batch_size, shuffle, drop_last and sampler. Such a
  /// loader has no state() to go on from.
  std::shared_ptr<const BatchSampler> batch_sampler = nullptr;
  int prefetch = 2;  ///< batches ready ahead, per worker, up to 1024
  /// Copy the whole data set to `device` when the loader is made, and gather the batches there,
  /// without workers: the same batches in the same order, each in new memory. The set is read
  /// twice, to find and refuse one whose samples are random.
  bool device_resident = false;
  std::int64_t device_resident_limit = std::int64_t{1} << 30;  ///< bytes of the whole set
};

/// Calls `fetch(context, slot, indices)` for each batch of an epoch: in worker threads, or in
/// next() if there are none. A slot belongs to the caller from the next() that returns it to the
/// following next() or stop_epoch().
class LoaderCore {
 public:
  using Fetch = void (*)(void* context, int slot, std::span<const std::int64_t> indices);

  LoaderCore(std::int64_t dataset_size, DataLoaderOptions options, Fetch fetch, void* context);
  ~LoaderCore();
  LoaderCore(const LoaderCore&) = delete;
  LoaderCore& operator=(const LoaderCore&) = delete;

  const DataLoaderOptions& options() const { return options_; }
  int slot_count() const { return slot_count_; }
  std::int64_t size() const { return active_ || resume_ ? batch_count() : batches_after(0); }
  std::int64_t batch_count() const;  ///< of an epoch that was dealt out as the current one
  std::int64_t position() const { return unfinished_ || resume_ ? position_ : 0; }
  /// The indices of the batch that next() has returned last. Throws InvalidArgument without one.
  std::span<const std::int64_t> indices() const;
  /// All indices of the running epoch.
  std::span<const std::int64_t> order() const { return order_; }
  const HostMemory& memory() const { return memory_; }
  /// The base seed of the running epoch.
  std::uint64_t epoch_seed() const { return base_seed_; }

  /// Draws the seeds (unless set_state() gave them) and starts the workers.
  void start_epoch();
  /// Waits for the next batch and returns its slot, or -1 at the end. Rethrows what its fetch
  /// threw; the epoch then has no further batch, and state() is that before the batch.
  int next();
  /// After next(), where the caller cannot use its batch: as if next() had thrown.
  void take_back();
  /// Ends the epoch. No fetch is running when it returns.
  void stop_epoch() noexcept;
  /// For the end: no fetch runs when it returns. In a thread that runs exit(), it waits at most
  /// some seconds for the fetches of other workers, which then stay until the process ends.
  void shut_down() noexcept;

  std::string state() const;
  void set_state(const std::string& text);
  void set_state_of_other_ranks(const std::vector<std::string>& texts,
                                std::int64_t samples_per_step, std::int64_t replicas);

  // Staging, from the thread that calls next().
  bool staged() const { return options_.device.is_cuda() && !options_.device_resident; }
  /// Scratch memory, kept so that it is allocated only once.
  std::vector<Tensor>& stage_targets() { return stage_targets_; }
  /// Queues the copy of one of the slot's tensors to `device`, and reuses the memory of `device` if
  /// shape and dtype fit.
  void stage(int slot, const Tensor& host, Tensor& device);
  /// The caller's current stream waits for the copies queued so far. When they are done, the slot's
  /// host memory is free.
  void staged_all(int slot);

 private:
  struct Workers;
  struct Place;  // in an epoch, as state() writes it
  Place read_place(const std::string& text) const;
  void set_place(const Place& place);
  std::int64_t batches_after(std::int64_t samples) const;
  std::int64_t samples_done() const;
  void take_batches();
  void check_has_state() const;
  void forget_parents_workers();
  int worker_count() const { return options_.device_resident ? 0 : options_.workers; }
  std::span<const std::int64_t> indices_of(std::int64_t batch) const;
  void fetch(std::int64_t batch, GeneratorSet& generators);
  int slot_of(std::int64_t batch) const { return static_cast<int>(batch % slot_count_); }
  void record_use(int slot);

  const std::int64_t dataset_size_;
  const DataLoaderOptions options_;
  const Fetch fetch_;
  void* const context_;
  std::shared_ptr<const Sampler> sampler_;
  HostMemory memory_;
  int slot_count_;

  // The running epoch.
  bool active_ = false;      // between start_epoch() and stop_epoch()
  bool unfinished_ = false;  // begun and not finished, even if its loop was left
  bool failed_ = false;      // next() has thrown: no further batch
  bool resume_ = false;      // set_state() was called: begin with its values
  std::uint64_t base_seed_ = 0;
  std::string sampler_seed_;
  std::int64_t position_ = 0;  // batches handed out
  // The place where the order was last dealt out: how many batches, and samples of the shared
  // order, came before it.
  std::int64_t first_batch_ = 0, first_sample_ = 0;
  std::vector<std::int64_t> order_;
  std::vector<std::size_t> ends_;  // where a batch sampler's batches end in it

  GeneratorSet own_generators_;  // for fetching without workers
  // Per slot: its host memory has been read; the caller's work has read its device memory.
  std::vector<std::unique_ptr<Event>> copied_, used_;
  std::vector<Tensor> stage_targets_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace weft::data
