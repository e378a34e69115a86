// The checkpoints that a run writes and from which it resumes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/rng.h"
#include "weft/io/slice_writer.h"
#include "weft/nn/ema.h"
#include "weft/train/checkpoint.h"
#include "weft/train/options.h"
#include "weft/train/output.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// An engine that averages the gradients of several ranks and has a state of its own, as
/// parallel::DistributedDataParallel.
template <class T>
concept Engine = requires(const T& engine, T& other) {
  { engine.engine_state() } -> std::convertible_to<io::NamedTensors>;
  other.load_engine_state(engine.engine_state());
};

/// A model that is cut into parts, as parallel::fully_shard and parallelize make it, or its
/// optimiser. Each rank saves and loads its parts.
template <class T>
concept InParts = requires(T& one, const nn::SavedState& saved) {
  { one.parts() } -> std::convertible_to<nn::StateParts>;
  one.load_parts(saved);
};

/// Averages of a model's weights, or what stands for them.
template <class Part>
concept Averages = std::is_same_v<Part, nn::ExponentialMovingAverage> ||
                   std::is_same_v<typename Part::StandsFor, nn::ExponentialMovingAverage>;

/// Whether the part holds state only for this rank's parts of the parameters, where the whole state
/// is needed: an optimiser, or averages of weights, for a model that parallel::fully_shard has
/// returned.
template <class Model, class Part>
concept OfPartsOnly = (requires(Part& part) { part.set_lr(0.1); } ||
                       std::derived_from<Part, nn::ExponentialMovingAverage>) &&
                      requires(const Model& model, Part& part) { model.state_of(part); };

/// The tensors of options.weights, under the names that a model's state has; `own`: that state.
/// Throws Io for a file that cannot be read, and InvalidArgument for a checkpoint of weft's.
io::NamedTensors initial_weights(const Options& options, const io::NamedTensors& own);
/// Loads the weights that options.weights names, if it names some, as Recorder::resume() does. For
/// a program without a Recorder. Throws InvalidArgument for those of another model, too.
template <class Model>
void load_weights(const Options& options, Model& model) {
  if (options.weights.empty()) return;
  within(options.weights,
         [&] { model.load_state_dict(initial_weights(options, model.state_dict())); });
}

/// Throws InvalidArgument for a module that fully_shard has cut: its state is only that of one
/// rank.
void check_whole(const nn::ModuleBase& model);
template <class Model, class... Parts>
void check_states(const Model& model) {
  static_assert((!OfPartsOnly<Model, Parts> && ...),
                "pass sharded.state_of(optimizer) in place of the optimiser");
  if constexpr (std::derived_from<Model, nn::ModuleBase>) check_whole(model);
}

/// Puts the states of a program's parts into checkpoints and back. Decides which files these are,
/// and what each rank stores for itself. All ranks make the same calls; rank 0 writes, and of a
/// model that is cut into parts each rank writes its own. For the 20th step:
///
///   OUT/model-20-00001-of-00001.safetensors       the model's tensors, by their names
///   OUT/optimizer-20-00001-of-00001.safetensors   "part0.state.3.exp_avg" ...
///   OUT/model.safetensors.index.json              which of the model's tensors is in which file
///   OUT/checkpoint.safetensors                    the rest, and the names of the files that count
///
/// The last one is replaced when the others are on the disk; then those that no checkpoint in OUT
/// names are removed.
class Checkpoints {
 public:
  /// All three must outlive this.
  Checkpoints(const Options& options, const Ranks& ranks, const Output& output)
      : options_(options), ranks_(ranks), output_(output) {}

  /// OUT/checkpoint.safetensors
  std::string latest() const { return output_.path("checkpoint.safetensors"); }

  /// Loads the checkpoint that options.resume names, if it exists; else the weights that
  /// options.weights names into the model alone. From a checkpoint, first the model, the parts, the
  /// loader and the random numbers get their states; then take_up() gets the file's name and the
  /// checkpoint. Throws as Recorder::resume().
  template <class TakeUp, class Model, class Loader, class... Parts>
  void resume(const TakeUp& take_up, Model& model, Loader& loader, Parts&... parts) const {
    check_states<Model, Parts...>(model);
    const std::optional<std::string> path = find();
    if (!path) return begin(model, parts...);
    const CheckpointReader file = open(*path);
    const Checkpoint& books = file.books();
    check_program(*path, books, (std::size_t{0} + ... + !Engine<Parts>),
                  (std::size_t{0} + ... + Engine<Parts>));
    const RankState own = own_state(*path, books, loader.state());
    within(*path, [&] {
      const auto load_saved = [&](auto& one, const nn::SavedState& saved) {
        if constexpr (InParts<std::remove_cvref_t<decltype(one)>>) {
          one.load_parts(saved);
        } else {
          one.load_state_dict(file.whole(saved));
        }
      };
      load_saved(model, file.model());
      std::size_t part = 0, engine = 0;
      [[maybe_unused]] const auto load = [&](auto& one) {
        if constexpr (!Engine<std::remove_cvref_t<decltype(one)>>) {
          load_saved(one, file.part(part++));
        } else if (!books.engines.empty()) {
          one.load_engine_state(books.engines[engine++]);
        }
      };
      (load(parts), ...);
      if (!own.other_loaders.empty()) {
        loader.set_state_of_other_ranks(own.other_loaders, own.samples_per_step,
                                        ranks_.batches_per_step());
      } else if (!own.loader.empty()) {
        loader.set_state(own.loader);
      }
      default_generators().set_state(own.generator);
      take_up(*path, books);
    });
  }

