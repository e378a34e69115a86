// Predicts the step time of each way of using several devices, compares with runs, replays a
// recorded step under other settings, and models larger machines: `./weft simulate --predict
// F.json`, `--check F.json RUN`, `--replay TRACE`, `--scaling -o OUT.svg`, `--sharding -o OUT.svg`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>
#include <tuple>
#include <vector>

#include "weft/benchmarks/sides.h"
#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/rng.h"
#include "weft/tools/simulate/check.h"
#include "weft/tools/simulate/measure.h"
#include "weft/tools/simulate/prediction_file.h"
#include "weft/tools/simulate/presets.h"
#include "weft/tools/simulate/programs.h"
#include "weft/tools/simulate/replay/replay.h"
#include "weft/tools/simulate/scaling.h"
#include "weft/tools/simulate/sharding.h"
#include "weft/tools/usage.h"
#include "weft/train/environment.h"

namespace weft::simulator {
namespace {

struct Request {
  std::string predict, check, replay, program = "autoencoder";
  std::vector<std::string> runs;
  std::vector<std::int64_t> batches;
  std::vector<int> chunks = {8};
  std::vector<std::int64_t> sizes;
  int devices = 2;
  double seconds = 60;
  std::uint64_t memory = 0;
  bool scaling = false;
  std::string preset = "h100", out, json;
  std::int64_t local_batch = 64, global_batch = 8192;
  bool sharding = false;
  TransformerSize transformer;
  std::int64_t rows = 4;
};

nlohmann::json about() {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return {{"machine", bench::describe_machine()}, {"date", date}, {"time", now}, {"dtype", "f32"}};
}

int predict(const Request& request) {
  // A stage has up to four kinds of actions for each micro-batch, and a V has two stages per
  // device.
  for (const int chunks : request.chunks) {
    WEFT_CHECK(8LL * request.devices * chunks <= parallel::kMostActions, InvalidArgument,
               "simulate", request.devices, " devices and ", chunks,
               " chunks: a schedule has at most ", parallel::kMostActions, " actions");
  }
  bench::make_folder_of(request.predict);
  AtomicFile out(request.predict);  // before a minute of measuring: it may not be writable
  set_host_devices(request.devices);
  set_num_threads(1);
  manual_seed(0);
  if (request.devices > core_count()) {
    std::printf("%d devices share %d cores: they slow each other down\n", request.devices,
                core_count());
  }
  Program program = make_program(request.program);
  std::vector<std::int64_t> batches = request.batches;
  if (batches.empty()) batches = {program.batch_size};
  if (!request.sizes.empty()) {
    program.sizes = request.sizes;
  } else {  // few rows cost the most per row: do not extrapolate below all sizes
    const std::int64_t most = std::ranges::max(request.chunks);
    const std::int64_t fewest = (std::ranges::min(batches) + most - 1) / most;
    program.sizes.push_back(std::min(fewest, std::ranges::min(program.sizes)));
  }
  std::ranges::sort(program.sizes);
  const auto [end, last] = std::ranges::unique(program.sizes);
  program.sizes.erase(end, last);
  PredictionFile file{.about = about()};
  file.costs = measure(program, {.devices = request.devices, .seconds = request.seconds});
  for (const std::int64_t batch : batches) {
    const std::vector<Prediction> ranked = ranking(file.costs, batch, request.chunks);
    std::printf("%s\n",
                to_text(file.costs, ranked, static_cast<std::int64_t>(request.memory)).c_str());
    file.predictions.insert(file.predictions.end(), ranked.begin(), ranked.end());
  }
  out.write(to_text(file));
  out.commit();
  std::printf("%s\n", request.predict.c_str());
  return 0;
}

int check(const Request& request) {
  const PredictionFile file = read_predictions(request.check);
  const Check checked = check(file, read_run(request.runs[0]));
  const auto told = [&](const char* pointer) -> std::string {
    const nlohmann::json::json_pointer place(pointer);
    const bool is_there = file.about.contains(place) && file.about.at(place).is_string();
    return is_there ? file.about.at(place).get<std::string>() : "?";
  };
  std::printf("%s on %s, measured %s, beside %s\n%s", file.costs.program.c_str(),
              told("/machine/cpu").c_str(), told("/date").c_str(), request.runs[0].c_str(),
              checked.text.c_str());
  return !checked.good();
}

int replay(const Request& request) {
  bench::make_folder_of(request.out);
  const auto trace = read_trace(request.replay);
  const ReplayReport report = report_replays(*trace, request.replay, request.runs);
  const std::string drawn = request.out.empty() ? "" : picture(*trace);
  std::printf("%s", report.text.c_str());
  if (!request.out.empty()) {
    write_file_atomically(request.out, drawn);
    std::printf("%s\n", request.out.c_str());
  }
  return !report.good;
}

int scaling(const Request& request) {
  for (const std::string& file : {request.out, request.json}) bench::make_folder_of(file);
  const Cluster& cluster = find_preset(request.preset);
  const Work work = work_of(make_program(request.program));
  const Scaling weak = scale(work, cluster, true, request.local_batch, cluster.most_devices);
  const Scaling strong = scale(work, cluster, false, request.global_batch, cluster.most_devices);
  std::printf("%s\n%s\n%s, model: %s, from\n", to_text(weak).c_str(), to_text(strong).c_str(),
              cluster.name.c_str(), cluster.what.c_str());
  for (const std::string& source : cluster.sources) std::printf("  %s\n", source.c_str());
  if (!request.json.empty()) {
    nlohmann::json rows = to_json(weak);
    for (nlohmann::json& row : to_json(strong)) rows.push_back(std::move(row));
    const nlohmann::json all = {{"kind", "model, nothing measured"},
                                {"program", request.program},
                                {"preset", cluster.name},
                                {"what", cluster.what},
                                {"sources", cluster.sources},
                                {"rows", rows}};
    write_file_atomically(request.json, bench::to_text(all));
    std::printf("%s\n", request.json.c_str());
  }
  if (!request.out.empty()) {
    write_file_atomically(request.out, picture(weak, strong));
    std::printf("%s\n", request.out.c_str());
  }
  return 0;
}

int sharding(const Request& request) {
  for (const std::string& file : {request.out, request.json}) bench::make_folder_of(file);
  const Cluster& cluster = find_preset(request.preset);
  const TransformerSize& model = request.transformer;
  const std::vector<ShardedStep> steps = sharded_steps(model, request.rows, cluster);
  std::printf("%s\n%s, model: %s, from\n", to_text(model, request.rows, cluster, steps).c_str(),
              cluster.name.c_str(), cluster.what.c_str());
  for (const std::string& source : cluster.sources) std::printf("  %s\n", source.c_str());
  if (!request.json.empty()) {
    const auto tokens = static_cast<double>(request.rows * model.context);
    const nlohmann::json all = {{"kind", "model, nothing measured"},
                                {"layers", model.layers},
                                {"width", model.width},
                                {"context", model.context},
                                {"vocabulary", model.vocabulary},
                                {"rows", request.rows},
                                {"preset", cluster.name},
                                {"what", cluster.what},
                                {"sources", cluster.sources},
                                {"steps", to_json(steps, tokens)}};
    write_file_atomically(request.json, bench::to_text(all));
    std::printf("%s\n", request.json.c_str());
  }
  if (!request.out.empty()) {
    write_file_atomically(request.out, picture(model, request.rows, cluster, steps));
    std::printf("%s\n", request.out.c_str());
  }
  return 0;
}

int misuse(const std::string& text) {
  std::fprintf(stderr, "simulate: %s\nTry --help.\n", text.c_str());
  return 2;
}

}  // namespace
}  // namespace weft::simulator

