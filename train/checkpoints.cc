#include "weft/train/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <regex>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/io/state_dict.h"
#include "weft/kernels/plan/choice_cache.h"
#include "weft/nn/shard.h"
#include "weft/nn/wrapper_prefix.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "recorder";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSamples = "samples_per_step";
constexpr std::uint64_t kMostBytes = 5'000'000'000;  // in a file, as Hugging Face's

// Whether write_parts() gives such names: "model-20-00001-of-00001.safetensors". Model hubs give
// others, without a step.
bool is_beside(const std::string& name) {
  static const std::regex all("(model|optimizer)-[0-9.]+-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  return std::regex_match(name, all);
}

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
  const auto note = [&](const char* key, const std::string& otherwise) {
    const auto found = checkpoint.notes.find(key);
    return found == checkpoint.notes.end() ? otherwise : found->second;
  };
  const std::string example = note("example", options_.example), family = note("family", "");
  WEFT_CHECK(example == options_.example || (!family.empty() && family == options_.family),
             InvalidArgument, "checkpoint", path, ": it is of the program ", example, ", this is ",
             options_.example);
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
  const auto example = notes.find("example");
  const bool is_other = example != notes.end() && example->second != options_.example;
  if (saved == ranks_.size && !is_other) return own;
  const std::string by = is_other ? example->second + " with " : "";
  own.of_other_ranks = checkpoint_count(path, notes, "epoch_complete") == 0;
  if (own.of_other_ranks) {
    const std::int64_t samples =
        notes.contains(kSamples) ? checkpoint_count(path, notes, kSamples) : 0;
    WEFT_CHECK(samples == samples_per_step(), InvalidArgument, "checkpoint", path,
               ": saved by a run of ", by, saved, " ranks within an epoch, this run has ",
               ranks_.size, "; resume with ", is_other ? example->second : std::to_string(saved),
               ", with as many samples in a step of all ranks (", samples, "), or from the end of ",
               "an epoch");
    own.loader = checkpoint.loader;
  } else {
    own.loader.clear();
  }
  log_warning(detail::concat(path, ": saved by a run of ", by, saved, " ranks, this run has ",
                             ranks_.size, ": from here on its random numbers are others"));
  return own;
}

std::int64_t Checkpoints::samples_per_step() const {
  return options_.batch_size * ranks_.batches_per_step();
}

void Checkpoints::add_states(Checkpoint& checkpoint, const RankState& own) const {
  checkpoint.loader = own.loader;
  checkpoint.generator = own.generator;
  checkpoint.notes[kSamples] = std::to_string(samples_per_step());
  if (ranks_.size == 1) return;
  checkpoint.notes["ranks"] = std::to_string(ranks_.size);
  const auto loaders = ranks_.gather(own.loader), generators = ranks_.gather(own.generator);
  for (std::size_t i = 1; i < loaders.size(); ++i) {
    checkpoint.notes[detail::concat("rank", i, ".loader")] = loaders[i];
    checkpoint.notes[detail::concat("rank", i, ".generator")] = generators[i];
  }
}

void Checkpoints::add_part(Checkpoint& books, nn::StateParts& of_parts, nn::StateParts part) {
  for (nn::StatePart& one : part) {
    one.name = detail::concat("part", books.parts.size(), '.', one.name);
    of_parts.push_back(std::move(one));
  }
  books.parts.emplace_back();
}

// A step's number, or with one more behind it. Files that are there are never written to: a
// checkpoint may need them.
std::string Checkpoints::new_tag(std::size_t step) const {
  const auto taken = [&](const std::string& tag) {
    const std::filesystem::directory_iterator files(options_.out);
    return std::ranges::any_of(files, [&](const auto& file) {
      const std::string name = file.path().filename();
      return name.starts_with("model-" + tag + '-') || name.starts_with("optimizer-" + tag + '-');
    });
  };
  std::string tag = std::to_string(step);
  for (int i = 2; taken(tag); ++i) tag = detail::concat(step, '.', i);
  return tag;
}