  /// Adds the states to `books`, a checkpoint without them, and writes it as the latest one.
  /// kept_epoch: given at the end of that epoch, for options.keep_checkpoints.
  template <class Model, class Loader, class... Parts>
  void save(Checkpoint books, std::optional<std::int64_t> kept_epoch, const Model& model,
            const Loader& loader, const Parts&... parts) const {
    check_states<Model, Parts...>(model);
    static_assert(InParts<Model> || (!InParts<Parts> && ...), "pass the model that is cut");
    add_states(books, {loader.state(), default_generators().state()});
    const BusyScope alone("save");
    nn::StateParts of_model, of_parts;
    if constexpr (InParts<Model>) {
      of_model = model.parts();
    } else {
      books.model = model.state_dict();
    }
    [[maybe_unused]] const auto add = [&](const auto& one) {
      if constexpr (Engine<std::remove_cvref_t<decltype(one)>>) {
        books.engines.push_back(one.engine_state());
      } else if constexpr (InParts<std::remove_cvref_t<decltype(one)>>) {
        add_part(books, of_parts, one.parts());
      } else {
        books.parts.push_back(one.state_dict());
      }
    };
    (add(parts), ...);
    std::string index;
    if constexpr (InParts<Model>) index = write_parts(books, of_model, of_parts);
    write(books, index, kept_epoch);
  }

  /// Writes OUT/model.safetensors, each rank its parts. All ranks call it.
  void write_model(std::size_t step, const nn::StateParts& parts) const;

 private:
  // The state of one rank.
  struct RankState {
    std::string loader, generator;  // an empty loader: from the beginning of an epoch
    // Used instead if the samples were dealt out in another way: the loaders of all ranks of that
    // run.
    std::vector<std::string> other_loaders = {};
    std::int64_t samples_per_step = 0;  // of that run; 0: not known
  };

  /// Loads the weights that options.weights names, if any.
  template <class Model, class... Parts>
  void begin(Model& model, Parts&... parts) const {
    if (options_.weights.empty()) return;
    load_weights(options_, model);
    // The averages of weights have begun with the weights that the model had before.
    [[maybe_unused]] const auto copy = [&](auto& one) {
      if constexpr (Averages<std::remove_cvref_t<decltype(one)>>) {
        one.load_state_dict(model.state_dict());
      }
    };
    (copy(parts), ...);
  }

  std::optional<std::string> find() const;
  void check_program(const std::string& path, const Checkpoint& checkpoint, std::size_t parts,
                     std::size_t engines) const;
  CheckpointReader open(const std::string& path) const;
  /// `loader`: the state of this rank's loader.
  RankState own_state(const std::string& path, const Checkpoint& checkpoint,
                      const std::string& loader) const;
  std::int64_t samples_per_step() const;
  void add_states(Checkpoint& checkpoint, const RankState& own) const;
  std::string new_tag(std::size_t step) const;
  std::vector<std::string> gather(const std::string& text) const;
  /// What f() returns on each rank. If it throws on one, the others throw Io, which names the rank.
  std::vector<std::string> gather_of(const std::function<std::string()>& f) const;
  /// Writes OUT/NAME-00001-of-00001.safetensors ... All ranks call it.
  io::SliceWriter write_together(const std::string& name, const nn::StateParts& parts,
                                 std::uint64_t most_bytes) const;
  /// Makes room in `books` for a part whose tensors are in files of their own.
  static void add_part(Checkpoint& books, nn::StateParts& of_parts, nn::StateParts part);
  /// Writes the files beside the checkpoint, and their names into `books`; returns the index. All
  /// ranks call it.
  std::string write_parts(Checkpoint& books, const nn::StateParts& of_model,
                          const nn::StateParts& of_parts) const;
  void write(const Checkpoint& books, const std::string& index,
             std::optional<std::int64_t> kept_epoch) const;
  void commit(const Checkpoint& books, const std::string& index,
              std::optional<std::int64_t> kept_epoch) const;
  /// is_cut: whether the latest checkpoint's model is cut; the index then belongs to it.
  void remove_unused(bool is_cut) const;

  const Options& options_;
  const Ranks& ranks_;
  const Output& output_;
};

}  // namespace weft::train
