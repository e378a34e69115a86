#include "weft/train/metrics.h"

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <variant>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TestFigures& figures) {
  Json object = Json::object();
  for (const auto& [name, value] : figures) object[name] = value;
  return object;
}

Json to_json(const std::vector<EpochMetrics>& epochs) {
  Json list = Json::array();
  for (const EpochMetrics& epoch : epochs) {
    list.push_back({{"mean_loss", epoch.mean_loss},
                    {"sum_loss", epoch.sum_loss},
                    {"seconds", epoch.seconds},
                    {"images_per_second", epoch.images_per_second}});
    if (!epoch.test.empty()) list.back()["test"] = to_json(epoch.test);
  }
  return list;
}

double number(const Json& value) { return value.is_null() ? NAN : value.get<double>(); }

}  // namespace

void write_metrics(const std::string& path, const Metrics& metrics) {
  Json json;
  json["example"] = metrics.example;
  json["device"] = metrics.device;
  json["dtype"] = metrics.dtype;
  json["threads"] = metrics.threads;
  json["seed"] = metrics.seed;
  json["batch_size"] = metrics.batch_size;
  if (!metrics.optimizer.empty()) json["optimizer"] = metrics.optimizer;
  json["lr"] = metrics.lr;
  json["amp"] = metrics.amp;
  json["float32_matmul_precision"] = metrics.float32_matmul_precision;
  json["conv_fp32_precision"] = metrics.conv_fp32_precision;
  json["graph"] = metrics.graph;
  json["world_size"] = metrics.world_size;
  if (!metrics.backend.empty()) json["backend"] = metrics.backend;
  for (const auto& [name, value] : metrics.flags) {
    std::visit([&](const auto& v) { json["flags"][name] = v; }, value);
  }
  for (const auto& [name, value] : metrics.notes) json[name] = value;
  for (const TestFigures& one : metrics.memory) json["memory"].push_back(to_json(one));
  if (metrics.loss_name.empty()) {
    json["losses"] = metrics.losses;
  } else {
    json["losses"][metrics.loss_name] = metrics.losses;
    for (const auto& [name, values] : metrics.more_losses) json["losses"][name] = values;
  }
  json["epochs"] = to_json(metrics.epochs);
  json["test"] = to_json(metrics.test);
  json["step_ms_median"] = metrics.step_ms_median;
  json["train_seconds"] = metrics.train_seconds;
  json["cpu"] = metrics.cpu;
  json["version"] = metrics.version;
  json["date"] = metrics.date;
  json["commit"] = metrics.commit;
  // A flag's text, such as a path, may have any bytes.
  write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n');
}

std::string epochs_to_text(const std::vector<EpochMetrics>& epochs) {
  return to_json(epochs).dump();
}

std::vector<EpochMetrics> epochs_from_text(const std::string& text) {
  try {
    std::vector<EpochMetrics> epochs;
    for (const Json& item : Json::parse(text)) {
      epochs.push_back({number(item.at("mean_loss")), number(item.at("sum_loss")),
                        number(item.at("seconds")), number(item.at("images_per_second"))});
      if (!item.contains("test")) continue;
      for (const auto& [name, value] : item["test"].items())
        epochs.back().test.emplace_back(name, number(value));
    }
    return epochs;
  } catch (const nlohmann::json::exception& error) {
    WEFT_THROW(InvalidArgument, "metrics", "not a list of epochs: ", error.what());
  }
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string source_commit() {
  const char* commit = std::getenv("WEFT_COMMIT");
  return commit != nullptr && *commit != '\0' ? commit : "unknown";
}

}  // namespace weft::train
