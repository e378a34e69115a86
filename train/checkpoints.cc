#include "weft/train/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/io/state_dict.h"
#include "weft/kernels/plan/choice_cache.h"
#include "weft/nn/shard.h"
#include "weft/nn/wrapper_prefix.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "recorder";

}  // namespace

void check_whole(const nn::ModuleBase& model) {
  WEFT_CHECK(nn::shards_of(model).empty(), InvalidArgument, kOp, model.type_name(),
             " is cut into parts, one on each rank: save and resume what fully_shard has returned");
}

// The file to resume from, if any. For "latest", rank 0 decides for all ranks whether it exists.
std::optional<std::string> Checkpoints::find() const {
  if (options_.resume.empty()) return std::nullopt;
  if (options_.resume != "latest") return options_.resume;
  const std::string path = latest();
  const bool here = std::filesystem::exists(path);
  if (ranks_.sum({ranks_.rank == 0 && here ? 1.0 : 0})[0] == 0) {
    log_info(detail::concat(path, ": not there yet; from the beginning"));
    return std::nullopt;
  }
  WEFT_CHECK(here, Io, kOp, path, ": rank ", ranks_.rank, " does not find it, rank 0 ",
             "does; --out must be a folder that all ranks see");
  return path;
}

/// The tensors of options.weights, under the names of the model.
io::NamedTensors Checkpoints::initial_weights(const io::NamedTensors& own) const {
  io::NamedTensors values = nn::strip_wrappers(
      io::load_state_dict(options_.weights, {.device = options_.map_location}), own);
  const auto has = [&](const std::string& name) {
    return std::ranges::find(values, name, &io::NamedTensors::value_type::first) != values.end();
  };
  WEFT_CHECK(own.empty() || has(own[0].first) || !has("model." + own[0].first), InvalidArgument,
             "checkpoint", options_.weights, ": a checkpoint of weft's; --weights ",
             options_.weights, ":model begins with its weights, --resume goes on from it");
  if (options_.head.empty()) return values;
  for (auto& [name, value] : values) {
    const auto mine = std::ranges::find(own, name, &io::NamedTensors::value_type::first);
    if (mine == own.end() || !name.starts_with(options_.head)) continue;
    if (value.shape() != mine->second.shape()) value = mine->second;
  }
  return values;
}

void Checkpoints::check_program(const std::string& path, const Checkpoint& checkpoint,
                                std::size_t parts, std::size_t engines) const {
  const auto example = checkpoint.notes.find("example");
  WEFT_CHECK(example == checkpoint.notes.end() || example->second == options_.example,
             InvalidArgument, "checkpoint", path, ": it is of the program ", example->second,
             ", this is ", options_.example);
  WEFT_CHECK(checkpoint.parts.size() == parts, InvalidArgument, "checkpoint", path, ": it holds ",
             checkpoint.parts.size(), " optimisers and schedulers, this program has ", parts);
  if (engines == 0 || checkpoint.engines.size() == engines) return;
  WEFT_CHECK(checkpoint.engines.empty(), InvalidArgument, "checkpoint", path,
             ": it holds the states of ", checkpoint.engines.size(), " engines, this program has ",
             engines);
  if (ranks_.size < 3) return;  // a sum of two numbers does not depend on the order
  log_warning(detail::concat(
      path, ": saved without the engine's state, as earlier versions did it: the next ",
      "step may add up the ranks' gradients in another order, and the losses may then differ from ",
      "those of an undisturbed run in their last bits"));
}

Checkpoints::RankState Checkpoints::own_state(const std::string& path,
                                              const Checkpoint& checkpoint) const {
  const auto& notes = checkpoint.notes;
  const std::int64_t saved = notes.contains("ranks") ? checkpoint_count(path, notes, "ranks") : 1;
  const auto of_rank = [&](const char* what, const std::string& of_first) {
    return ranks_.rank == 0 || ranks_.rank >= saved
               ? of_first
               : checkpoint_entry(path, notes, detail::concat("rank", ranks_.rank, '.', what));
  };
  RankState own{of_rank("loader", checkpoint.loader), of_rank("generator", checkpoint.generator)};
  if (saved == ranks_.size) return own;
  WEFT_CHECK(checkpoint_count(path, notes, "epoch_complete") != 0, InvalidArgument, "checkpoint",
             path, ": saved by a run of ", saved, " ranks within an epoch, this run has ",
             ranks_.size, "; resume with ", saved, ", or from the end of an epoch");
  log_warning(detail::concat(path, ": saved by a run of ", saved, " ranks, this run has ",
                             ranks_.size, ": from here on its random numbers are others"));
  own.loader.clear();
  return own;
}

void Checkpoints::add_states(Checkpoint& checkpoint, const RankState& own) const {
  checkpoint.loader = own.loader;
  checkpoint.generator = own.generator;
  if (ranks_.size == 1) return;
  checkpoint.notes["ranks"] = std::to_string(ranks_.size);
  const auto loaders = ranks_.gather(own.loader), generators = ranks_.gather(own.generator);
  for (std::size_t i = 1; i < loaders.size(); ++i) {
    checkpoint.notes[detail::concat("rank", i, ".loader")] = loaders[i];
    checkpoint.notes[detail::concat("rank", i, ".generator")] = generators[i];
  }
}

void Checkpoints::write(const Checkpoint& checkpoint,
                        std::optional<std::int64_t> kept_epoch) const {
  if (ranks_.rank != 0) return fault_point();
  const std::string last = latest();
  // Saves the kernel choices before the checkpoint, so that a killed run need not time them again.
  if (ChoiceCache* const choices = thread_state().choices) choices->save();
  save_checkpoint(last, checkpoint);
  if (!options_.keep_checkpoints || !kept_epoch) return;
  // The next save() gives the name to a new file, so this one does not change.
  const std::string kept =
      output_.path(detail::concat("checkpoint-epoch-", *kept_epoch, ".safetensors"));
  std::error_code error;
  std::filesystem::remove(kept, error);
  std::filesystem::create_hard_link(last, kept, error);
  if (error) save_checkpoint(kept, checkpoint);
}

}  // namespace weft::train
