// Single operations compared with PyTorch's. Blocks of steps of the two libraries alternate. The
// figure is that of one thread, in CPU time, which other programs on the machine hardly change;
// beside it two threads in wall time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "weft/benchmarks/ops_rows.h"
#include "weft/benchmarks/peer.h"
#include "weft/benchmarks/program.h"
#include "weft/benchmarks/sides.h"
#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/tensor/tensor.h"
#include "weft/train/environment.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr double kAsFast = 0.95;

struct Options {
  std::string peer;
  std::string peer_script = "benchmarks/ops_peer.py";
  std::string only;
  int pairs = 7;
  double block_ms = 10;
  bool list = false;
  std::string out = "outputs/ops.json";
};

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

double time_steps(const OpsStep& step, int count, bool cpu) {
  const double before = cpu_ms();
  const double wall = time_ms([&] {
    for (int i = 0; i < count; ++i) step();
  });
  return cpu ? cpu_ms() - before : wall;
}

/// Runs it for 0.1 s, which also warms it up, and returns how many steps take block_ms.
int block_of(const Side& side, double block_ms) {
  int steps = 1;
  double spent = 0, ms = 0;
  while (spent < 100) {
    spent += ms = side.time(steps);
    if (ms < block_ms / 4) steps *= 2;
  }
  return std::max(1, static_cast<int>(steps * block_ms / std::max(ms, 1e-3)));
}

/// The two sums of absolute values are equal but for rounding: other inputs, or another operation,
/// would give another sum.
bool agree(double mine, double theirs, std::int64_t numel) {
  const double largest = std::max(mine, theirs);
  return std::abs(mine - theirs) <= 1e-3 * largest || largest <= 1e-5 * static_cast<double>(numel);
}

/// Alternates weft and PyTorch with this number of threads; times in us.
json compare(const OpsStep& step, Peer& peer, int threads, const Options& options) {
  const bool cpu = threads == 1;
  set_num_threads(threads);
  ask(peer, {{"cmd", "threads"}, {"count", threads}});
  std::vector<Side> sides = {
      {"weft", "weft", [&](int steps) { return time_steps(step, steps, cpu); }},
      {"peer", "PyTorch", [&](int steps) {
         return ask(peer, {{"cmd", "run"}, {"steps", steps}, {"cpu", cpu}})["ms"].get<double>();
       }}};
  for (Side& side : sides) side.block = block_of(side, options.block_ms);
  alternate(sides, options.pairs);
  const auto fastest = [](const Side& side) { return std::ranges::min(side.ms); };
  return {{"weft_us", 1e3 * fastest(sides[0])},
          {"peer_us", 1e3 * fastest(sides[1])},
          {"ratio", fastest(sides[1]) / fastest(sides[0])},
          {"median_ratio", quartiles(ratios(sides[1], sides[0])).median}};
}

json measure(const OpsRow& row, Peer& peer, const Options& options) {
  set_num_threads(1);
  manual_seed(0);
  const OpsStep step = row.prepare();
  const Tensor sum = step().to(DType::f64).abs().sum();
  const json theirs = ask(peer, {{"cmd", "prepare"}, {"row", row.name}});
  json result = {{"name", row.name}, {"sum", sum.item<double>()}, {"peer_sum", theirs["sum"]}};
  result["agree"] = agree(result["sum"], theirs["sum"], theirs["numel"]);
  result.update(compare(step, peer, 1, options));
  result["two_threads"] = compare(step, peer, 2, options);
  return result;
}

/// Throws Library unless both sides have the same workloads.
void check_names(std::vector<std::string> theirs) {
  std::vector<std::string> mine, only_in_one;
  for (const OpsRow& row : ops_rows()) mine.push_back(row.name);
  std::ranges::sort(mine);
  std::ranges::sort(theirs);
  std::ranges::set_symmetric_difference(mine, theirs, std::back_inserter(only_in_one));
  WEFT_CHECK(only_in_one.empty(), Library, "peer", "the sides differ in ", only_in_one.size(),
             " workloads, the first is ", only_in_one[0]);
}

int run(const Options& options) {
  std::vector<OpsRow> rows;
  std::ranges::copy_if(ops_rows(), std::back_inserter(rows), [&](const OpsRow& row) {
    return std::regex_search(row.name, std::regex(options.only));
  });
  if (options.list) {
    for (const OpsRow& row : rows) std::printf("%s\n", row.name.c_str());
    return 0;
  }
  WEFT_CHECK(!options.peer.empty() && !rows.empty(), InvalidArgument, "bench",
             "needs --peer PYTHON (tools/peer-setup) and a workload that --only matches");
  make_folder_of(options.out);
  Peer peer({options.peer, options.peer_script});
  json result = describe_machine();
  result.update({{"dtype", "f32"}, {"pairs", options.pairs}, {"block_ms", options.block_ms}});
  result["peer"] = ask(peer, {{"cmd", "hello"}, {"device", "cpu"}});
  check_names(ask(peer, {{"cmd", "names"}})["names"]);
  std::printf(
      "PyTorch's time over weft's: of the fastest blocks, and the median over the pairs\n"
      "%-36s %6s %6s %11s %11s %8s\n",
      "one thread, CPU time", "ratio", "median", "weft us", "PyTorch us", "2 threads");
  double logs = 0;
  int slower = 0, wrong = 0;
  for (const OpsRow& row : rows) {
    const json r = measure(row, peer, options);
    const double ratio = r["ratio"];
    std::printf("%-36s %6.2f %6.2f %11.1f %11.1f %8.2f%s\n", row.name.c_str(), ratio,
                r["median_ratio"].get<double>(), r["weft_us"].get<double>(),
                r["peer_us"].get<double>(), r["two_threads"]["ratio"].get<double>(),
                r["agree"] ? "" : "  RESULTS DIFFER");
    std::fflush(stdout);
    logs += std::log(ratio);
    slower += ratio < kAsFast;
    wrong += !r["agree"];
    result["rows"].push_back(r);
    write_file_atomically(options.out, to_text(result));
  }
  std::printf("%zu workloads, geometric mean %.2f, %d below %.2f; written to %s\n", rows.size(),
              std::exp(logs / static_cast<double>(rows.size())), slower, kAsFast,
              options.out.c_str());
  if (wrong > 0) std::printf("%d of the workloads gave different results\n", wrong);
  return wrong > 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::train::bound_spinning(argc, argv);
  weft::bench::Options options;
  CLI::App app("Single operations beside PyTorch's, on the CPU", "./weft bench ops");
  app.add_option("--peer", options.peer, "Python with torch (tools/peer-setup)");
  app.add_option("--peer-script", options.peer_script, "the peer's program")->capture_default_str();
  app.add_option("--only", options.only, "the workloads whose names this pattern matches");
  app.add_option("--pairs", options.pairs, "alternations")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--block-ms", options.block_ms, "the time of a block of steps")
      ->check(CLI::Range(0.01, 1e4))
      ->capture_default_str();
  app.add_flag("--list", options.list, "only print the names of the workloads");
  app.add_option("--out,--json", options.out)->capture_default_str();
  return weft::bench::run_program(app, argc, argv, [&] { return weft::bench::run(options); });
}
