// Ranks as threads of the test, each with a backend, and their numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/comm/store/store.h"
#include "weft/core/base/dtype.h"
#include "weft/core/base/error.h"

namespace weft::comm::testing {

/// A deadline for everything that must end, even on a busy machine.
inline Deadline patience() { return Deadline(std::chrono::seconds(30)); }

/// Makes the backend that reports this name. Throws Unsupported like gloo_backend().
inline BackendMaker maker_of(const std::string& name) {
  if (name == "ring") return ring_backend("127.0.0.1");
  if (name == "gloo") return gloo_backend("127.0.0.1");
  if (name == "shm") return shm_backend();
  return thread_backend();
}

/// Why this build has no such backend; empty if it has one.
inline std::string missing_backend(const std::string& name) {
  try {
    maker_of(name);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Runs f(backend) as ranks 0 to n-1. A rank that throws leaves at once; the first error is
/// rethrown when all ranks have ended.
inline void as_ranks(const BackendMaker& make, int n, const std::function<void(Backend&)>& f) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.emplace_back([&, r] {
      std::unique_ptr<Backend> backend;
      try {
        backend = make(store, r, n, patience());
        backend->meet(patience());
        f(*backend);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (first) std::rethrow_exception(first);
}

/// Runs f(group) as ranks 0 to n-1: threads that use the backend of that name. Throws like
/// run_ranks().
inline void in_groups(const std::string& backend, int n,
                      const std::function<void(ProcessGroup&)>& f) {
  const ProcessGroupOptions options{.timeout = std::chrono::seconds(30)};
  run_ranks(
      n,
      [&](ProcessGroup& threads) {
        if (backend == "threads") return f(threads);
        ProcessGroup group(maker_of(backend),
                           std::make_shared<PrefixStore>(backend, threads.store()), threads.rank(),
                           n, options);
        f(group);
      },
      options);
}

/// A test whose body runs on n ranks, which are threads, each with its `group`. The options of the
/// groups may follow n.
#define RANKS_TEST(suite, name, n, ...)                                                         \
  void suite##_##name(::weft::comm::ProcessGroup& group);                                       \
  TEST(suite, name) { ::weft::comm::run_ranks(n, &suite##_##name __VA_OPT__(, ) __VA_ARGS__); } \
  void suite##_##name([[maybe_unused]] ::weft::comm::ProcessGroup& group)

using Doubles = std::vector<double>;

/// Numbers of any dtype.
class Numbers {
 public:
  Numbers(const Doubles& values, DType dtype) : Numbers(dtype, values.size()) {
    dispatch_all(dtype, [&]<class T>() {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bf16>) {
          as<T>()[i] = bf16(static_cast<float>(values[i]));
        } else {
          as<T>()[i] = static_cast<T>(values[i]);
        }
      }
    });
  }
  Numbers(DType dtype, std::size_t count)
      : bytes_(count * size_of(dtype)), count_(static_cast<std::int64_t>(count)), dtype_(dtype) {}

  Buffer buffer() { return {bytes_.data(), count_, dtype_}; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes_.data());
  }
  Doubles doubles() {
    Doubles values(count_);
    dispatch_all(dtype_, [&]<class T>() {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, bf16>) {
          values[i] = static_cast<float>(as<T>()[i]);
        } else {
          values[i] = static_cast<double>(as<T>()[i]);
        }
      }
    });
    return values;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::int64_t count_;
  DType dtype_;
};

/// The numbers of rank r, from 0 to 10, different for each rank and place.
inline Doubles values_of(int rank, std::int64_t count, std::int64_t first = 0) {
  Doubles values(count);
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<double>((i + first) * 7 % 11 * (rank + 1) % 11);
  }
  return values;
}

/// The sums of values_of() over n ranks.
inline Doubles sum_of_ranks(int n, std::int64_t count) {
  Doubles sum(count);
  for (int r = 0; r < n; ++r) {
    const Doubles values = values_of(r, count);
    for (std::int64_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

/// The reduction of two numbers; avg is divided afterwards.
inline double combine(double a, double b, DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return dtype == DType::boolean ? std::max(a, b) : a + b;
    case ReduceOp::product: return a * b;
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
  }
  return 0;
}

inline bool makes_sense(DType dtype, ReduceOp op) {
  return op != ReduceOp::avg || is_floating(dtype);
}

}  // namespace weft::comm::testing
