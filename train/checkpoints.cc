#include "weft/train/checkpoints.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <sstream>
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
constexpr const char* kBatches = "batches_per_step";
constexpr std::uint64_t kMostBytes = 5'000'000'000;  // in a file, as Hugging Face's

// Whether write_parts() gives such names: "model-20-00001-of-00001.safetensors". Model hubs give
// others, without a step.
bool is_beside(const std::string& name) {
  static const std::regex all("(model|optimizer)-[0-9.]+-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  return std::regex_match(name, all);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    names.push_back(file->path().filename());
  }
  WEFT_CHECK(!error, Io, kOp, folder, ": cannot list it: ", error.message());
  return names;
}

// How many samples a rank draws in an epoch, in the text of LoaderCore::state().
std::string order_size(const std::string& loader) {
  std::istringstream in(loader);
  std::string format, dataset, order;
  in >> format >> dataset >> order;
  return order;
}

// The state of generator `r` of those that follow from a seed and a step.
std::string new_generator(std::uint64_t seed, std::uint64_t step, std::uint64_t r) {
  GeneratorSet own;
  own.manual_seed(Generator(Generator(seed).random64() + step).random64() + r);
  return own.state();
}

std::string shown_ranks(std::int64_t ranks, std::int64_t batches) {
  return detail::concat(
      ranks, batches == ranks ? "" : detail::concat(" (batches in a step: ", batches, ')'));
}

}  // namespace

io::NamedTensors initial_weights(const Options& options, const io::NamedTensors& own) {
  const std::string file = options.weights.substr(0, options.weights.rfind(":model"));
  if (std::error_code error; file.ends_with(".safetensors") &&
                             std::filesystem::is_regular_file(file, error) &&
                             !io::is_pickle_file(file)) {
    const std::vector<std::string> beside = files_beside(file);
    WEFT_CHECK(beside.empty(), InvalidArgument, "checkpoint", file, ": its model is in ", beside[0],
               ", beside it; --weights ",
               (std::filesystem::path(file).parent_path() / kIndex).string(),
               " begins with the weights of the latest checkpoint");
  }
  io::NamedTensors values = nn::strip_wrappers(
      io::load_state_dict(options.weights, {.device = options.map_location}), own);
  const auto has = [&](const std::string& name) {
    return std::ranges::find(values, name, &io::NamedTensors::value_type::first) != values.end();
  };
  WEFT_CHECK(own.empty() || has(own[0].first) || !has("model." + own[0].first), InvalidArgument,
             "checkpoint", options.weights, ": a checkpoint of weft's; --weights ", options.weights,
             ":model begins with its weights, --resume goes on from it");
  if (options.head.empty()) return values;
  for (auto& [name, value] : values) {
    const auto mine = std::ranges::find(own, name, &io::NamedTensors::value_type::first);
    if (mine == own.end() || !name.starts_with(options.head)) continue;
    if (value.shape() != mine->second.shape()) value = mine->second;
  }
  return values;
}

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
  gather_of([&] {
    WEFT_CHECK(here, Io, kOp, path, ": rank ", ranks_.rank, " does not find it, rank 0 ",
               "does; --out must be a folder that all ranks see");
    return "";
  });
  return path;
}

