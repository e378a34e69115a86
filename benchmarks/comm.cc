// Latency and bandwidth of the collectives, reported as by nccl-tests, for each backend, for single
// algorithms of all-reduce, and for Gloo's own. The ranks are processes that hold all backends at
// the same time, so that these can take turns; the ranks of the backend "threads" are threads of
// this process.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "weft/benchmarks/all_reduce_algorithms.h"
#include "weft/benchmarks/bandwidth.h"
#include "weft/benchmarks/collective_call.h"
#include "weft/benchmarks/own_gloo.h"
#include "weft/benchmarks/peer.h"
#include "weft/benchmarks/program.h"
#include "weft/benchmarks/sides.h"
#include "weft/benchmarks/timing.h"
#include "weft/comm/init.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/tensor/creation.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr std::int64_t kAutoencoderBytes = 9'622'532;  // of its gradients
constexpr double kLeastRatio = 2.5;                    // Gloo's best time / that of shm in place
const std::string kOwnGloo = "Gloo ";                  // prefix of its own algorithms' names
const std::string kAlgorithm = "algorithm ";           // of those over ring's connections
const std::string kInPlace = "shm in place";
const std::string kThreads = "threads";

struct Options {
  int ranks = 2;
  int pairs = 31;
  std::vector<std::string> backends = {"shm", "gloo", "ring", "threads"};
  std::vector<std::string> algorithms = all_reduce_algorithms();
  std::vector<std::string> collectives{std::begin(kCollectives), std::end(kCollectives)};
  std::vector<std::int64_t> sizes = {64,      1 << 10, 1 << 14,           1 << 18,
                                     1 << 20, 4 << 20, kAutoencoderBytes, 32 << 20};
  bool check = false;
  std::string out = "outputs/comm.json";
};

bool only_all_reduces(const std::string& side) {
  return side == kInPlace || side.starts_with(kOwnGloo) || side.starts_with(kAlgorithm);
}

// --- A rank --------------------------------------------------------------------------------------

/// Answers
///   {"cmd": "open", "side": S}                   connects the ranks
///   {"cmd": "prepare", "collective": C, "bytes": B}
///   {"cmd": "time", "side": S, "calls": N}       -> {"us": of one call}
/// A side is a backend, shm in place, an algorithm, or one of Gloo's own.
class Rank {
 public:
  json open(const json& request) {
    const int rank = request["rank"], ranks = request["ranks"];
    const std::string side = request["side"];
    const std::string folder = request["folder"].get<std::string>() + "/" + side;
    std::filesystem::create_directories(folder);
    if (side.starts_with(kOwnGloo)) {
      own_gloo_[side] = make_own_gloo(side.substr(kOwnGloo.size()), folder, rank, ranks);
    } else {
      comm::InitOptions options{.init_method = "file://" + folder + "/meeting",
                                .rank = rank,
                                .world_size = ranks,
                                .group = {.timeout = std::chrono::seconds(60)}};
      if (side.starts_with(kAlgorithm)) {
        options.make_backend = make_algorithm(side.substr(kAlgorithm.size()));
      } else {
        options.backend = side == kInPlace ? "shm" : side;
      }
      groups_[side] = comm::init_process_group(options);
    }
    return json::object();
  }

  json prepare(const json& request) {
    const std::string collective = request["collective"];
    const std::int64_t bytes = request["bytes"];
    calls_.clear();
    for (const auto& [side, group] : groups_) {
      if (collective != "all_reduce" && only_all_reduces(side)) continue;
      calls_[side] = make_call(*group, collective, bytes, side == kInPlace);
      barriers_[side] = [group = group] { group->barrier().wait(); };
    }
    if (collective != "all_reduce") return json::object();
    for (const auto& [side, own] : own_gloo_) {
      calls_[side] = [own = own.get(), x = zeros({bytes / 4})]() mutable {
        own->all_reduce(x.data<float>(), x.numel());
      };
      barriers_[side] = [own = own.get()] { own->barrier(); };
    }
    return json::object();
  }

  json time(const json& request) {
    const std::string side = request["side"];
    return {{"us", time_calls(calls_.at(side), barriers_.at(side), request["calls"])}};
  }

