#include "weft/autograd/autocast.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/pool.h"
#include "weft/tensor/ops.h"

namespace weft {

/// The weights that the threads of one outermost scope have converted. Scopes reuse caches, which
/// are never freed: a thread may use the one that it inherited after the end of the scope.
///
/// In a scope around many steps all weights are out of date after each. The first one that a step
/// asks for leads a *round*: with it those are converted, in few launches, that the thread asked
/// for in the last round with that leader. The list of them is made anew in each round, so a weight
/// that every second step uses is converted in vain in the others, and alone when it is used.
class WeightCache {
 public:
  using Ref = ThreadState::AutocastCache;

  /// Takes a cache for a new outermost scope.
  static Ref open() {
    WeightCache* cache = nullptr;
    {
      Idle& idle = idle_caches();
      const std::lock_guard lock(idle.mutex);
      if (!idle.caches.empty()) {
        cache = idle.caches.back();
        idle.caches.pop_back();
      }
    }
    if (!cache) cache = new WeightCache;
    const std::lock_guard lock(cache->mutex_);
    return {cache, ++cache->scope_};
  }

  /// Ends the scope: threads that still have its number find nothing in the cache.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      ++scope_;
      entries_.clear();
      captured_.clear();
      rounds_.clear();
      followers_.clear();
    }
    Idle& idle = idle_caches();
    const std::lock_guard lock(idle.mutex);
    idle.caches.push_back(this);
  }

  bool is_open(std::uint64_t scope) {
    const std::lock_guard lock(mutex_);
    return scope_ == scope;
  }

  Tensor convert(std::uint64_t scope, const Tensor& weight, DType dtype) {
    const intrusive_ptr<Entry> entry = entry_of(scope, weight);
    if (!entry) return weight.to(dtype);
    // Threads that need the same weight wait for the one that converts it.
    const std::lock_guard lock(entry->mutex);
    const std::vector<intrusive_ptr<Entry>> others = note_use(scope, *entry);
    if (!entry->up_to_date()) convert_together(entry, others, dtype);
    // Recorded where it is used: the order of a tape's nodes is that of backward.
    if (!entry->recorded) autograd::record_copy("to", entry->converted, weight);
    entry->recorded = true;
    return entry->converted;
  }

 private:
  struct Entry : RefCounted, Pooled {
    Tensor weight;  // keeps the address that is the key
    std::mutex mutex;
    // What was converted: Module::to() gives a weight another storage, perhaps of equal version.
    intrusive_ptr<Storage> storage;
    std::uint32_t version = 0;
    Tensor converted;
    bool recorded = false;  // else it was converted with others, and nobody has asked for it yet
    // Under the cache's mutex: the last rounds in which it was asked for, and taken for a list.
    std::uint64_t asked = 0, listed = 0;

    bool up_to_date() const {
      return converted.defined() && storage == weight.storage() && version == storage->version();
    }
  };
  // The stream is part of the key: work in another stream would have to wait for the conversion.
  struct Key {
    const TensorImpl* weight;
    void* stream;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.weight) ^ (std::hash<void*>()(key.stream) << 1);
    }
  };
  using Entries = std::unordered_map<Key, intrusive_ptr<Entry>, Hash, std::equal_to<>,
                                     PoolAllocator<std::pair<const Key, intrusive_ptr<Entry>>>>;
  /// What a thread asks for in a stream, from a weight that leads on.
  struct Round {
    Stream stream;
    std::thread::id thread;
    const TensorImpl* leader;
    std::uint64_t number;
  };
  struct Followers {
    std::thread::id thread;
    std::vector<Tensor> weights;  // the leader, which keeps the address that is the key, and others
  };
  struct Idle {
    std::mutex mutex;
    std::vector<WeightCache*> caches;
  };

  static Idle& idle_caches() {
    static Idle& instance = *new Idle;
    return instance;
  }

  intrusive_ptr<Entry> entry_of(std::uint64_t scope, const Tensor& weight) {
    const std::lock_guard lock(mutex_);
    return scope_ == scope ? entry_here(weight) : nullptr;
  }

  intrusive_ptr<Entry> entry_here(const Tensor& weight) {
    auto& entry = entries_here()[{weight.impl(), current_stream(weight.device()).handle}];
    if (!entry) {
      entry = make_intrusive<Entry>();
      entry->weight = weight;
    }
    return entry;
  }

  // The entries to convert with this one, which the caller has locked, if it begins a round.
  std::vector<intrusive_ptr<Entry>> note_use(std::uint64_t scope, Entry& entry) {
    // On the CPU a replay runs the body again and compares the operations, which must not depend on
    // what other steps have used.
    const graph::Capture* const capture = thread_state().capture;
    if (capture && capture->device().is_cpu()) return {};
    const std::lock_guard lock(mutex_);
    if (scope_ != scope) return {};
    const TensorImpl* const weight = entry.weight.impl();
    const Stream stream = current_stream(entry.weight.device());
    // Another thread's weights are not converted: it may be writing to them.
    const std::thread::id thread = std::this_thread::get_id();
    auto round = std::ranges::find(rounds_, stream, &Round::stream);
    const bool goes_on = round != rounds_.end() && round->thread == thread;
    const bool is_new = !goes_on || entry.asked != round->number;
    if (goes_on && (entry.up_to_date() || (is_new && !followers_.contains(weight)))) {
      // What the step writes to before it uses it is not worth to be converted earlier.
      const bool in_vain = entry.listed == round->number && !entry.up_to_date();
      if (is_new && !in_vain) followers_[round->leader].weights.push_back(entry.weight);
      entry.asked = round->number;
      return {};
    }
    if (entry.up_to_date()) return {};
    if (round == rounds_.end()) round = rounds_.insert(round, Round{});
    *round = {stream, thread, weight, ++last_round_};
    entry.asked = entry.listed = round->number;
    Followers& followers = followers_[weight];
    const bool same_thread = std::exchange(followers.thread, thread) == thread;
    const std::vector<Tensor> before = std::exchange(followers.weights, {entry.weight});
    if (!same_thread) return {};
    std::vector<intrusive_ptr<Entry>> others;
    for (const Tensor& other : before) {
      intrusive_ptr<Entry> found = entry_here(other);
      if (std::exchange(found->listed, round->number) != round->number) others.push_back(found);
    }
    return others;
  }

  // Converts the weight of an entry that the caller has locked, and those of the others that are
  // out of date.
  static void convert_together(const intrusive_ptr<Entry>& entry,
                               const std::vector<intrusive_ptr<Entry>>& others, DType dtype) {
    std::vector<intrusive_ptr<Entry>> entries{entry};
    std::vector<std::unique_lock<std::mutex>> locks;
    std::vector<Tensor> weights{entry->weight};
    for (const intrusive_ptr<Entry>& other : others) {
      std::unique_lock lock(other->mutex, std::try_to_lock);  // waiting could be a deadlock
      if (!lock || other->up_to_date() || !fits(other->weight, entry->weight)) continue;
      entries.push_back(other);
      locks.push_back(std::move(lock));
      weights.push_back(other->weight);
    }
    std::vector<std::uint32_t> versions;
    for (const Tensor& weight : weights) versions.push_back(weight.storage()->version());
    const std::vector<Tensor> converted =
        weights.size() == 1 ? std::vector{raw::to(weights[0], dtype)} : raw::to(weights, dtype);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i]->converted = converted[i];
      entries[i]->storage = weights[i].storage();
      entries[i]->version = versions[i];
      entries[i]->recorded = false;
    }
  }

  // Whether a weight that nobody has asked for yet in this round can be converted with another one.
  // A unit's that fully_shard has cut has no values until its module is called.
  static bool fits(const Tensor& weight, const Tensor& with) {
    return weight.device() == with.device() && weight.dtype() == with.dtype() && weight.is_leaf() &&
           autograd::recording(weight) && !weight.storage()->released();
  }

  // A captured step has entries of its own, for each run: its replays would not repeat a conversion
  // made outside of it, and one made in an earlier run is not part of this run.
  Entries& entries_here() {
    const graph::Capture* const capture = thread_state().capture;
    if (!capture) return entries_;
    if (std::exchange(captured_run_, capture->run()) != capture->run()) {
      captured_.clear();
      rounds_.clear();
    }
    return captured_;
  }

  std::mutex mutex_;
  std::uint64_t scope_ = 0;
  Entries entries_;
  Entries captured_;                // of one run of a captured step
  std::uint64_t captured_run_ = 0;  // the run that captured_ belongs to
  std::vector<Round> rounds_;       // one for each stream
  std::uint64_t last_round_ = 0;
  std::unordered_map<const TensorImpl*, Followers> followers_;  // of each leader
};

