#include "weft/autograd/autocast.h"

#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/pool.h"

namespace weft {

/// The weights that the threads of one outermost scope have converted. Scopes reuse caches, which
/// are never freed: a thread may use the one that it inherited after the end of the scope.
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
    const std::uint32_t version = weight.storage()->version();
    if (!entry->converted.defined() || entry->version != version) {
      entry->converted = weight.to(dtype);
      entry->version = version;
    }
    return entry->converted;
  }

 private:
  struct Entry : RefCounted, Pooled {
    Tensor weight;  // keeps the address that is the key
    std::mutex mutex;
    std::uint32_t version = 0;
    Tensor converted;
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
    if (scope_ != scope) return nullptr;
    auto& entry = entries_here()[{weight.impl(), current_stream(weight.device()).handle}];
    if (!entry) {
      entry = make_intrusive<Entry>();
      entry->weight = weight;
    }
    return entry;
  }

  // A captured step has entries of its own, for each run: its replays would not repeat a conversion
  // made outside of it, and one made in an earlier run is not part of this run.
  Entries& entries_here() {
    const graph::Capture* const capture = thread_state().capture;
    if (!capture) return entries_;
    if (std::exchange(captured_run_, capture->run()) != capture->run()) captured_.clear();
    return captured_;
  }

  std::mutex mutex_;
  std::uint64_t scope_ = 0;
  Entries entries_;
  Entries captured_;                // of one run of a captured step
  std::uint64_t captured_run_ = 0;  // the run that captured_ belongs to
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
