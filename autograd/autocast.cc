#include "weft/autograd/autocast.h"

#include <functional>
#include <unordered_map>
#include <utility>

#include "weft/autograd/graph.h"
#include "weft/core/error.h"
#include "weft/core/pool.h"

namespace weft::autograd {

namespace {

struct Entry {
  Tensor weight;  // its address is the key
  std::uint32_t version;
  Tensor converted;
};

/// The weights that this thread's outermost scope has converted.
struct Cache {
  using Entries =
      std::unordered_map<const TensorImpl*, Entry, std::hash<const TensorImpl*>, std::equal_to<>,
                         PoolAllocator<std::pair<const TensorImpl* const, Entry>>>;
  int scopes = 0;
  const graph::Capture* capture = nullptr;  // the one in progress when the outermost was opened
  Entries entries;
};

Cache& cache() {
  static thread_local Cache instance;
  return instance;
}

ThreadState::AutocastTypes types_with(DeviceType device_type, const AutocastOptions& options) {
  WEFT_CHECK(options.dtype == DType::bf16, InvalidArgument, "autocast", "dtype: got ",
             options.dtype, ", expected bf16");
  ThreadState::AutocastTypes types = thread_state().autocast;
  types[static_cast<int>(device_type)] = options.enabled ? options.dtype : DType::f32;
  return types;
}

// A conversion made off the tape would end the history of whoever finds it; one made outside of a
// captured step would not be repeated by its replays; and a recomputation has a tape of its own.
bool cacheable(const Tensor& x) {
  const ThreadState& state = thread_state();
  return state.autocast_cache && cache().scopes > 0 && cache().capture == state.capture &&
         !state.recomputing && x.is_leaf() && recording(x);
}

}  // namespace

Autocast::Autocast(DeviceType device_type, const AutocastOptions& options)
    : types_(&ThreadState::autocast, types_with(device_type, options)),
      cache_(&ThreadState::autocast_cache, options.cache_enabled) {
  if (cache().scopes++ == 0) cache().capture = thread_state().capture;
}

Autocast::~Autocast() {
  if (--cache().scopes == 0) cache().entries.clear();
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
  Entry& entry = cache().entries[x.impl()];
  const std::uint32_t version = x.storage()->version();
  if (!entry.converted.defined() || entry.version != version) {
    entry = {x, version, x.to(dtype)};
  }
  return entry.converted;
}

}  // namespace weft::autograd