CheckpointReader Checkpoints::open(const std::string& path) const {
  std::optional<CheckpointReader> file;
  const std::vector<std::string> all =
      gather_of([&] { return file.emplace(path, options_.map_location).fingerprint(); });
  for (std::size_t r = 1; r < all.size(); ++r) {
    WEFT_CHECK(all[r] == all[0], Io, kOp, path, ": rank ", r, " reads another checkpoint (", all[r],
               ") than rank 0 (", all[0], "); all ranks must see the same files");
  }
  return std::move(*file);
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

Checkpoints::RankState Checkpoints::own_state(const std::string& path, const Checkpoint& checkpoint,
                                              const std::string& loader) const {
  const auto& notes = checkpoint.notes;
  const auto count = [&](const char* key, std::int64_t otherwise) {
    return notes.contains(key) ? checkpoint_count(path, notes, key) : otherwise;
  };
  const std::int64_t saved = count("ranks", 1), now = ranks_.batches_per_step();
  // Older files do not say how many batches a step had; the loader's share of the data does.
  const bool is_same_share =
      saved == ranks_.size && order_size(checkpoint.loader) == order_size(loader);
  const std::int64_t batches = count(kBatches, is_same_share ? now : saved);
  const auto of_rank = [&](std::int64_t rank, const char* what, const std::string& of_first) {
    return rank == 0 || rank >= saved
               ? of_first
               : checkpoint_entry(path, notes, detail::concat("rank", rank, '.', what));
  };
  const auto example = notes.find("example");
  const bool is_other = example != notes.end() && example->second != options_.example;
  const bool is_same = saved == ranks_.size && batches == now && !is_other;
  RankState own{.samples_per_step = count(kSamples, is_same ? samples_per_step() : 0)};
  // Ranks that share a batch are neighbours, and draw the same numbers.
  const auto sharing = [](std::int64_t ranks, std::int64_t of_all) {
    return std::max<std::int64_t>(1, ranks / std::max<std::int64_t>(1, of_all));
  };
  const std::int64_t number = ranks_.rank / sharing(ranks_.size, now);  // of this rank's batch
  if (batches == now) {
    const std::int64_t source = is_same ? ranks_.rank : number * sharing(saved, batches);
    own.generator = of_rank(source, "generator", checkpoint.generator);
  } else {
    own.generator =
        new_generator(options_.seed, checkpoint.losses.size(), static_cast<std::uint64_t>(number));
  }
  if (is_same && own.samples_per_step == samples_per_step()) {
    own.loader = of_rank(ranks_.rank, "loader", checkpoint.loader);
    return own;
  }
  const bool is_within = checkpoint_count(path, notes, "epoch_complete") == 0;
  for (std::int64_t rank = 0; is_within && rank < saved; ++rank) {
    own.other_loaders.push_back(of_rank(rank, "loader", checkpoint.loader));
  }
  if (is_same && !is_within) return own;
  log_warning(detail::concat(
      path, ": saved by a run of ", is_other ? example->second + " with " : "",
      shown_ranks(saved, batches), " ranks, this run has ", shown_ranks(ranks_.size, now),
      batches == now ? ""
                     : detail::concat(": from here on its random numbers are others, generator r "
                                      "of ",
                                      now, " from (seed ", options_.seed, ", step ",
                                      checkpoint.losses.size(), ", r)"),
      is_within
          ? detail::concat("; the rest of the epoch is dealt out anew, with ", samples_per_step(),
                           " samples in a step in place of ", own.samples_per_step)
          : ""));
  return own;
}

std::int64_t Checkpoints::samples_per_step() const {
  return options_.batch_size * ranks_.batches_per_step();
}

void Checkpoints::add_states(Checkpoint& checkpoint, const RankState& own) const {
  checkpoint.loader = own.loader;
  checkpoint.generator = own.generator;
  checkpoint.notes[kSamples] = std::to_string(samples_per_step());
  checkpoint.notes[kBatches] = std::to_string(ranks_.batches_per_step());
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

// The step's number, with a further number if files have it already; rank 0 chooses. Existing files
// are never written to, since a checkpoint may need them.
std::string Checkpoints::new_tag(std::size_t step) const {
  return gather_of([&]() -> std::string {
    if (ranks_.rank != 0) return "";
    WEFT_CHECK(output_.is_alone(), Io, kOp, options_.out, ": another run is writing here, and ",
               "each would remove files of the other; choose another folder with --out");
    remove_unused(true);  // files of a failed save may fill the disk
    const std::vector<std::string> names = names_in(options_.out);
    const auto taken = [&](const std::string& tag) {
      return std::ranges::any_of(names, [&](const std::string& name) {
        return name.starts_with("model-" + tag + '-') || name.starts_with("optimizer-" + tag + '-');
      });
    };
    std::string tag = std::to_string(step);
    for (int i = 2; taken(tag); ++i) tag = detail::concat(step, '.', i);
    return tag;
  })[0];
}

std::vector<std::string> Checkpoints::gather(const std::string& text) const {
  return ranks_.size == 1 ? std::vector{text} : ranks_.gather(text);
}

std::vector<std::string> Checkpoints::gather_of(const std::function<std::string()>& f) const {
  if (ranks_.size == 1) return {f()};
  std::exception_ptr own;
  std::string text;
  try {
    text = "=" + f();
  } catch (const std::exception& error) {
    own = std::current_exception();
    text = std::string("!") + error.what();
  }
  std::vector<std::string> all = ranks_.gather(text);
  if (own) std::rethrow_exception(own);
  for (std::size_t r = 0; r < all.size(); ++r) {
    WEFT_CHECK(all[r].starts_with('='), Io, kOp, "rank ", r, ": ", all[r].substr(1));
    all[r].erase(0, 1);
  }
  return all;
}

io::SliceWriter Checkpoints::write_together(const std::string& name, const nn::StateParts& parts,
                                            std::uint64_t most_bytes) const {
  std::vector<io::TensorSlice> slices = slices_of(parts);
  const std::vector<std::string> all = gather(io::describe(slices));
  io::SliceWriter writer(output_.path(name), std::move(slices), ranks_.rank, all,
                         {{"format", "pt"}}, most_bytes);
  const std::string made =
      gather_of([&] { return ranks_.rank == 0 ? writer.make_files() : ""; })[0];
  fault_point();
  const std::vector<std::string> written = gather_of([&] { return writer.write(made); });
  gather_of([&] {
    if (ranks_.rank == 0) writer.finish(made, written);
    return "";
  });
  return writer;
}

std::string Checkpoints::write_parts(Checkpoint& books, const nn::StateParts& of_model,
                                     const nn::StateParts& of_parts) const {
  const std::string tag = new_tag(books.losses.size());
  const io::SliceWriter model = write_together("model-" + tag, of_model, kMostBytes),
                        parts = write_together("optimizer-" + tag, of_parts, kMostBytes);
  books.model_files = model.files();
  books.part_files = parts.files();
  return model.index();
}

void Checkpoints::write_model(std::size_t step, const nn::StateParts& parts) const {
  const BusyScope alone("save");
  const io::SliceWriter model =
      write_together("model-" + new_tag(step), parts, std::numeric_limits<std::uint64_t>::max());
  gather_of([&] {
    if (ranks_.rank != 0) return "";
    rename_durably(output_.path(model.files()[0]), output_.path("model.safetensors"));
    return "";
  });
}

void Checkpoints::write(const Checkpoint& books, const std::string& index,
                        std::optional<std::int64_t> kept_epoch) const {
  const auto of_rank = [&] {
    ranks_.rank == 0 ? commit(books, index, kept_epoch) : fault_point();
    return "";
  };
  // All ranks have written a cut model, and none goes on before the checkpoint counts.
  if (books.model_files.empty()) {
    of_rank();
  } else {
    gather_of(of_rank);
  }
}

void Checkpoints::commit(const Checkpoint& books, const std::string& index,
                         std::optional<std::int64_t> kept_epoch) const {
  const std::string last = latest();
  // Saves the kernel choices before the checkpoint, so that a killed run need not time them again.
  if (ChoiceCache* const choices = thread_state().choices) choices->save();
  if (!index.empty()) write_file_atomically(output_.path(kIndex), index);
  if (options_.keep_checkpoints && kept_epoch) {
    // First, since a run that goes on from `last` does not come to this epoch's end again.
    const std::string kept =
        output_.path(detail::concat("checkpoint-epoch-", *kept_epoch, ".safetensors"));
    save_checkpoint(kept, books);
    // A second name; the next save() gives `last` to a new file, so this one does not change. Not
    // ".tmp", which save_checkpoint() refuses if a killed run leaves it with two names.
    const std::string link = last + ".link";
    std::error_code error;
    std::filesystem::remove(link, error);
    std::filesystem::create_hard_link(kept, link, error);
    error ? save_checkpoint(last, books) : rename_durably(link, last);
  } else {
    save_checkpoint(last, books);
  }
  remove_unused(!books.model_files.empty());
}

// Removes the files of earlier checkpoints and of killed runs. If that fails, nothing is lost.
void Checkpoints::remove_unused(bool is_cut) const {
  std::set<std::string> unused;
  try {
    const std::vector<std::string> names = names_in(options_.out);
    std::ranges::copy_if(names, std::inserter(unused, unused.end()), is_beside);
    if (unused.empty()) return;
    for (const std::string& name : names) {
      if (!name.starts_with("checkpoint") || !name.ends_with(".safetensors")) continue;
      for (const std::string& used : files_beside(output_.path(name))) unused.erase(used);
    }
    if (std::ranges::find(names, kIndex) != names.end()) {
      std::set<std::string> indexed;
      for (const auto& [name, path] : io::read_index(output_.path(kIndex))) {
        indexed.insert(std::filesystem::path(path).filename());
      }
      if (!is_cut && std::ranges::all_of(indexed, is_beside)) {
        std::error_code error;
        std::filesystem::remove(output_.path(kIndex), error);  // it belongs to an earlier model
      } else {
        for (const std::string& used : indexed) unused.erase(used);
      }
    }
  } catch (const Error& error) {
    log_warning(detail::concat(error.what(), "; files of earlier checkpoints stay"));
    return;
  }
  for (const std::string& name : unused) {
    const std::string path = output_.path(name);
    if (!io::is_of_slice_writer(path)) continue;  // it is another program's
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) log_warning(detail::concat(path, ": cannot remove it: ", error.message()));
  }
}

}  // namespace weft::train