 private:
  std::map<std::string, std::shared_ptr<comm::ProcessGroup>> groups_;
  std::map<std::string, std::unique_ptr<OwnGloo>> own_gloo_;
  std::map<std::string, std::function<void()>> calls_, barriers_;
};

void serve_rank() {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to broken connections
  set_num_threads(1);
  Rank rank;
  serve({{"open", [&](const json& request) { return rank.open(request); }},
         {"prepare", [&](const json& request) { return rank.prepare(request); }},
         {"time", [&](const json& request) { return rank.time(request); }}});
}

// --- Measuring -----------------------------------------------------------------------------------

/// The sides of --backend, in the order of the table.
std::vector<std::string> sides_of(const Options& options) {
  std::vector<std::string> sides;
  for (const std::string& backend : options.backends) {
    if (backend == "shm") sides.push_back(kInPlace);
    sides.push_back(backend);
    if (backend == "ring") {
      for (const std::string& name : options.algorithms) sides.push_back(kAlgorithm + name);
    }
    if (backend != "gloo") continue;
    for (const std::string& algorithm : own_gloo_algorithms()) {
      sides.push_back(kOwnGloo + algorithm);
    }
  }
  return sides;
}

/// The processes, and the sides that this build and machine support; reports why not the others.
struct Bench {
  explicit Bench(const Options& options)
      : options(options), ranks(options.ranks, {"/proc/self/exe", "--serve"}) {
    for (const std::string& side : sides_of(options)) {
      try {
        if (side != kThreads) ranks.ask({{"cmd", "open"}, {"side", side}});
        sides.push_back(side);
      } catch (const Error& error) {
        std::printf("%s: %s\n", side.c_str(), error.what());
        missing[side] = error.what();
      }
    }
  }

  /// Milliseconds for `calls` calls.
  double time(const std::string& side, const std::string& collective, std::int64_t bytes,
              int calls) {
    if (side != kThreads) {
      return calls / 1e3 *
             ranks.ask_most({{"cmd", "time"}, {"side", side}, {"calls", calls}}, "us");
    }
    std::vector<double> us(static_cast<std::size_t>(options.ranks));
    comm::run_ranks(options.ranks, [&](comm::ProcessGroup& group) {
      us[static_cast<std::size_t>(group.rank())] = time_calls(
          make_call(group, collective, bytes, false), [&] { group.barrier().wait(); }, calls);
    });
    return calls / 1e3 * std::ranges::max(us);
  }

  const Options& options;
  PeerRanks ranks;
  std::vector<std::string> sides;
  json missing = json::object();
};

int calls_of(std::int64_t bytes) { return bytes <= 1 << 16 ? 20 : bytes <= 1 << 20 ? 5 : 2; }

std::vector<Side> measure(Bench& bench, const std::string& collective, std::int64_t bytes) {
  bench.ranks.ask({{"cmd", "prepare"}, {"collective", collective}, {"bytes", bytes}});
  std::vector<Side> sides;
  for (const std::string& side : bench.sides) {
    if (collective != "all_reduce" && only_all_reduces(side)) continue;
    sides.push_back({side, side,
                     [&bench, side, collective, bytes](int calls) {
                       return bench.time(side, collective, bytes, calls);
                     },
                     calls_of(bytes)});
  }
  alternate(sides, bench.options.pairs);
  return sides;
}

json row_of(const Side& side, const std::string& collective, std::int64_t bytes, int ranks) {
  const std::int64_t count = bytes / 4 / (is_divided(collective) ? ranks : 1);
  std::vector<double> us;
  for (const double ms : side.ms) us.push_back(ms * 1e3);
  const Interval time = median_interval(us);
  const double algbw = gb_per_second(static_cast<double>(bytes), time.median);
  return {{"collective", collective},
          {"side", side.key},
          {"bytes", bytes},
          {"count", count},
          {"type", "float"},
          {"redop", is_reduction(collective) ? "sum" : "none"},
          {"us", to_json(time)},
          {"algbw", algbw},
          {"busbw", algbw * bus_factor(collective, ranks)}};
}

// --- Reporting -----------------------------------------------------------------------------------

