#include "weft/tools/simulate/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/json_file.h"

namespace weft::simulator {
namespace {

using nlohmann::json;
using weft::detail::concat;

double median_ms(const json& row, const char* key) { return row.at(key).at("median"); }

// `./weft bench devices`
std::vector<Measured> of_devices(const json& run) {
  std::vector<Measured> rows;
  const int devices = run.at("devices");
  const auto add = [&](const json& row, const char* key, Way way, const std::string& what) {
    way.batch = row.at("batch");
    rows.push_back({what, row.at("work"), std::move(way), median_ms(row, key) / 1e3});
  };
  for (const json& row : run.value("data_parallel", json::array())) {
    add(row, "one_ms", {.engine = "one_device"}, "one device");
    add(row, "data_parallel_ms", {.engine = "data_parallel", .devices = devices}, "DataParallel");
  }
  for (const json& row : run.value("pipeline", json::array())) {
    add(row, "one_ms", {.engine = "one_device"}, "one device");
    const Way way{.engine = "pipeline",
                  .devices = devices,
                  .schedule = row.at("schedule"),
                  .checkpoint = row.at("checkpoint"),
                  .chunks = row.at("chunks")};
    add(row, "pipeline_ms", way, to_string(way));
  }
  return rows;
}

// `./weft bench ddp`
std::vector<Measured> of_ddp(const json& run) {
  std::vector<Measured> rows;
  const int ranks = run.at("ranks");
  const auto add = [&](const json& row, const char* key, const std::string& engine,
                       const std::string& what) {
    if (!row.contains(key)) return;
    const std::int64_t batch = ranks * row.at("local_batch").get<std::int64_t>();
    rows.push_back({what, row.at("work"), {engine, batch, ranks}, median_ms(row, key) / 1e3});
  };
  for (const json& row : run.value("throughput", json::array())) {
    add(row, "weft_ms", "ddp", "DistributedDataParallel");
    add(row, "single_ms", "undivided", concat("one process of ", ranks, " threads"));
    add(row, "peer_ms", "", "PyTorch's DDP");
  }
  for (const json& row : run.value("overlap", json::array())) {
    const std::string cap = concat(", bucket cap ", row.at("bucket_cap_mb").dump(), " MiB");
    const bool usual = row.at("bucket_cap_mb").is_null();
    add(row, "overlap_ms", usual ? "ddp" : "", "DDP" + (usual ? "" : cap));
    add(row, "after_ms", "", "DDP without overlap" + cap);
  }
  return rows;
}

// p4_table
std::vector<Measured> of_table(const json& run) {
  std::vector<Measured> rows;
  for (const json& row : run.at("rows")) {
    const std::string name = row.at("name");
    Way way{.batch = row.at("batch")};
    if (name == "single") way.engine = "one_device";
    if (name == "model parallel") way.engine = "model_parallel", way.devices = 2;
    if (name == "pipeline") {
      way = {"pipeline", way.batch, 2, "gpipe", row.at("checkpoint"), row.at("chunks")};
    }
    rows.push_back({way.engine == "pipeline" ? to_string(way) : name, "autoencoder", way,
                    row.at("step_ms").get<double>() / 1e3});
  }
  return rows;
}

// An example program: its name and its flags say what it measured.
std::vector<Measured> of_program(const json& run) {
  const std::string example = run.at("example");
  const std::size_t end = example.rfind('_');
  std::string program = example.substr(0, end),
              kind = end == std::string::npos ? "" : example.substr(end);
  const json flags = run.value("flags", json::object());
  if (flags.contains("depth")) program += flags["depth"].dump();
  if (kind == "_zero") program += "_adam";  // it has another optimiser than the other ways
  // Other values of these options are not predicted.
  std::vector<std::pair<const char*, json>> usual = {{"image-size", 224}, {"width-scale", 1.0}};
  if (program == "char_transformer") {
    usual = {{"context", 64}, {"width", 64}, {"heads", 4}, {"layers", 2}, {"replicas", 1}};
  }
  for (const auto& [name, expected] : usual) {
    const json value = flags.value(name, expected);
    if (value != expected) program += concat(", ", name, " ", value.dump());
  }
  const int ranks = run.value("world_size", 1), threads = run.value("threads", 0);
  Way way{.batch = ranks * run.at("batch_size").get<std::int64_t>()};
  std::string what = example;
  int devices = 0;
  for (const auto& [name, value] : run.items()) devices += name.starts_with("peak_bytes_cpu:");
  if (kind.empty()) way.engine = threads == 1 ? "one_device" : "undivided", way.devices = threads;
  if (kind == "_ddp") way.engine = "ddp", way.devices = ranks;
  if (kind == "_zero") way.engine = "zero1", way.devices = ranks;
  if (kind == "_fsdp") way.engine = flags.value("strategy", "fsdp"), way.devices = ranks;
  if (kind == "_tp" && !flags.value("sequence-parallel", false)) {
    way = {.engine = "tp", .batch = run.at("batch_size"), .devices = ranks};
    if (flags.value("tp", 0) != 0 && flags.value("tp", 0) != ranks) way.engine = "";
  }
  if (kind == "_dp" && devices > 0) way.engine = "data_parallel", way.devices = devices;
  if (kind == "_mp" && devices > 0) way.engine = "model_parallel", way.devices = devices;
  if (kind.empty() && threads != 1) what += concat(" of ", threads, " threads");
  if (kind == "_pipe" && devices > 0 && flags.contains("chunks")) {
    // resnet_pipe uses --schedule for the learning rate.
    const std::string name = flags.contains("pipeline-schedule") ? "pipeline-schedule" : "schedule";
    what = flags.at(name + "-file");
    if (what == "none") {
      way = {"pipeline",        way.batch, devices, flags.at(name), flags.at("checkpoint"),
             flags.at("chunks")};
      what = to_string(way);
    }
  }
  return {{what, program, way, run.at("step_ms_median").get<double>() / 1e3}};
}

}  // namespace

std::vector<Measured> read_run(const std::string& path) {
  std::string file = path;
  if (std::filesystem::is_directory(path)) {
    const std::vector<std::string> names = {"metrics.json", "devices.json", "p4_table.json",
                                            "ddp.json"};
    const auto found = std::ranges::find_if(
        names, [&](const auto& name) { return std::filesystem::exists(path + '/' + name); });
    WEFT_CHECK(found != names.end(), Io, "simulate", path,
               " holds none of metrics.json, devices.json, p4_table.json and ddp.json");
    file = path + '/' + *found;
  }
  return tools::read_json(file, "simulate", "no run", [](const json& run) {
    std::vector<Measured> rows;
    if (run.contains("rows")) {
      rows = of_table(run);
    } else if (run.contains("throughput") || run.contains("overlap")) {
      rows = of_ddp(run);
    } else if (run.contains("data_parallel") || run.contains("pipeline")) {
      rows = of_devices(run);
    } else if (run.contains("step_ms_median")) {
      rows = of_program(run);
    }
    WEFT_CHECK(!rows.empty(), Io, "simulate",
               "no measured steps: it is of none of ./weft bench devices, ./weft bench ddp, "
               "p4_table and the example programs");
    return rows;
  });
}

Check check(const PredictionFile& file, const std::vector<Measured>& run) {
  Check result;
  char line[200];
  std::snprintf(line, sizeof line, "%-52s %6s %12s %12s %9s\n", "", "batch", "predicted",
                "measured", "off by");
  result.text = line;
  for (const Measured& row : run) {
    const bool ours = row.program == file.costs.program;
    const auto found = std::ranges::find(file.predictions, row.way, &Prediction::way);
    // A run by a schedule's file is called as that file, whose path may be long.
    std::string what = ours ? row.what : row.program + ", " + row.what;
    what.resize(std::max(what.size(), std::size_t{52}), ' ');
    const auto batch = static_cast<long long>(row.way.batch);
    if (!ours || row.way.engine.empty() || found == file.predictions.end()) {
      std::snprintf(line, sizeof line, " %6lld %12s %9.3f ms %9s", batch, "none", row.seconds * 1e3,
                    "-");
      result.text += concat(what, line, '\n');
      continue;
    }
    const double off = found->seconds() / row.seconds - 1;
    const bool bad = !(std::abs(off) <= kTolerance);
    ++result.matched;
    result.off += bad;
    std::snprintf(line, sizeof line, " %6lld %9.3f ms %9.3f ms %+8.1f%%", batch,
                  found->seconds() * 1e3, row.seconds * 1e3, 100 * off);
    result.text += concat(what, line, bad ? "  more than 15 %\n" : "\n");
  }
  result.text += concat(result.matched, " of ", run.size(), " rows have a prediction; ",
                        result.matched - result.off, " of these lie within ", 100 * kTolerance,
                        " % of what was measured\n");
  return result;
}

}  // namespace weft::simulator
