// Optimiser updates: one launch for all parameters of a step (up to kMaxSlots). Learning rate, step
// and factors are read from device memory, so that a captured step stays valid. An update is one
// pass: it reads the gradients, and reads and writes parameters and states. Clipping is one pass
// that reads and writes the gradients, and by their norm one more before it, which reads them.
#include <cmath>

#include "weft/kernels/cuda/access.cuh"
#include "weft/kernels/cuda/block_fold.cuh"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/runtime.h"
#include "weft/kernels/cuda/slot_table.h"

namespace weft::cuda {
namespace {

static_assert(sizeof(SlotTable) + 128 <= 4096, "kernel parameters");

// Elements that a thread processes at once, with up to five loads of 16 bytes each.
template <class T>
constexpr int kWidth = 16 / static_cast<int>(sizeof(T));

/// The values of one element during an update. C is float for f32 and bf16, double for f64.
template <class C>
struct Element {
  C param, grad, state1, state2, state3;
};

/// Which of the five arrays an update reads and writes.
struct Uses {
  bool param, state1, state2, state3, writes_grad;
};

template <class T>
__device__ bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (sizeof(T) * kWidth<T>) == 0;
}

/// Loads kWidth elements from `at`, with one 16-byte access if `packed`; else only those below
/// `limit`, one by one.
template <class T>
__device__ void load(const void* array, std::int64_t at, std::int64_t limit, bool packed,
                     Pack<T, accumulate_t<T>, kWidth<T>>& to) {
  const T* const p = static_cast<const T*>(array);
  if (packed) {
    to = *reinterpret_cast<const Pack<T, accumulate_t<T>, kWidth<T>>*>(p + at);
    return;
  }
#pragma unroll
  for (int k = 0; k < kWidth<T>; ++k) to.v[k] = at + k < limit ? p[at + k] : T{};
}

template <class T>
__device__ void store(void* array, std::int64_t at, std::int64_t limit, bool packed,
                      const Pack<T, accumulate_t<T>, kWidth<T>>& from) {
  T* const p = static_cast<T*>(array);
  if (packed) {
    *reinterpret_cast<Pack<T, accumulate_t<T>, kWidth<T>>*>(p + at) = from;
    return;
  }
#pragma unroll
  for (int k = 0; k < kWidth<T>; ++k) {
    if (at + k < limit) p[at + k] = from.v[k];
  }
}

/// Applies update(element) to all elements of the table's slots.
template <class T, class Update>
__device__ void update_slots(const SlotTable& table, Uses uses, const Update& update) {
  using C = accumulate_t<T>;
  constexpr int W = kWidth<T>;
  const std::int64_t chunks = table.chunks();
  for (std::int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const auto [slot, begin, end] = table.chunk(c);
    const bool slot_aligned = aligned<T>(slot.param) && aligned<T>(slot.grad) &&
                              aligned<T>(slot.state1) && aligned<T>(slot.state2) &&
                              aligned<T>(slot.state3);
    for (std::int64_t i = begin + static_cast<std::int64_t>(threadIdx.x) * W; i < end;
         i += kBlock * W) {
      const bool packed = slot_aligned && i + W <= end;
      Pack<T, C, W> param{}, grad, state1{}, state2{}, state3{};
      load<T>(slot.grad, i, end, packed, grad);
      if (uses.param) load<T>(slot.param, i, end, packed, param);
      if (uses.state1) load<T>(slot.state1, i, end, packed, state1);
      if (uses.state2) load<T>(slot.state2, i, end, packed, state2);
      if (uses.state3) load<T>(slot.state3, i, end, packed, state3);
#pragma unroll
      for (int k = 0; k < W; ++k) {
        Element<C> e{param.get(k), grad.get(k), state1.get(k), state2.get(k), state3.get(k)};
        update(e);
        param.set(k, e.param);
        grad.set(k, e.grad);
        state1.set(k, e.state1);
        state2.set(k, e.state2);
        state3.set(k, e.state3);
      }
      if (uses.param) store<T>(slot.param, i, end, packed, param);
      if (uses.state1) store<T>(slot.state1, i, end, packed, state1);
      if (uses.state2) store<T>(slot.state2, i, end, packed, state2);
      if (uses.state3) store<T>(slot.state3, i, end, packed, state3);
      // Slots of scale_grads and clamp_grads: their gradient is writable, see kernels/optim.h.
      if (uses.writes_grad) store<T>(const_cast<void*>(slot.grad), i, end, packed, grad);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    sgd_kernel(const __grid_constant__ SlotTable table, const SgdParams p) {
  using C = accumulate_t<T>;
  const C lr = static_cast<C>(*p.lr), momentum = static_cast<C>(p.momentum);
  const C weight_decay = static_cast<C>(p.weight_decay);
  const C fresh = static_cast<C>(1 - p.dampening);
  const bool first = *p.step == 1;
  const bool has_momentum = p.momentum != 0;
  const bool uphill = p.maximize;
  update_slots<T>(table, {true, has_momentum, false, false, false}, [=](Element<C>& e) {
    C g = (uphill ? -e.grad : e.grad) + weight_decay * e.param;
    if (has_momentum) {
      e.state1 = first ? g : momentum * e.state1 + fresh * g;
      g = p.nesterov ? g + momentum * e.state1 : e.state1;
    }
    e.param -= lr * g;
  });
}

/// torch.lerp(from, to, weight) = from + weight (to - from). From weight 1/2 on it computes from
/// `to`: next to a large `from` the sum would lose `to`, which is the whole result for a weight of
/// 1.
template <class C>
__device__ C lerp(C from, C to, C weight) {
  return weight < C(0.5) ? from + weight * (to - from) : to + (weight - C(1)) * (to - from);
}

template <class T, bool amsgrad>
__global__ void __launch_bounds__(kBlock)
    adam_kernel(const __grid_constant__ SlotTable table, const AdamParams p) {
  using C = accumulate_t<T>;
  // Two powers in double are slow, so one thread of the block computes them.
  __shared__ C step_size, root_correction;
  if (threadIdx.x == 0) {
    const auto t = static_cast<double>(*p.step);
    step_size = static_cast<C>(*p.lr / (1 - std::pow(p.beta1, t)));
    root_correction = static_cast<C>(std::sqrt(1 - std::pow(p.beta2, t)));
  }
  __syncthreads();
  const C size = step_size, correction = root_correction;
  const C fresh1 = static_cast<C>(1 - p.beta1);
  const C beta2 = static_cast<C>(p.beta2), fresh2 = static_cast<C>(1 - p.beta2);
  const C eps = static_cast<C>(p.eps);
  const C decay = static_cast<C>(p.decoupled ? 0 : p.weight_decay);
  const C keep = static_cast<C>(p.decoupled ? 1 - *p.lr * p.weight_decay : 1);
  const bool uphill = p.maximize;
  update_slots<T>(table, {true, true, true, amsgrad, false}, [=](Element<C>& e) {
    const C g = (uphill ? -e.grad : e.grad) + decay * e.param;
    e.state1 = lerp(e.state1, g, fresh1);
    e.state2 = beta2 * e.state2 + fresh2 * g * g;
    C spread = e.state2;
    if constexpr (amsgrad) {
      spread = e.state3 >= spread || e.state3 != e.state3 ? e.state3 : spread;
      e.state3 = spread;
    }
    e.param = keep * e.param - size * e.state1 / (std::sqrt(spread) / correction + eps);
  });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    rmsprop_kernel(const __grid_constant__ SlotTable table, const RmspropParams p) {
  using C = accumulate_t<T>;
  const C lr = static_cast<C>(*p.lr), eps = static_cast<C>(p.eps);
  const C alpha = static_cast<C>(p.alpha), fresh = static_cast<C>(1 - p.alpha);
  const C weight_decay = static_cast<C>(p.weight_decay), momentum = static_cast<C>(p.momentum);
  const bool has_momentum = p.momentum != 0, centered = p.centered;
  const bool uphill = p.maximize;
  update_slots<T>(table, {true, true, has_momentum, centered, false}, [=](Element<C>& e) {
    const C g = (uphill ? -e.grad : e.grad) + weight_decay * e.param;
    e.state1 = alpha * e.state1 + fresh * g * g;
    C spread = e.state1;
    if (centered) {
      e.state3 = lerp(e.state3, g, fresh);
      spread -= e.state3 * e.state3;
      spread = spread < C(0) ? C(0) : spread;
    }
    C update = g / (std::sqrt(spread) + eps);
    if (has_momentum) update = e.state2 = momentum * e.state2 + update;
    e.param -= lr * update;
  });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    adadelta_kernel(const __grid_constant__ SlotTable table, const AdadeltaParams p) {
  using C = accumulate_t<T>;
  const C lr = static_cast<C>(*p.lr), eps = static_cast<C>(p.eps);
  const C rho = static_cast<C>(p.rho), fresh = static_cast<C>(1 - p.rho);
  const C weight_decay = static_cast<C>(p.weight_decay);
  const bool uphill = p.maximize;
  update_slots<T>(table, {true, true, true, false, false}, [=](Element<C>& e) {
    const C g = (uphill ? -e.grad : e.grad) + weight_decay * e.param;
    e.state1 = rho * e.state1 + fresh * g * g;
    const C delta = std::sqrt(e.state2 + eps) / std::sqrt(e.state1 + eps) * g;
    e.state2 = rho * e.state2 + fresh * delta * delta;
    e.param -= lr * delta;
  });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    scale_grads_kernel(const __grid_constant__ SlotTable table, const double* factor) {
  using C = accumulate_t<T>;
  const C f = static_cast<C>(*factor);
  update_slots<T>(table, {false, false, false, false, true}, [=](Element<C>& e) { e.grad *= f; });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    clamp_grads_kernel(const __grid_constant__ SlotTable table, double most) {
  using C = accumulate_t<T>;
  const C high = static_cast<C>(most);
  update_slots<T>(table, {false, false, false, false, true}, [=](Element<C>& e) {
    const C below = e.grad > high ? high : e.grad;
    e.grad = below < -high ? -high : below;
  });
}

// Fixed, so that the order of the sum depends only on the slots; some four blocks per SM of the
// largest GPU. Each block uses one double of the stream's scratch memory.
constexpr unsigned kSquareBlocks = 512;
static_assert(kSquareBlocks * sizeof(double) <= kScratchBytes);

/// *out (+)= the sum of the table's squares.
template <class T>
__global__ void __launch_bounds__(kBlock)
    squares_kernel(const __grid_constant__ SlotTable table, bool add, const Shares<double> shares,
                   double* out) {
  using C = accumulate_t<T>;
  double sum = 0;
  // Elements after a slot's end are loaded as 0.
  update_slots<T>(table, {}, [&](const Element<C>& e) {
    const double g = e.grad;
    sum += g * g;
  });
  sum = block_sum(sum);
  fold_blocks<Sum>(shares, 0, blockIdx.x, threadIdx.x == 0 ? 0 : -1, sum, 0.0,
                   [&](int, double all) { *out = add ? *out + all : all; });
}

/// Queues kernel_of<T>() for the slots' elements T, table by table.
template <class Kernel, class... Args>
void update(const char* name, const Stream& stream, DType dtype, std::span<const OptimSlot> slots,
            const Kernel& kernel_of, const Args&... args) {
  for_floating(name, stream, dtype, [&]<class T>() {
    for_each_table(slots, [&](const SlotTable& table) {
      launch(name, stream, kernel_of.template operator()<T>(), grid_blocks(table.chunks(), 1),
             kBlock, table, args...);
    });
  });
}

void sgd(const Stream& stream, DType dtype, const SgdParams& params,
         std::span<const OptimSlot> slots) {
  update("sgd", stream, dtype, slots, [&]<class T>() { return sgd_kernel<T>; }, params);
}

void adam(const Stream& stream, DType dtype, const AdamParams& params,
          std::span<const OptimSlot> slots) {
  const auto kernel_of = [&]<class T>() {
    return params.amsgrad ? adam_kernel<T, true> : adam_kernel<T, false>;
  };
  update("adam", stream, dtype, slots, kernel_of, params);
}

void rmsprop(const Stream& stream, DType dtype, const RmspropParams& params,
             std::span<const OptimSlot> slots) {
  update("rmsprop", stream, dtype, slots, [&]<class T>() { return rmsprop_kernel<T>; }, params);
}

void adadelta(const Stream& stream, DType dtype, const AdadeltaParams& params,
              std::span<const OptimSlot> slots) {
  update("adadelta", stream, dtype, slots, [&]<class T>() { return adadelta_kernel<T>; }, params);
}

void scale_grads(const Stream& stream, DType dtype, const double* factor,
                 std::span<const OptimSlot> slots) {
  update(
      "scale_grads", stream, dtype, slots, [&]<class T>() { return scale_grads_kernel<T>; },
      factor);
}

void clamp_grads(const Stream& stream, DType dtype, double most, std::span<const OptimSlot> slots) {
  update(
      "clamp_grads", stream, dtype, slots, [&]<class T>() { return clamp_grads_kernel<T>; }, most);
}

void sum_of_squares(const Stream& stream, DType dtype, std::span<const OptimSlot> slots,
                    double* out) {
  unsigned* const done = block_counters(stream);  // Scratch locks them
  const Scratch scratch(stream);
  const Shares<double> shares{static_cast<double*>(scratch.data()), done, 1, 1, kSquareBlocks};
  bool add = false;
  for_floating("sum_of_squares", stream, dtype, [&]<class T>() {
    for_each_table(slots, [&](const SlotTable& table) {
      launch("sum_of_squares", stream, squares_kernel<T>, kSquareBlocks, kBlock, table, add, shares,
             out);
      add = true;
    });
  });
  if (!add) cuda_runtime().fill_zero(out, sizeof *out, stream);
}

}  // namespace

OptimKernels optim_kernels() {
  return {.sgd = sgd,
          .adam = adam,
          .rmsprop = rmsprop,
          .adadelta = adadelta,
          .sum_of_squares = sum_of_squares,
          .scale_grads = scale_grads,
          .clamp_grads = clamp_grads};
}

}  // namespace weft::cuda