void print(const std::vector<json>& rows, const std::string& collective, const std::string& side) {
  std::printf("\n%s, %s\n%12s %12s %8s %6s %10s %10s %10s\n%12s %12s %8s %6s %10s %10s %10s\n",
              collective.c_str(), side.c_str(), "size", "count", "type", "redop", "time", "algbw",
              "busbw", "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)");
  for (const json& row : rows) {
    std::printf("%12lld %12lld %8s %6s %10.1f %10.3f %10.3f\n", row["bytes"].get<long long>(),
                row["count"].get<long long>(), row["type"].get<std::string>().c_str(),
                row["redop"].get<std::string>().c_str(), row["us"]["median"].get<double>(),
                row["algbw"].get<double>(), row["busbw"].get<double>());
  }
}

/// The fit through one side's rows, printed below them; null for too few rows.
json fit(const std::vector<json>& rows, const std::string& collective, const std::string& side,
         int ranks) {
  std::vector<Point> points;
  for (const json& row : rows) points.push_back({row["bytes"], row["us"]["median"]});
  const auto fit = fit_alpha_beta(points, bus_factor(collective, ranks));
  if (!fit) return {};
  std::printf("alpha %.1f us, B %.2f GB/s, furthest from it %.0f %%\n", fit->alpha_us,
              fit->gb_per_second, 100 * fit->worst_error);
  return {{"collective", collective},
          {"side", side},
          {"alpha_us", fit->alpha_us},
          {"gb_per_second", fit->gb_per_second},
          {"worst_error", fit->worst_error}};
}

/// The ratio of the time of Gloo's fastest algorithm to that of shm in place; null without one of
/// them.
json compare_with_gloo(const std::vector<Side>& sides, std::int64_t bytes) {
  const auto mine = std::ranges::find(sides, kInPlace, &Side::key);
  const Side* best = nullptr;
  for (const Side& side : sides) {
    if (!side.key.starts_with(kOwnGloo)) continue;
    if (!best || quartiles(side.ms).median < quartiles(best->ms).median) best = &side;
  }
  if (mine == sides.end() || !best) return {};
  return {{"bytes", bytes},
          {"best", best->key},
          {"ratio", to_json(median_interval(ratios(*best, *mine)))}};
}

/// Prints the times of the algorithms side by side, to show at which sizes each is the fastest.
void print_algorithms(const std::map<std::string, std::vector<json>>& rows) {
  std::vector<std::pair<std::string, const std::vector<json>*>> columns;
  for (const std::string& name : all_reduce_algorithms()) {
    if (const auto found = rows.find(kAlgorithm + name); found != rows.end()) {
      columns.emplace_back(name, &found->second);
    }
  }
  if (columns.size() < 2) return;
  std::printf("\nall_reduce by algorithm, time (us)\n%12s", "size");
  for (const auto& [name, column] : columns) std::printf(" %10s", name.c_str());
  std::printf(" %10s\n", "fastest");
  for (std::size_t i = 0; i < columns[0].second->size(); ++i) {
    const auto time = [i](const auto& column) {
      return (*column.second)[i]["us"]["median"].template get<double>();
    };
    std::printf("%12lld", (*columns[0].second)[i]["bytes"].get<long long>());
    for (const auto& column : columns) std::printf(" %10.1f", time(column));
    std::printf(" %10s\n", std::ranges::min_element(columns, {}, time)->first.c_str());
  }
}

/// Measures all sizes of a collective, into the result.
void run_collective(Bench& bench, const std::string& collective, json& result) {
  const int ranks = bench.options.ranks;
  std::vector<std::string> order;  // in which the sides are shown
  std::map<std::string, std::vector<json>> rows;
  std::vector<json> comparisons;
  for (std::int64_t bytes : bench.options.sizes) {
    const std::int64_t unit = 4 * (is_divided(collective) ? ranks : 1);
    bytes = std::max(bytes / unit, std::int64_t{1}) * unit;
    const std::vector<Side> sides = measure(bench, collective, bytes);
    order.clear();
    for (const Side& side : sides) {
      order.push_back(side.key);
      rows[side.key].push_back(row_of(side, collective, bytes, ranks));
    }
    if (const json comparison = compare_with_gloo(sides, bytes); !comparison.is_null()) {
      comparisons.push_back(comparison);
    }
  }
  for (const std::string& side : order) {
    print(rows[side], collective, side);
    for (const json& row : rows[side]) result["rows"].push_back(row);
    if (const json line = fit(rows[side], collective, side, ranks); !line.is_null()) {
      result["fits"].push_back(line);
    }
  }
  print_algorithms(rows);
  if (comparisons.empty()) return;
  std::printf("\n%s of %s against the fastest of Gloo's own\n", collective.c_str(),
              kInPlace.c_str());
  for (const json& comparison : comparisons) {
    const json& ratio = comparison["ratio"];
    std::printf("%12lld %6.2fx [%.2f, %.2f]  %s\n", comparison["bytes"].get<long long>(),
                ratio["median"].get<double>(), ratio["low"].get<double>(),
                ratio["high"].get<double>(), comparison["best"].get<std::string>().c_str());
  }
  result["against_gloo"] = comparisons;
}

