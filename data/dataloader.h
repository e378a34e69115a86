// DataLoader: reads a data set in batches, shuffled as in PyTorch, ahead of time in worker threads.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/data/dataset.h"
#include "weft/data/loader_core.h"
#include "weft/data/resident_set.h"
#include "weft/data/sampler.h"

namespace weft::data {

/// A range of batches. Each begin() starts an epoch.
///   data::DataLoader train(data::Mnist(dir), {.batch_size = 32, .shuffle = true, .workers = 2});
///   for (auto& [x, label] : train) ...
///
/// The data set has size() and `Batch get_batch(std::span<const std::int64_t> indices) const`,
/// which several threads may call at once. A Batch is a Tensor or a structure that tensor/tree.h
/// walks, such as a struct with tensors(). A set that can reuse the memory of a batch also has
/// `void get_batch(indices, Batch&, const HostMemory&) const`. This may take a fourth parameter,
/// `std::uint64_t epoch_seed`: the epoch's base seed, from which random transforms get a generator
/// for each sample.
///
/// Order: the same as torch.utils.data.DataLoader's for the same seed of the thread's generator,
/// with any number of workers. An epoch draws a base seed and, when shuffling, the sampler's seed.
/// While a batch is fetched, the thread has a generator seeded with base seed + number of the
/// batch, so random transforms do not depend on the number of workers either.
///
/// A batch belongs to the loader until the next one is asked for: copy the Tensor (the handle) to
/// keep it. An exception in a worker is rethrown in place of its batch, and ends the epoch as if
/// its loop were left there: state() goes on with that batch. So does one of the copy to the
/// device. A worker may call exit(), as may several at once: the first one's status counts. Leaving
/// the loop ends the epoch: the loader waits for the batches that are being fetched and begins no
/// other. Workers start with the first epoch and end with the loader. Only one epoch may run at a
/// time (else InvalidArgument), and only one thread may use the loader at a time.
///
/// With device_resident the host works only at the start of an epoch. Each batch is a gather on the
/// device; copy it, for example, into the tensors that a graph::Step reads. The members of a batch
/// that are no tensors are then always those of the first batch that was read.
template <Dataset Set>
class DataLoader {
 public:
  using Batch = BatchOf<Set>;
  static_assert(walkable<Batch> && holds_tensors<Batch>,
                "a batch is a tensor or a structure of tensors; give a struct a member `auto "
                "tensors() { return std::tie(x, label); }` (tensor/tree.h)");

  /// Throws InvalidArgument for a batch size below 1, workers outside [0, 1024], a prefetch outside
  /// [1, 1024], a sampler together with shuffle, and a batch sampler together with what it
  /// replaces. With device_resident it also throws InvalidArgument for a set with random samples, a
  /// set above the limit, and tensors without one row per sample.
  explicit DataLoader(Set dataset, DataLoaderOptions options = {})
      : state_(std::make_unique<State>(std::move(dataset), std::move(options))) {}

  const Set& dataset() const { return whole().dataset; }
  const DataLoaderOptions& options() const { return whole().core.options(); }
  /// The number of batches per epoch: of the running one, or of the one with which begin() goes on.
  /// That is another number if the rest of the epoch was dealt out anew.
  std::int64_t size() const { return whole().core.size(); }
  /// The number of batches handed out in the running epoch, in one whose loop was left early, or in
  /// one in which begin() goes on; 0 between epochs.
  std::int64_t position() const { return whole().core.position(); }
  /// The indices of the batch that was handed out last. Throws InvalidArgument outside of a running
  /// loop.
  std::span<const std::int64_t> indices() const { return whole().core.indices(); }

  /// The loader's position as portable text: between epochs, or after some batches of one. An epoch
  /// whose loop was left early counts as running until the next one begins.
  /// Throws Unsupported with a batch sampler, as do the others.
  std::string state() const { return whole().core.state(); }
  /// The next begin() goes on from that position: the rest of the epoch in the same order, without
  /// drawing from the generator (restoring the generator's state is up to the caller). The number
  /// of workers may differ. Throws InvalidArgument while an epoch is running, for text that state()
  /// did not write, and for another size of the data set, another batch size or another `shuffle`.
  void set_state(const std::string& state) { whole().core.set_state(state); }
  /// The same from the states of all ranks of a run that had another number of them, or another
  /// batch size. What they have left of the epoch's order is dealt out anew, by this loader's
  /// sampler: each sample of the epoch is visited once, but for padding. Draws as rank 0 did.
  /// samples_per_step: of all those ranks, needed for states of earlier versions; `replicas`: how
  /// many ranks share the order now; both are compared if they are above 0. The sampler must be of
  /// the kind of theirs, shuffling or not. Throws InvalidArgument as set_state(), but for another
  /// batch size or `shuffle`, and if ranks do not share one order in turn, as with
  /// DistributedSamplerOptions::contiguous or a WeightedRandomSampler for each rank.
  void set_state_of_other_ranks(const std::vector<std::string>& states,
                                std::int64_t samples_per_step = 0, std::int64_t replicas = 0) {
    whole().core.set_state_of_other_ranks(states, samples_per_step, replicas);
  }

