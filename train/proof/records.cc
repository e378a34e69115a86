#include "weft/train/proof/records.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "weft/core/base/error.h"

namespace weft::train::proof {
namespace {

using detail::concat;
using nlohmann::json;

// JSON has no numbers for what is not finite.
double number(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return kInfinity;
  return text == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

Settings settings(const json& object) {
  Settings result;
  for (const auto& [name, value] : object.items()) result[name] = value.dump();
  return result;
}

Digest digest(const json& line) {
  Digest digest;
  digest.missing = line.value("missing", false);
  if (digest.missing) return digest;
  line.at("shape").get_to(digest.shape);
  line.at("dtype").get_to(digest.dtype);
  line.at("hash").get_to(digest.hash);
  digest.not_finite = line.value("not_finite", "");
  digest.l2 = number(line.at("l2"));
  for (std::size_t i = 0; i < digest.signs.size(); ++i) {
    digest.signs[i] = number(line.at("signs").at(i));
  }
  digest.part = line.value("part", false);
  return digest;
}

Item item(const std::string& kind, const json& line) {
  return {.kind = kind,
          .step = line.at("step"),
          .event = line.value("event", 0),
          .name = line.at(kind == "output" ? "module" : "name"),
          .type = line.value("type", ""),
          .call = line.value("call", 0),
          .index = line.value("index", 0),
          .training = line.value("training", false),
          .digest = digest(line)};
}

void add(const json& line, Record& record) {
  const std::string kind = line.at("kind");
  if (kind == "run") {
    record.run = settings(line);
    record.program = line.value("program", "?");
    record.dtype = line.value("dtype", "");
    record.dataset_size = line.value("dataset_size", std::int64_t{0});
    line.at("rank").get_to(record.rank);
    line.at("ranks").get_to(record.ranks);
    record.batches = line.value("batches", record.ranks);
  } else if (kind == "optimizer") {
    record.optimizers.push_back({line.value("type", ""), line.at("parameters")});
  } else if (kind == "batch") {
    Batch& batch = record.batch_of[line.at("step")];
    batch.epoch = line.value("epoch", 0);
    line.at("indices").get_to(batch.indices);
    batch.generator = line.value("generator", "");
    batch.inputs = line.value("inputs", std::vector<std::string>());
    batch.saved = !batch.inputs.empty() &&
                  line.value("saved", std::vector<std::size_t>()).size() == batch.inputs.size();
  } else if (kind == "update") {
    Update& update = record.updates.emplace_back(
        Update{line.at("step"), line.value("event", 0), line.value("optimizer", 0), {}});
    for (const json& group : line.at("groups")) update.groups.push_back(settings(group));
  } else if (kind == "loss") {
    for (const auto& [name, value] : line.at("values").items()) {
      const double loss = value.is_string() ? 0 : value.get<double>();
      record.items.push_back({.kind = kind,
                              .step = line.at("step"),
                              .name = name,
                              .digest = {.hash = value.dump(),
                                         .not_finite = value.is_string() ? value.dump() : "",
                                         .l2 = std::abs(loss),
                                         .signs = {loss, loss, loss, loss}}});
    }
  } else if (kind == "end") {
    line.at("step").get_to(record.steps);
  } else if (kind == "micro_batch") {
    record.micro_batches.push_back(item(kind, line));
  } else if (line.contains("hash") || line.contains("missing")) {
    record.items.push_back(item(kind, line));
  }
}

Record read(const std::string& path) {
  Record record;
  record.steps = -1;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    try {
      add(json::parse(line), record);
    } catch (const json::exception& error) {
      WEFT_THROW(Io, "prove", path, ", line ", number,
                 ", is no record of a step; was its program ended while it wrote? ", error.what());
    }
  }
  WEFT_CHECK(!record.run.empty(), Io, "prove", path, " does not say which run it is of");
  WEFT_CHECK(record.steps >= 0, Io, "prove", path,
             " ends before its run did: was the program killed, does it not call "
             "Recorder::finish(), or does it catch what Trial::train() throws?");
  return record;
}

}  // namespace

std::string Item::key() const {
  return concat(kind, ' ', step, ' ', event, ' ', call, ' ', index, ' ', name);
}

std::string Item::kept_as() const {
  if (kind == "output") return concat("output/", name, '/', call, '/', index);
  return kind == "gradient" ? concat("gradient/", event, '/', name) : kind + "/" + name;
}

std::string Item::text() const {
  if (kind == "output") {
    return concat("the output of ", name.empty() ? "the model" : name, " (", type, "), call ", call,
                  index > 0 ? concat(", result ", index) : "");
  }
  return "the " + kind + (kind == "gradient" ? " of " : name.empty() ? "" : " ") + name;
}

std::vector<Record> read_records(const std::string& folder) {
  std::vector<Record> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank-") && name.ends_with(".jsonl"))
      records.push_back(read(entry.path()));
  }
  WEFT_CHECK(!error && !records.empty(), Io, "prove", "no records in ", folder,
             ": a program writes them if it trains with train::Recorder");
  std::ranges::sort(records, {}, &Record::rank);
  return records;
}

}  // namespace weft::train::proof