int main(int argc, char** argv) {
  using namespace weft::simulator;
  weft::train::bound_spinning(argc, argv);
  CLI::App app(
      "Predicts what a training step takes with each engine, from what layers and links "
      "of this machine cost, and models data parallelism on larger machines.",
      "simulate");
  app.allow_extras();
  Request request;
  CLI::Option* const predicts =
      app.add_option("--predict", request.predict, "measure, predict, and write this file (.json)");
  CLI::Option* const checks =
      app.add_option("--check", request.check, "what --predict wrote, to be compared with RUN")
          ->excludes(predicts);
  CLI::Option* const replays =
      app.add_option("--replay", request.replay,
                     "what --trace of a program with DistributedDataParallel, fully_shard or a "
                     "Pipeline wrote, to be replayed under each SETTING")
          ->excludes(predicts)
          ->excludes(checks);
  app.add_option(
      "RUN", request.runs,
      "of --check: the JSON of ./weft bench devices or ddp, of p4_table or a program, or its "
      "folder; of --replay: settings as cap=5, order=reversed, reshard=false, schedule=1f1b, "
      "micro-batches=16, link=0-1:100MB/s, slow=1:20ms, ranks=8, latency=50us, bandwidth=1GB/s, "
      "bf16, with commas between what goes together, and @TRACE behind one for what a run with it "
      "recorded");
  app.add_option("--program", request.program)
      ->check(CLI::IsMember(program_names()))
      ->capture_default_str();
  app.add_option("--batch", request.batches,
                 "rows of a step, on all devices together; several: 32,256")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->needs(predicts);
  app.add_option("--devices", request.devices, "virtual CPU devices, of one core each")
      ->check(CLI::Range(1, weft::kMaxDevices))
      ->capture_default_str()
      ->needs(predicts);
  app.add_option("--chunks", request.chunks, "micro-batches of the pipelines; several: 8,16")
      ->delimiter(',')
      ->check(CLI::Range(1, weft::parallel::kMostMicroBatches))
      ->capture_default_str()
      ->needs(predicts);
  app.add_option("--sizes", request.sizes,
                 "with how many rows layers are timed: 8,128; affine between them")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->needs(predicts);
  app.add_option("--host-device-memory", request.memory,
                 "what each device may hold, like 32MiB: says which ways fit")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 50))
      ->needs(predicts);
  app.add_option("--seconds", request.seconds, "for the measuring, about")
      ->check(weft::tools::number_from(0, 3600))
      ->capture_default_str()
      ->needs(predicts);
  CLI::Option* const scales =
      app.add_flag("--scaling", request.scaling,
                   "a model of weak and strong scaling on other machines, to 4096 devices")
          ->disable_flag_override()
          ->excludes(predicts)
          ->excludes(checks)
          ->excludes(replays);
  CLI::Option* const shards =
      app.add_flag("--sharding", request.sharding,
                   "a model of a transformer on other machines, by DDP, ZeRO, FSDP and tensor "
                   "parallelism: time and memory")
          ->disable_flag_override()
          ->excludes(predicts)
          ->excludes(checks)
          ->excludes(replays)
          ->excludes(scales);
  for (const auto& [name, value, help] :
       {std::tuple("--layers", &request.transformer.layers, "blocks of the transformer"),
        {"--width", &request.transformer.width, "numbers of a token"},
        {"--context", &request.transformer.context, "tokens of a row"},
        {"--vocabulary", &request.transformer.vocabulary, "different tokens"},
        {"--rows", &request.rows, "rows of each device"}}) {
    app.add_option(name, *value, help)
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str()
        ->needs(shards);
  }
  app.add_option("--preset", request.preset, "which machine, of --scaling and --sharding")
      ->check(CLI::IsMember(preset_names()))
      ->capture_default_str();
  app.add_option("--local-batch", request.local_batch, "rows of each device, weak scaling")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs(scales);
  app.add_option("--global-batch", request.global_batch, "rows in all, strong scaling")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->needs(scales);
  app.add_option("-o,--out", request.out, "draw it here (.svg)");
  app.add_option("--json", request.json, "write the table here");
  app.footer(
      "Exit status: 0; 1 when --check finds a prediction off by more than 15 %, or none that is "
      "of\n"
      "the run, or --replay a row off by more; 2 for wrong usage or a file that cannot be read or\n"
      "written.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      if (!app.remaining().empty()) return misuse(weft::tools::about_unknown_argument(app));
      const weft::train::EnvironmentScope environment;
      if (!request.runs.empty() && request.check.empty() && request.replay.empty()) {
        return misuse("unexpected argument '" + request.runs[0] +
                      "'; a RUN goes with --check FILE, a SETTING with --replay TRACE");
      }
      if (!request.out.empty() && !request.out.ends_with(".svg")) {
        return misuse("got -o " + request.out + ", expected a name that ends in .svg");
      }
      if (request.scaling) return scaling(request);
      if (request.sharding) return sharding(request);
      for (const char* name : {"--preset", "--json"}) {
        if (app.count(name) > 0) {
          return misuse(std::string(name) + " goes with --scaling or --sharding");
        }
      }
      for (const char* name : {"--replay", "--check"}) {
        if (app.count(name) > 0 && app.count("--program") > 0) {
          return misuse(std::string("--program does not go with ") + name);
        }
      }
      if (!request.replay.empty()) return replay(request);
      if (!request.out.empty()) return misuse("--out goes with --replay, --scaling or --sharding");
      if (!request.predict.empty()) return predict(request);
      if (request.check.empty()) {
        return misuse(
            "expected --predict FILE, --check FILE RUN, --replay TRACE, --scaling or --sharding");
      }
      if (request.runs.empty()) return misuse("--check FILE needs a RUN to compare with");
      if (request.runs.size() > 1) return misuse("--check FILE compares with one RUN");
      return check(request);
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      return misuse(error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "simulate: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, run());
}
