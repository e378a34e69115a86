// Steps of DistributedDataParallel: two ranks compared with one process that has both cores and
// with PyTorch's, with and without overlap, and with fully_shard. Each side has its own processes,
// which sleep while another side runs a block of steps.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "weft/benchmarks/ddp_work.h"
#include "weft/benchmarks/peer.h"
#include "weft/benchmarks/program.h"
#include "weft/benchmarks/sides.h"
#include "weft/benchmarks/timing.h"
#include "weft/benchmarks/work.h"
#include "weft/comm/init.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/train/environment.h"
#include "weft/train/ranks.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
// The throughput that is required at kCheckedBatch, relative to one process with as many threads
// (the median, and the lower end of its interval), and relative to PyTorch.
constexpr std::int64_t kCheckedBatch = 32;
constexpr double kOfOneProcess = 0.85, kLeastOfOneProcess = 0.80, kOfPeer = 1.8;

struct Options {
  std::string peer;
  std::string peer_script = "benchmarks/ddp_peer.py";
  std::string backend = "auto";
  std::vector<std::string> parts = {"throughput", "overlap", "sharding"};
  std::vector<std::int64_t> batches = {16, kCheckedBatch, 64};
  std::int64_t resnet_batch = 2;
  int pairs = 31;
  bool tiny = false;
  bool check = false;
  std::string out = "outputs/ddp.json";
};

// --- A rank --------------------------------------------------------------------------------------

/// Answers
///   {"cmd": "prepare", "work": W, "batch": B, "tiny": T, "backend": K, "strategy": S,
///    "bucket_cap_mb": C or null, "overlap": O}
///                               -> "backend", and of DDP "bucket_bytes"; one rank alone: nothing,
///                                  and the plain model
///   {"cmd": "run", "steps": N}  -> the "ms" of all of them, and of DDP "exposed_ms" of each
/// A rank alone has the threads of kRanks.
class Rank {
 public:
  json prepare(const json& request) {
    const int rank = request["rank"], ranks = request["ranks"];
    WorkSpec spec = find_work(request["work"]);
    if (request["tiny"].get<bool>()) spec = tiny(spec);
    spec.images[0] = request["batch"];
    set_num_threads(kRanks / ranks);
    thread_state().deterministic = request["tiny"];  // chooses no kernels by timing
    if (ranks == 1) {
      work_ = make_work(spec);
      work_->step();
      return json::object();
    }
    const auto group = comm::init_process_group(
        {.init_method = "file://" + request["folder"].get<std::string>() + "/meeting",
         .rank = rank,
         .world_size = ranks,
         .backend = request["backend"]});
    RankWorkOptions options{.strategy = request["strategy"], .overlap = request["overlap"]};
    if (!request["bucket_cap_mb"].is_null()) options.bucket_cap_mb = request["bucket_cap_mb"];
    work_ = make_rank_work(spec, group, options);
    for (int i = 0; i < 2; ++i) work_->step();  // the first one rebuilds the buckets
    ddp_ = dynamic_cast<const DdpWork*>(work_.get());
    json answer = {{"backend", group->backend()}};
    if (ddp_) answer["bucket_bytes"] = ddp_->stats().bucket_bytes;
    return answer;
  }

  json run(const json& request) {
    const int steps = request["steps"];
    json answer = {{"ms", time_ms([&] {
                      for (int step = 0; step < steps; ++step) work_->step();
                    })}};
    if (ddp_) {
      const std::vector<double>& all = ddp_->stats().exposed_ms;
      answer["exposed_ms"] = std::vector(all.end() - steps, all.end());
    }
    return answer;
  }

 private:
  std::unique_ptr<Work> work_;
  const DdpWork* ddp_ = nullptr;  // the same, if it is one
};

void serve_rank() {
  const train::EnvironmentScope environment;
  Rank rank;
  serve({{"prepare", [&](const json& request) { return rank.prepare(request); }},
         {"run", [&](const json& request) { return rank.run(request); }}});
}

// --- Sides ---------------------------------------------------------------------------------------

WorkSpec spec_of(const std::string& work, std::int64_t batch, const Options& options) {
  WorkSpec spec = options.tiny ? tiny(find_work(work)) : find_work(work);
  spec.images[0] = batch;
  return spec;
}

/// The processes of one side, and what they answered to "prepare".
struct Team {
  Team(int count, const std::vector<std::string>& command, const json& request)
      : ranks(count, command), answer(ranks.ask(request).front()) {}

  /// Milliseconds for `steps` steps, of the slowest rank.
  double time(int steps) {
    double most = 0;
    std::vector<double> exposed;
    for (const json& rank : ranks.ask({{"cmd", "run"}, {"steps", steps}})) {
      most = std::max(most, rank["ms"].get<double>());
      train::take_least(exposed, rank.value("exposed_ms", std::vector<double>()));
    }
    exposed_ms.insert(exposed_ms.end(), exposed.begin(), exposed.end());
    return most;
  }

