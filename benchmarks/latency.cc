#include "weft/benchmarks/latency.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/parallel.h"
#include "weft/nn/linear.h"
#include "weft/tensor/creation.h"

namespace weft::bench {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct Latency {
  double per_second = 0, p50_us = 0, p99_us = 0;
};

/// Threads that compute as long as this lives, one per core, like other programs would.
class BusyCores {
 public:
  explicit BusyCores(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        std::uint64_t x = 1;
        while (!end_.load(std::memory_order_relaxed)) x = x * 6364136223846793005u + 1;
        sum_ += x;
      });
    }
  }
  ~BusyCores() {
    end_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::atomic<bool> end_ = false;
  std::atomic<std::uint64_t> sum_ = 0;  // keeps the compiler from removing the loops
  std::vector<std::thread> threads_;
};

struct Mlp {
  nn::Linear first{784, 128}, second{128, 10};
  Tensor x = randn({1, 784});

  void operator()() { second(relu(first(x))); }
};

Latency measure(Mlp& mlp, int threads, double seconds) {
  const NoGrad no_grad;
  set_num_threads(threads);
  for (int i = 0; i < 100; ++i) mlp();
  std::vector<double> us;
  const Clock::time_point begin = Clock::now();
  Clock::time_point last = begin;
  while (last - begin < std::chrono::duration<double>(seconds)) {
    mlp();
    const Clock::time_point now = Clock::now();
    us.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
  }
  std::ranges::sort(us);
  const auto at = [&](double share) {
    return us[static_cast<std::size_t>(share * static_cast<double>(us.size() - 1))];
  };
  return {static_cast<double>(us.size()) / std::chrono::duration<double>(last - begin).count(),
          at(0.5), at(0.99)};
}

Latency ask(Peer& peer, int threads, double seconds) {
  const json answer = peer.ask({{"cmd", "latency"}, {"threads", threads}, {"seconds", seconds}});
  WEFT_CHECK(!answer.contains("error"), Library, "bench",
             "the peer: ", answer["error"].get<std::string>());
  return {answer["per_second"], answer["p50_us"], answer["p99_us"]};
}

json to_json(const std::vector<Latency>& windows) {
  const auto of = [&](double Latency::* figure) {
    std::vector<double> values;
    for (const Latency& window : windows) values.push_back(window.*figure);
    const Quartiles q = quartiles(values);
    return json{{"low", q.low}, {"median", q.median}, {"high", q.high}};
  };
  return {{"per_second", of(&Latency::per_second)},
          {"p50_us", of(&Latency::p50_us)},
          {"p99_us", of(&Latency::p99_us)}};
}

void print(const char* side, int threads, bool busy, const json& row) {
  const auto median = [&](const char* name) { return row[name]["median"].get<double>(); };
  std::printf("%-8s %d thread%s %-5s %9.0f calls/s   p50 %8.1f us   p99 %9.1f us\n", side, threads,
              threads == 1 ? ", " : "s,", busy ? "busy:" : "idle:", median("per_second"),
              median("p50_us"), median("p99_us"));
  std::fflush(stdout);
}

}  // namespace

json run_latency(const LatencyOptions& options, Peer* peer) {
  Mlp mlp;
  json rows = json::array();
  for (const bool busy : {false, true}) {
    const BusyCores others(busy ? core_count() : 0);
    for (const int threads : std::set{1, options.threads}) {
      std::vector<Latency> mine, theirs;
      for (int i = 0; i < options.pairs; ++i) {
        mine.push_back(measure(mlp, threads, options.window_s));
        if (peer) theirs.push_back(ask(*peer, threads, options.window_s));
      }
      json row = {{"threads", threads}, {"busy", busy}, {"weft", to_json(mine)}};
      print("weft", threads, busy, row["weft"]);
      if (peer) {
        row["peer"] = to_json(theirs);
        print("PyTorch", threads, busy, row["peer"]);
      }
      rows.push_back(row);
    }
  }
  return {{"model", "mlp 784-128-10, batch 1"}, {"latency", rows}};
}

}  // namespace weft::bench