std::vector<std::string> Checkpoints::gather(const std::string& text) const {
  return ranks_.size == 1 ? std::vector{text} : ranks_.gather(text);
}

io::SliceWriter Checkpoints::write_together(const std::string& name, const nn::StateParts& parts,
                                            std::uint64_t most_bytes) const {
  std::vector<io::TensorSlice> slices = slices_of(parts);
  const std::vector<std::string> all = gather(io::describe(slices));
  io::SliceWriter writer(output_.path(name), std::move(slices), ranks_.rank, all,
                         {{"format", "pt"}}, most_bytes);
  if (ranks_.rank == 0) writer.make_files();
  gather("");  // now the files are there
  fault_point();
  const std::vector<std::string> written = gather(writer.write());
  if (ranks_.rank == 0) writer.finish(written);
  return writer;
}

std::string Checkpoints::write_parts(Checkpoint& books, const nn::StateParts& of_model,
                                     const nn::StateParts& of_parts) const {
  const std::string tag = gather(ranks_.rank == 0 ? new_tag(books.losses.size()) : "")[0];
  const io::SliceWriter model = write_together("model-" + tag, of_model, kMostBytes),
                        parts = write_together("optimizer-" + tag, of_parts, kMostBytes);
  books.model_files = model.files();
  books.part_files = parts.files();
  return model.index();
}

void Checkpoints::write_model(std::size_t step, const nn::StateParts& parts) const {
  const std::string tag = gather(ranks_.rank == 0 ? new_tag(step) : "")[0];
  const io::SliceWriter model =
      write_together("model-" + tag, parts, std::numeric_limits<std::uint64_t>::max());
  if (ranks_.rank != 0) return;
  std::filesystem::rename(output_.path(model.files()[0]), output_.path("model.safetensors"));
}

void Checkpoints::write(const Checkpoint& books, const std::string& index,
                        std::optional<std::int64_t> kept_epoch) const {
  if (ranks_.rank != 0) return fault_point();
  const std::string last = latest();
  // Saves the kernel choices before the checkpoint, so that a killed run need not time them again.
  if (ChoiceCache* const choices = thread_state().choices) choices->save();
  if (!index.empty()) write_file_atomically(output_.path(kIndex), index);
  save_checkpoint(last, books);
  if (options_.keep_checkpoints && kept_epoch) {
    // The next save() gives the name to a new file, so this one does not change.
    const std::string kept =
        output_.path(detail::concat("checkpoint-epoch-", *kept_epoch, ".safetensors"));
    std::error_code error;
    std::filesystem::remove(kept, error);
    std::filesystem::create_hard_link(last, kept, error);
    if (error) save_checkpoint(kept, books);
  }
  remove_unused();
}

// Those of earlier checkpoints, and what a killed run has left.
void Checkpoints::remove_unused() const {
  std::set<std::string> unused, checkpoints;
  for (const auto& file : std::filesystem::directory_iterator(options_.out)) {
    const std::string name = file.path().filename();
    if (is_beside(name)) unused.insert(name);
    if (name.starts_with("checkpoint") && name.ends_with(".safetensors")) checkpoints.insert(name);
  }
  if (unused.empty()) return;
  try {
    for (const std::string& name : checkpoints) {
      for (const std::string& used : files_beside(output_.path(name))) unused.erase(used);
    }
    if (const std::string index = output_.path(kIndex); std::filesystem::exists(index)) {
      for (const auto& [name, path] : io::read_index(index)) {
        unused.erase(std::filesystem::path(path).filename());
      }
    }
  } catch (const Error& error) {
    log_warning(detail::concat(error.what(), "; files of earlier checkpoints stay"));
    return;
  }
  for (const std::string& name : unused) std::filesystem::remove(output_.path(name));
}

}  // namespace weft::train