/// Throws if the options leave out something that --check needs.
void require_checkable(const Options& options) {
  const auto has = [](const auto& list, const auto& value) {
    return std::ranges::count(list, value) > 0;
  };
  WEFT_CHECK(has(options.backends, "shm") && has(options.backends, "gloo") &&
                 has(options.collectives, "all_reduce") && has(options.sizes, kAutoencoderBytes),
             InvalidArgument, "bench", "--check needs all_reduce of ", kAutoencoderBytes,
             " bytes, by shm and gloo");
  WEFT_CHECK(!own_gloo_algorithms().empty(), Unsupported, "bench",
             "--check compares with Gloo, which this build has not");
}

/// Whether shm in place is as fast as required.
bool check(const json& result) {
  for (const json& comparison : result.value("against_gloo", json::array())) {
    if (comparison["bytes"] != kAutoencoderBytes) continue;
    const double ratio = comparison["ratio"]["median"];
    const bool reached = ratio >= kLeastRatio;
    std::printf(
        "check: all_reduce of %lld bytes, %s: %.2f times as fast as Gloo, to reach %.1f: %s\n",
        static_cast<long long>(kAutoencoderBytes), kInPlace.c_str(), ratio, kLeastRatio,
        reached ? "reached" : "missed");
    return reached;
  }
  std::printf("check: not measured, for want of a side\n");
  return false;
}

int run(const Options& options) {
  if (options.check) require_checkable(options);
  make_folder_of(options.out);
  json result = describe_machine();
  result.update({{"ranks", options.ranks},
                 {"threads_per_rank", 1},
                 {"dtype", "f32"},
                 {"rounds", options.pairs}});
  std::printf("%s, %d cores, %d ranks, f32; medians of %d\n", cpu_model().c_str(), core_count(),
              options.ranks, options.pairs);
  Bench bench(options);
  if (!gloo_version().empty()) result["gloo"] = gloo_version();
  if (!bench.missing.empty()) result["missing"] = bench.missing;
  for (const std::string& collective : options.collectives) {
    run_collective(bench, collective, result);
    std::fflush(stdout);
    write_file_atomically(options.out, to_text(result));
  }
  std::printf("written to %s\n", options.out.c_str());
  return options.check && !check(result);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  using weft::bench::kCollectives;
  weft::bench::Options options;
  CLI::App app("Collectives between processes of this machine", "./weft bench comm");
  const auto one_of = [](auto begin, auto end) {
    return CLI::IsMember(std::vector<std::string>(begin, end));
  };
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--backend", options.backends, "with gloo also Gloo's own all-reduces")
      ->check(one_of(options.backends.begin(), options.backends.end()))
      ->capture_default_str();
  app.add_option("--algorithm", options.algorithms, "all-reduces over the connections of ring")
      ->check(one_of(options.algorithms.begin(), options.algorithms.end()))
      ->capture_default_str();
  app.add_option("--collective", options.collectives)
      ->check(one_of(std::begin(kCollectives), std::end(kCollectives)))
      ->capture_default_str();
  app.add_option("--sizes", options.sizes, "bytes")
      ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--pairs", options.pairs, "alternations")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_flag("--check", options.check,
               "exit with 1 unless shm is as fast as it is to be beside Gloo's best");
  app.add_option("--out,--json", options.out)->capture_default_str();
  return weft::bench::run_program(
      app, argc, argv, [&] { return weft::bench::run(options); }, weft::bench::serve_rank);
}
