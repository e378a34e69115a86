#include "weft/train/recorded_run.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::train {
namespace {

using Json = nlohmann::json;
constexpr const char* kOp = "prove";

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  WEFT_CHECK(file, Io, kOp, path, ": cannot be read");
  return text.str();
}

Json parsed(const std::string& path, const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  WEFT_CHECK(json.is_object(), InvalidArgument, kOp, path,
             ": not a JSON object: ", text.substr(0, 80));
  return json;
}

RecordedStep step_in(const std::string& path, const Json& batch, std::int64_t number) {
  const std::int64_t step = batch.at("step");
  WEFT_CHECK(step == number, InvalidArgument, kOp, path, ": step ", step, " where ", number,
             " was expected: a run that was resumed cannot be replayed, since the weights it began "
             "with are not known");
  WEFT_CHECK(batch.contains("inputs"), InvalidArgument, kOp, path,
             ": the program's steps are no train::Step, so they cannot be replayed");
  const std::int64_t epoch = batch.at("epoch");
  WEFT_CHECK(epoch >= 0 && epoch <= step, InvalidArgument, kOp, path, ": step ", step, " of epoch ",
             epoch);
  return {.epoch = epoch,
          .indices = batch.at("indices").get<std::vector<std::int64_t>>(),
          .inputs = batch.at("inputs").get<std::vector<std::string>>(),
          .saved = batch.at("saved").get<std::set<std::size_t>>(),
          .state = batch.value("state", std::string())};
}

std::vector<GroupRates> rates_in(const Json& update) {
  std::vector<GroupRates> groups;
  for (const Json& group : update.at("groups")) {
    groups.push_back({group.at("lr").get<double>(), group.at("momentum").get<double>()});
  }
  return groups;
}

class RecordedBatches final : public data::BatchSampler {
 public:
  using Epoch = std::vector<std::vector<std::int64_t>>;
  explicit RecordedBatches(std::vector<Epoch> epochs) : epochs_(std::move(epochs)) {}
  bool overrules() const override { return true; }
  std::int64_t size() const override {
    return next_ < epochs_.size() ? std::ssize(epochs_[next_]) : 0;
  }
  Epoch batches(Generator&) const override {
    return next_ < epochs_.size() ? epochs_[next_++] : Epoch();
  }

 private:
  std::vector<Epoch> epochs_;
  mutable std::size_t next_ = 0;
};

}  // namespace

ProofPlan read_plan(const std::string& path) {
  const Json json = parsed(path, read_text(path));
  const auto text = [&](const char* key) {
    WEFT_CHECK(json.contains(key) && json[key].is_string(), InvalidArgument, kOp, path, ": \"", key,
               "\" is missing, or no text");
    return json[key].get<std::string>();
  };
  ProofPlan plan{.out = text("out")};
  const std::string side = text("side");
  WEFT_CHECK(side == "ranks" || side == "one", InvalidArgument, kOp, path, ": \"side\" is \"", side,
             "\", expected \"ranks\" or \"one\"");
  if (side == "one") plan.from = text("from");
  if (json.contains("keep")) {
    const Json& keep = json["keep"];
    WEFT_CHECK(keep.is_object() && keep.contains("step") && keep["step"].is_number_integer(),
               InvalidArgument, kOp, path, ": \"keep\" is ", keep.dump(),
               ", expected {\"step\": N}");
    plan.keep_step = keep["step"].get<std::int64_t>();
  }
  plan.save_inputs = json.contains("save_inputs");
  return plan;
}

RecordedRun read_recorded_run(const std::string& folder) {
  RecordedRun result;
  int sharing = 1, count = 1;  // ranks that share a batch, and all of them
  for (int r = 0; r < count; r += sharing) {
    const std::string path = folder + "/rank-" + std::to_string(r) + ".jsonl";
    std::istringstream file(read_text(path));
    RecordedRank& rank = result.ranks.emplace_back(RecordedRank{.number = r});
    bool begun = false;
    try {
      for (std::string line; std::getline(file, line);) {
        // Most lines are of other kinds.
        const std::string kind = line.substr(0, line.find(','));
        if (kind == "{\"kind\":\"run\"") {
          const Json run = parsed(path, line);
          begun = true;
          result.what =
              what_ran(run.at("program").get<std::string>(), run.at("dtype").get<std::string>(),
                       run.at("dataset_size").get<std::int64_t>());
          count = run.at("ranks");
          const int batches = run.at("batches");
          WEFT_CHECK(batches >= 1 && count >= batches && count % batches == 0, InvalidArgument, kOp,
                     path, ": ", count, " ranks with ", batches, " batches in a step");
          sharing = count / batches;
        } else if (kind == "{\"kind\":\"batch\"") {
          rank.steps.push_back(step_in(path, parsed(path, line), std::ssize(rank.steps)));
        } else if (kind == "{\"kind\":\"update\"" && !rank.steps.empty()) {
          rank.steps.back().updates.push_back(rates_in(parsed(path, line)));
        }
      }
    } catch (const Json::exception& error) {
      WEFT_THROW(InvalidArgument, kOp, path, ": not a record of a run: ", error.what());
    }
    WEFT_CHECK(begun && !rank.steps.empty(), InvalidArgument, kOp, path,
               ": there is no step in it");
  }
  for (const RecordedRank& rank : result.ranks) {
    const std::size_t steps = rank.steps.size(), first = result.ranks[0].steps.size();
    WEFT_CHECK(steps == first, InvalidArgument, kOp, "rank ", rank.number, " has taken ", steps,
               " steps, rank 0 ", first,
               ": ranks with unequal numbers of batches cannot be replayed; let --limit-steps end "
               "them together");
  }
  return result;
}

std::string what_ran(const std::string& program, const std::string& dtype, std::int64_t samples) {
  return detail::concat(program, " in ", dtype, " on ", samples, " samples");
}

std::shared_ptr<const data::BatchSampler> recorded_batches(const RecordedRun& run) {
  std::vector<RecordedBatches::Epoch> epochs;
  for (std::size_t step = 0; step < run.ranks[0].steps.size(); ++step) {
    for (const RecordedRank& rank : run.ranks) {
      const auto epoch = static_cast<std::size_t>(rank.steps[step].epoch);
      if (epochs.size() <= epoch) epochs.resize(epoch + 1);
      epochs[epoch].push_back(rank.steps[step].indices);
    }
  }
  return std::make_shared<RecordedBatches>(std::move(epochs));
}

std::string inputs_file(const std::string& folder, int rank, std::int64_t step) {
  return detail::concat(folder, "/rank-", rank, "-step-", step, "-inputs.safetensors");
}

}  // namespace weft::train