 private:
  // A batch that is being made. On CUDA `host` is pinned memory and the user gets `device`.
  struct Slot {
    Batch host;
    Batch device;
  };
  struct State {
    State(Set d, DataLoaderOptions options)
        : dataset(std::move(d)),
          core(dataset.size(), std::move(options), &State::fetch, this),
          slots(static_cast<std::size_t>(core.slot_count())) {
      if (core.options().device_resident) make_resident();
    }
    ~State() { core.shut_down(); }  // workers may still write into the slots

    static void fetch(void* self, int slot, std::span<const std::int64_t> indices) {
      State& state = *static_cast<State*>(self);
      Batch& batch = state.slots[static_cast<std::size_t>(slot)].host;
      if (state.resident) return state.gather(indices, batch);
      read_batch(state.dataset, indices, batch, state.core.memory(), state.core.epoch_seed());
    }

    /// Copies the set to the device in parts.
    void make_resident() {
      resident.emplace(core.options(), dataset.size());
      Batch first, again;
      const auto list = [](Batch& batch) {
        std::vector<Tensor> tensors;
        for_each_tensor(batch, [&](Tensor& x) { tensors.push_back(x); });
        return tensors;
      };
      resident->fill([&](std::span<const std::int64_t> indices, std::uint64_t seed, int pass) {
        Batch& batch = pass == 0 ? first : again;
        read_batch(dataset, indices, batch, HostMemory(), seed);
        return list(batch);
      });
      structure = map_tensors(first, [](const Tensor&) { return Tensor(); });
    }

    void gather(std::span<const std::int64_t> indices, Batch& batch) {
      const Tensor rows = resident->rows(core.order(), indices);
      batch = *structure;  // a vector's length, for one
      std::size_t i = 0;
      for_each_tensor(batch, [&](Tensor& x) { x = resident->gather(i++, rows); });
    }

    /// Drops the tensors that the user kept, so that they are not overwritten.
    void give_back() {
      if (current < 0) return;
      const auto release = [](Tensor& x) {
        if (x.defined() && !is_unshared(x)) x = Tensor();
      };
      Slot& slot = slots[static_cast<std::size_t>(std::exchange(current, -1))];
      for_each_tensor(slot.host, release);
      for_each_tensor(slot.device, release);
    }

    /// The next batch, or nullptr at the end of the epoch.
    Batch* advance() {
      give_back();
      current = core.next();
      if (current < 0) return nullptr;
      Slot& slot = slots[static_cast<std::size_t>(current)];
      if (!core.staged()) return &slot.host;
      // The batch on the device is a copy of the host's, but its tensors keep their own memory.
      std::vector<Tensor>& targets = core.stage_targets();
      targets.clear();
      for_each_tensor(slot.device, [&](Tensor& x) { targets.push_back(std::move(x)); });
      try {
        slot.device = slot.host;
        std::size_t i = 0;
        for_each_tensor(slot.device, [&](Tensor& x) {
          Tensor target = i < targets.size() ? std::move(targets[i]) : Tensor();
          ++i;
          core.stage(current, x, target);
          x = std::move(target);
        });
      } catch (...) {
        core.take_back();
        core.staged_all(current);  // before the memory of what was copied is free
        slot.device = Batch();
        throw;
      }
      core.staged_all(current);
      return &slot.device;
    }

    Set dataset;
    LoaderCore core;
    std::optional<ResidentSet> resident;
    std::optional<Batch> structure;  // of a resident set's batch, without tensors
    std::vector<Slot> slots;
    int current = -1;
  };

 public:
  /// Move-only: it owns the running epoch and ends it when destroyed.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(State* state) : state_(state) {}
    Iterator(Iterator&& other) noexcept
        : state_(std::exchange(other.state_, nullptr)), batch_(other.batch_) {}
    Iterator& operator=(Iterator&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    ~Iterator() {
      if (!state_) return;
      state_->give_back();
      state_->core.stop_epoch();
    }

    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_; }
    Iterator& operator++() {
      batch_ = nullptr;  // in case advance() throws
      batch_ = state_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) {
      return it.batch_ == nullptr;
    }

   private:
    State* state_;
    Batch* batch_ = nullptr;
  };

  /// Starts an epoch and fetches its first batch. Throws InvalidArgument while another epoch of
  /// this loader runs and for a sampler with an index outside the data set, Unsupported inside
  /// graph::capture.
  Iterator begin() {
    State& state = whole();
    state.core.start_epoch();
    Iterator it(&state);
    if (state.resident) state.resident->start_epoch(state.core.order());
    ++it;
    return it;
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  State& whole() const {
    WEFT_CHECK(state_, InvalidArgument, "dataloader", "this loader was moved from");
    return *state_;
  }

  std::unique_ptr<State> state_;
};

}  // namespace weft::data