namespace autograd {

namespace {

ThreadState::AutocastTypes types_with(DeviceType device_type, const AutocastOptions& options) {
  WEFT_CHECK(options.dtype == DType::bf16, InvalidArgument, "autocast", "dtype: got ",
             options.dtype, ", expected bf16");
  ThreadState::AutocastTypes types = thread_state().autocast;
  types[static_cast<int>(device_type)] = options.enabled ? options.dtype : DType::f32;
  return types;
}

// The conversion must be on the tape, since its users need the gradient of the weight. A
// recomputation has a tape of its own, so it does not share conversions.
bool cacheable(const Tensor& x) {
  const ThreadState& state = thread_state();
  return state.autocast_cache.weights && !state.recomputing && x.is_leaf() && recording(x);
}

// Opens a cache if the scope needs one of its own.
WeightCache::Ref own_cache(const AutocastOptions& options) {
  if (!options.cache_enabled) return {};
  const WeightCache::Ref outer = thread_state().autocast_cache;
  if (outer.weights && outer.weights->is_open(outer.scope)) return {};
  return WeightCache::open();
}

WeightCache::Ref cache_for(const AutocastOptions& options, const WeightCache::Ref& own) {
  if (!options.cache_enabled) return {};
  return own.weights ? own : thread_state().autocast_cache;
}

}  // namespace

Autocast::Autocast(DeviceType device_type, const AutocastOptions& options)
    : types_(&ThreadState::autocast, types_with(device_type, options)),
      own_(own_cache(options)),
      cache_(&ThreadState::autocast_cache, cache_for(options, own_)) {}

Autocast::~Autocast() {
  if (own_.weights) own_.weights->close();
}

DType autocast_dtype(CastPolicy policy, const Tensor& x) {
  const DType dtype = x.dtype();
  const DeviceType type = x.device().type;
  const DType lower = thread_state().autocast[static_cast<int>(type)];
  if (lower == DType::f32 || (dtype != DType::f32 && dtype != DType::bf16)) return dtype;
  switch (policy) {
    case CastPolicy::lower_precision: return lower;
    case CastPolicy::f32: return DType::f32;
    case CastPolicy::f32_on_cuda: return type == DeviceType::cuda ? DType::f32 : dtype;
    case CastPolicy::none: break;
  }
  return dtype;
}

Tensor autocast(CastPolicy policy, const Tensor& x) {
  if (!x.defined()) return x;
  const DType dtype = autocast_dtype(policy, x);
  if (dtype == x.dtype()) return x;
  if (policy != CastPolicy::lower_precision || !cacheable(x)) return x.to(dtype);
  const WeightCache::Ref cache = thread_state().autocast_cache;
  return cache.weights->convert(cache.scope, x, dtype);
}

}  // namespace autograd

}  // namespace weft