  PeerRanks ranks;
  json answer;
  /// For each step the exposed time of the rank whose gradients were ready last: it waited for no
  /// other.
  std::vector<double> exposed_ms = {};
};

std::unique_ptr<Team> weft_team(const Options& options, int ranks, const std::string& work,
                                std::int64_t batch, const json& bucket_cap_mb = {},
                                bool overlap = true, const std::string& strategy = "ddp") {
  return std::make_unique<Team>(ranks, std::vector<std::string>{"/proc/self/exe", "--serve"},
                                json{{"cmd", "prepare"},
                                     {"work", work},
                                     {"batch", batch},
                                     {"tiny", options.tiny},
                                     {"backend", options.backend},
                                     {"strategy", strategy},
                                     {"bucket_cap_mb", bucket_cap_mb},
                                     {"overlap", overlap}});
}

Side side_of(const std::string& key, const std::string& label, Team& team, int block) {
  return {key, label, [&team](int steps) { return team.time(steps); }, block};
}

/// Alternates the sides; prints and keeps their times, and the ratios to the first side's time.
void measure(std::vector<Side> sides, const Options& options, json& row) {
  for (Side& side : sides) side.time(side.block);
  alternate(sides, options.pairs);
  row["steps"] = options.pairs * sides[0].block;
  for (const Side& side : sides) {
    const Interval q = median_interval(side.ms);
    row[side.key + "_ms"] = to_json(q);
    std::printf("%-44s %9.3f ms [%.3f, %.3f]", side.label.c_str(), q.median, q.low, q.high);
    if (&side != &sides[0]) {
      const Interval r = median_interval(ratios(side, sides[0]));
      row[side.key + "_ratio"] = to_json(r);
      std::printf("   %.3fx [%.3f, %.3f]", r.median, r.low, r.high);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

// --- Throughput ----------------------------------------------------------------------------------

json throughput(const Options& options, std::int64_t batch) {
  const std::string work = "autoencoder";
  const WorkSpec spec = spec_of(work, batch, options);
  const int block = std::max(1, spec.block / 2);
  json row = {{"work", work}, {"local_batch", batch}};
  std::printf("\n%s, local batch %lld: times, and how many times that of the first\n", work.c_str(),
              static_cast<long long>(batch));
  const auto weft = weft_team(options, kRanks, work, batch);
  const auto single = weft_team(options, 1, work, kRanks * batch);
  row["backend"] = weft->answer["backend"];
  row["bucket_bytes"] = weft->answer["bucket_bytes"];
  std::vector<Side> sides = {
      side_of("weft", detail::concat("weft, ", kRanks, " ranks x 1 thread"), *weft, block),
      side_of("single",
              detail::concat("weft, 1 process x ", kRanks, " threads, batch ", kRanks * batch),
              *single, block)};
  std::unique_ptr<Team> peer;
  if (!options.peer.empty()) {
    peer = std::make_unique<Team>(kRanks, std::vector{options.peer, options.peer_script},
                                  json{{"cmd", "prepare"}, {"work", to_json(spec)}});
    row["peer_config"] = peer->answer["config"];
    row["peer_tried"] = peer->answer["tried"];
    row["peer_version"] = peer->answer["torch"];
    sides.push_back(
        side_of("peer", "PyTorch DDP, " + peer->answer["config"].get<std::string>(), *peer, block));
  }
  measure(sides, options, row);
  return row;
}

bool reached(const char* what, const json& ratio, double median, double low) {
  const double m = ratio["median"], l = ratio["low"];
  const bool good = m >= median && l >= low;
  std::printf("check: throughput beside %s %.3f [from %.3f], to reach %.2f [from %.2f]: %s\n", what,
              m, l, median, low, good ? "reached" : "missed");
  return good;
}

/// Throws if the options leave out something that --check needs.
void require_checkable(const Options& options) {
  WEFT_CHECK(std::ranges::count(options.parts, "throughput") &&
                 std::ranges::count(options.batches, kCheckedBatch),
             InvalidArgument, "bench", "--check needs --part throughput at --batch-size ",
             kCheckedBatch);
  WEFT_CHECK(!options.peer.empty(), InvalidArgument, "bench",
             "--check compares with PyTorch's too: name a Python that has it by --peer");
}

/// Whether the required figures are reached.
bool check(const json& result) {
  const json& rows = result["throughput"];
  const json& row = *std::ranges::find_if(
      rows, [](const json& candidate) { return candidate["local_batch"] == kCheckedBatch; });
  const bool single =
      reached("one process", row["single_ratio"], kOfOneProcess, kLeastOfOneProcess);
  return reached("PyTorch", row["peer_ratio"], kOfPeer, 0) && single;
}

// --- Overlap -------------------------------------------------------------------------------------

json overlap(const Options& options, const std::string& work, std::int64_t batch,
             const json& bucket_cap_mb) {
  json row = {{"work", work}, {"local_batch", batch}, {"bucket_cap_mb", bucket_cap_mb}};
  const auto on = weft_team(options, kRanks, work, batch, bucket_cap_mb, true);
  const auto off = weft_team(options, kRanks, work, batch, bucket_cap_mb, false);
  row["backend"] = on->answer["backend"];
  row["bucket_bytes"] = on->answer["bucket_bytes"];
  std::printf("\n%s, local batch %lld, bucket cap %s: %zu buckets\n", work.c_str(),
              static_cast<long long>(batch),
              bucket_cap_mb.is_null() ? "default" : (bucket_cap_mb.dump() + " MiB").c_str(),
              row["bucket_bytes"].size());
  const int block = std::max(1, spec_of(work, batch, options).block / 2);
  measure({side_of("overlap", "reduced while backward runs", *on, block),
           side_of("after", "reduced after backward", *off, block)},
          options, row);
  for (const auto& [name, team] : {std::pair("overlap", on.get()), {"after", off.get()}}) {
    team->exposed_ms.erase(team->exposed_ms.begin(), team->exposed_ms.begin() + block);  // warm-up
    const Interval exposed = median_interval(team->exposed_ms);
    row[std::string(name) + "_exposed_ms"] = to_json(exposed);
    std::printf("  exposed, %-33s %9.3f ms [%.3f, %.3f]\n", name, exposed.median, exposed.low,
                exposed.high);
  }
  std::fflush(stdout);
  return row;
}

// --- Sharding ------------------------------------------------------------------------------------

json sharding(const Options& options, const std::string& work) {
  const WorkSpec spec = spec_of(work, options.tiny ? 2 : find_work(work).images[0], options);
  const std::int64_t batch = spec.images[0];
  const int block = std::max(1, spec.block / 2);
  json row = {{"work", work}, {"local_batch", batch}};
  std::printf("\n%s, local batch %lld: times, and how many times that of DDP\n", work.c_str(),
              static_cast<long long>(batch));
  std::vector<std::unique_ptr<Team>> teams;
  std::vector<Side> sides;
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    teams.push_back(weft_team(options, kRanks, work, batch, {}, true, strategy));
    sides.push_back(side_of(strategy, strategy, *teams.back(), block));
  }
  row["backend"] = teams[0]->answer["backend"];
  measure(std::move(sides), options, row);
  return row;
}

int run(const Options& options) {
  if (options.check) require_checkable(options);
  make_folder_of(options.out);
  json result = describe_machine();
  result.update(
      {{"ranks", kRanks}, {"threads_per_rank", 1}, {"dtype", "f32"}, {"rounds", options.pairs}});
  if (options.tiny) result["tiny"] = true;
  std::printf(
      "%s, %d cores, f32; medians of %d rounds with their 90 %% intervals; a ratio is that within "
      "a "
      "round, so it may differ from the ratio of two medians\n",
      cpu_model().c_str(), core_count(), options.pairs);
  const auto keep = [&](const char* part, const json& row) {
    result[part].push_back(row);
    write_file_atomically(options.out, to_text(result));
  };
  if (std::ranges::count(options.parts, "throughput")) {
    if (options.peer.empty()) std::printf("no --peer PYTHON given, so weft alone\n");
    for (const std::int64_t batch : options.batches) keep("throughput", throughput(options, batch));
  }
  if (std::ranges::count(options.parts, "overlap")) {
    for (const int cap : {25, 4, 1}) {
      keep("overlap", overlap(options, "autoencoder", options.tiny ? 2 : kCheckedBatch, cap));
    }
    keep("overlap", overlap(options, "resnet50", options.resnet_batch, {}));
  }
  if (std::ranges::count(options.parts, "sharding")) {
    for (const char* work : {"mlp", "autoencoder", "transformer"}) {
      keep("sharding", sharding(options, work));
    }
  }
  std::printf("written to %s\n", options.out.c_str());
  return options.check && !check(result);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  weft::train::bound_spinning(argc, argv);
  weft::bench::Options options;
  CLI::App app("DistributedDataParallel of two ranks on this machine", "./weft bench ddp");
  app.add_option("--peer", options.peer, "Python with torch (tools/peer-setup)");
  app.add_option("--peer-script", options.peer_script, "the peer's program")->capture_default_str();
  app.add_option("--backend", options.backend)
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "shm", "gloo", "ring"}))
      ->capture_default_str();
  app.add_option(
         "--part", options.parts,
         "throughput: beside one process and PyTorch; overlap: what it hides; sharding: DDP "
         "beside fully_shard")
      ->check(CLI::IsMember(options.parts))
      ->capture_default_str();
  app.add_option("--batch-size", options.batches, "of a rank, for the autoencoder")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--resnet-batch-size", options.resnet_batch, "of a rank, for ResNet-50")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--pairs", options.pairs, "alternations")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_flag("--tiny", options.tiny,
               "rehearse: nets and batches so small that the figures mean nothing");
  app.add_flag("--check", options.check, "exit with 1 unless what is to be reached is");
  app.add_option("--out,--json", options.out)->capture_default_str();
  return weft::bench::run_program(
      app, argc, argv, [&] { return weft::bench::run(options); }, weft::bench::serve_rank);
}
