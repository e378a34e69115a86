#include "weft/kernels/cpu/candidates.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "weft/core/base/device.h"
#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/parallel.h"
#include "weft/kernels/cpu/dnnl/library.h"

namespace weft::cpu {

namespace {

double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

template <class T>
void fill(void* data, std::size_t bytes) {
  T* values = static_cast<T*>(data);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
    values[i] = T(0.01f * static_cast<float>(i % 61) - 0.3f);
  }
}

struct Cores {
  std::mutex mutex;
  std::condition_variable freed;
  int idle = core_count();
};

Cores& cores() {
  static auto& all = *new Cores;  // a detached thread may still time while the process exits
  return all;
}

}  // namespace

TimingBuffer::TimingBuffer(std::size_t bytes, DType dtype) {
  constexpr std::size_t kAlign = 64;
  const std::size_t rounded = std::max(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  data_.reset(std::aligned_alloc(kAlign, rounded));
  if (!data_) throw std::bad_alloc();
  switch (dtype) {
    case DType::f32: fill<float>(data_.get(), rounded); break;
    case DType::f64: fill<double>(data_.get(), rounded); break;
    case DType::bf16: fill<bf16>(data_.get(), rounded); break;
    default: std::memset(data_.get(), 0, rounded);
  }
}

TimingTurn::TimingTurn(int team) : cores_(std::clamp(team, 1, core_count())) {
  Cores& all = cores();
  std::unique_lock lock(all.mutex);
  all.freed.wait(lock, [&] { return all.idle >= cores_; });
  all.idle -= cores_;
}

TimingTurn::~TimingTurn() {
  Cores& all = cores();
  {
    const std::lock_guard lock(all.mutex);
    all.idle += cores_;
  }
  all.freed.notify_all();
}

double time_ms(const std::function<void()>& call, double best) {
  const auto timed = [&](int calls) {
    const double start = now_ms();
    for (int c = 0; c < calls; ++c) call();
    return (now_ms() - start) / calls;
  };
  const double warm_up = timed(1);
  // Several calls per repetition if one is too short for the clock.
  const int calls = static_cast<int>(std::clamp(0.05 / std::max(warm_up, 1e-4), 1.0, 20.0));
  const int repetitions = warm_up > 100 ? 2 : warm_up > 5 ? 3 : 5;
  double shortest = timed(calls);
  if (std::min(shortest, warm_up) > 4 * best) return shortest;
  for (int r = 1; r < repetitions; ++r) shortest = std::min(shortest, timed(calls));
  return shortest;
}

// Below this bound a team gains only a few microseconds, while on a busy machine each member that
// must wait for a core costs milliseconds.
int team_for(double multiply_adds) {
  constexpr double kWorthATeam = 1 << 20;
  return multiply_adds < kWorthATeam ? 1 : num_threads();
}

std::string machine() {
  return detail::concat(cpu_model(), ", ", core_count(), " cores, ", to_string(simd_level()), ", ",
                        dnnl_name());
}

std::int64_t flags(std::initializer_list<bool> bits) {
  std::int64_t word = 0;
  for (const bool bit : bits) word = word << 1 | std::int64_t(bit);
  return word;
}

}  // namespace weft::cpu
