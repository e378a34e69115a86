// Recorder: records a run while the program trains: losses, times, progress, checkpoints, and the
// files that a run leaves. The training step itself is the program's.
//
//   train::Recorder recorder(options);
//   recorder.resume(model, loader, adam);                      // if --resume says so
//   while (recorder.next_epoch()) {
//     for (auto& [x, label] : recorder.batches(loader)) {
//       ...
//       recorder.step(loss);
//     }
//     recorder.save(model, loader, adam);
//   }
//   if (recorder.interrupted()) return;
//   recorder.finish(model, "mse", mse);
//
// If several processes train together (train/ranks.h), all of them make the same calls; rank 0
// writes the files, with means over the ranks. save() and resume() get their engine, too:
// recorder.save(model, loader, adam, ddp).
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/tensor.h"
#include "weft/train/checkpoint.h"
#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/train/progress.h"
#include "weft/train/ranks.h"
#include "weft/train/tensorboard.h"

namespace weft::train {

template <class Loader>
class BatchRange;

/// Marks a folder as being written to, as long as it lives; leaves nothing behind.
class OutputLock {
 public:
  OutputLock() = default;
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  ~OutputLock();

  /// Warns if another lock, in this process or another, holds the folder. To be called once.
  void take(const std::string& folder);

 private:
  int fd_ = -1;
};

/// An engine that averages the gradients of several ranks and has a state of its own, as
/// parallel::DistributedDataParallel.
template <class T>
concept Engine = requires(const T& engine, T& other) {
  { engine.engine_state() } -> std::convertible_to<io::NamedTensors>;
  other.load_engine_state(engine.engine_state());
};

/// One of several losses of a step.
struct NamedLoss {
  std::string_view name;
  const Tensor& value;
};

class Recorder {
 public:
  /// Makes the output folder. Throws Io when nothing can be written there; warns when another run
  /// writes there, too.
  explicit Recorder(const Options& options, const Ranks& ranks = {});
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Continues from the checkpoint that options.resume names. Without a name, or with "latest" and
  /// no checkpoint yet, starts from the beginning. Throws InvalidArgument for another program's
  /// file, and for another model's, listing names and shapes; then nothing has changed. Throws Io
  /// for a file that is damaged or lacks an entry, and on a rank that does not find the latest
  /// checkpoint of rank 0. A run with another number of ranks can be continued between epochs, with
  /// other random numbers from there on, which a warning says; within an epoch it is
  /// InvalidArgument.
  ///
  /// parts: what save() gets, in its order: optimisers and learning rate schedulers; averages of
  /// weights; and the engine of several ranks, whose state an older file lacks (a warning says that
  /// the losses may then get other last bits). With options.checkpoint_every, batches()
  /// saves them, the model and the loader as save() would, so they must live as long as its range.
  template <class Model, class Loader, class... Parts>
  void resume(Model& model, Loader& loader, Parts&... parts) {
    save_ = [this, &model, &loader, &parts...] { save(model, loader, parts...); };
    (note_optimizer<Parts>(), ...);
    if (!find_checkpoint()) return;
    const Checkpoint checkpoint = load_checkpoint(options_.resume, options_.map_location);
    check_program(checkpoint, (std::size_t{0} + ... + !Engine<Parts>),
                  (std::size_t{0} + ... + Engine<Parts>));
    const RankState own = own_state(checkpoint);
    within(options_.resume, [&] {
      model.load_state_dict(checkpoint.model);
      std::size_t part = 0, engine = 0;
      [[maybe_unused]] const auto load = [&](auto& one) {
        if constexpr (!Engine<std::remove_cvref_t<decltype(one)>>) {
          one.load_state_dict(checkpoint.parts[part++]);
        } else if (!checkpoint.engines.empty()) {
          one.load_engine_state(checkpoint.engines[engine++]);
        }
      };
      (load(parts), ...);
      if (!own.loader.empty()) loader.set_state(own.loader);
      default_generators().set_state(own.generator);
      take_up(checkpoint);
    });
  }

  /// Moves on to the next epoch; false when all are done, after SIGINT and at the limit of steps.
  bool next_epoch();
  std::int64_t epoch() const { return epoch_; }
  /// Steps so far, those before a resume included.
  std::int64_t steps() const { return static_cast<std::int64_t>(losses_.size()) + pending_; }

  /// The loader's batches of this epoch, with progress on stderr. Ends early after SIGINT and at
  /// the limit of steps; the loader's state() is then in the middle of the epoch. SIGINT to one
  /// rank ends all of them after the same step, some 50 ms later.
  template <class Loader>
  BatchRange<Loader> batches(Loader& loader) {
    return BatchRange<Loader>(*this, loader);
  }
  /// To be called once per step. loss: one element. On CUDA its value is read later, many at once:
  /// the host does not wait for the step. The first loss that is not finite gives a warning with
  /// its step.
  void step(const Tensor& loss) { step({{"", loss}}); }
  /// The same for a program with several losses; progress and epochs show the first one:
  ///   recorder.step({{"discriminator", loss_d}, {"generator", loss_g}});
  /// Throws InvalidArgument without losses, and for other names than in earlier steps.
  void step(std::initializer_list<NamedLoss> losses);

  /// Writes OUT/checkpoint.safetensors; with options.keep_checkpoints also, at the end of an epoch,
  /// OUT/checkpoint-epoch-N.safetensors (a hard link to it where the file system has them).
  template <class Model, class Loader, class... Parts>
  void save(const Model& model, const Loader& loader, const Parts&... parts) {
    const Scoped step(&ThreadState::step, steps());
    const PhaseScope phase("save");
    Checkpoint checkpoint = books();
    add_states(checkpoint, {loader.state(), default_generators().state()});
    {
      const BusyScope alone("save");
      checkpoint.model = model.state_dict();
      [[maybe_unused]] const auto add = [&](const auto& one) {
        if constexpr (Engine<std::remove_cvref_t<decltype(one)>>) {
          checkpoint.engines.push_back(one.engine_state());
        } else {
          checkpoint.parts.push_back(one.state_dict());
        }
      };
      (add(parts), ...);
      write(checkpoint);
    }
    if (stopped_) {
      tell_interruption();
      merge_traces();
    }
  }

  /// Whether SIGINT came, to this rank or another. The run then leaves only the checkpoint.
  bool interrupted() const { return stopped_; }

  /// Records and prints a figure of a test ("accuracy") after the epoch. The last figures count as
  /// those of the run.
  void test(const std::string& name, double value);

  /// Writes OUT/model.safetensors, loss.png and metrics.json, and prints where.
  template <class Model>
  void finish(const Model& model) {
    if (ranks_.rank == 0) {
      const BusyScope alone("save");
      io::save_safetensors(path("model.safetensors"), model.state_dict(), {{"format", "pt"}});
    }
    finish();
  }
  template <class Model>
  void finish(const Model& model, const std::string& test_name, double test_value) {
    test(test_name, test_value);
    finish(model);
  }

  /// Adds figures to metrics.json: {"bytes_sent", 123}.
  void note(const TestFigures& figures);

  /// OUT/name
  std::string path(const std::string& name) const;
  /// One per step so far. All ranks call it.
  const std::vector<double>& losses();

 private:
  template <class Loader>
  friend class BatchRange;
  using Clock = std::chrono::steady_clock;

  // What each rank has for itself.
  struct RankState {
    std::string loader, generator;  // an empty loader: from the beginning
  };

  // What BatchRange reports.
  bool should_stop();
  void begin_epoch(std::int64_t batches, std::int64_t done, std::int64_t dataset_size);
  void end_epoch(bool complete);
  void leave_epoch();
  void save_when_due();

  // What metrics.json calls the optimiser: the first part that has a learning rate. A part that
  // stands for an optimiser, as in programs of several ranks, names that class by a type StandsFor.
  template <class Part>
  void note_optimizer() {
    if (!optimizer_.empty()) return;
    if constexpr (requires { typename Part::StandsFor; }) {
      optimizer_ = detail::type_name<typename Part::StandsFor>();
    } else if constexpr (requires(Part& part) { part.set_lr(0.1); }) {
      optimizer_ = detail::type_name<Part>();
    }
  }
  void tell_interruption() const;

  bool agree_to_stop();
  bool find_checkpoint();
  void check_program(const Checkpoint& checkpoint, std::size_t parts, std::size_t engines) const;
  RankState own_state(const Checkpoint& checkpoint) const;
  void add_states(Checkpoint& checkpoint, const RankState& own) const;
  void take_up(const Checkpoint& checkpoint);
  void write(const Checkpoint& checkpoint);
  void merge_traces();
  void finish();
  void write_figures() const;
  Checkpoint books();
  void check_names(std::initializer_list<NamedLoss> losses);
  void record(std::size_t which, double loss);
  void flush();
  void average();
  void tell_losses();
  double epoch_mean() const;
  double epoch_seconds() const;
  double images_per_second() const;
  std::int64_t images_per_step() const;

  Options options_;
  Ranks ranks_;
  OutputLock lock_;
  Progress progress_;
  std::function<void()> save_;
  std::vector<double> losses_;  // of this rank from averaged_ on
  std::string loss_name_;       // empty unless there are more
  std::vector<NamedLosses> more_losses_;
  std::size_t averaged_ = 0;  // the losses of so many steps are means over the ranks
  std::vector<EpochMetrics> epochs_;
  std::string optimizer_;
  TestFigures notes_;
  TestFigures test_;              // the last figures
  std::int64_t test_epoch_ = -1;  // of this epoch
  std::vector<float> step_ms_;
  std::optional<EventFile> events_;
  std::size_t told_ = 0;  // the losses of so many steps are in it, or in one before it
  bool warned_ = false;
  bool stopped_ = false;
  bool traces_merged_ = false;
  int agree_in_ = 0;  // so many further steps; in one process it is not asked
  Clock::time_point agreed_;
  std::int64_t agreed_steps_ = 0;

  std::int64_t epoch_ = -1;
  bool epoch_complete_ = true;
  std::int64_t epoch_first_step_ = 0;
  std::int64_t epoch_batches_ = 0;
  std::int64_t epoch_images_ = 0;     // of a complete epoch
  double earlier_seconds_ = 0;        // of this epoch, until it was left
  std::int64_t earlier_batches_ = 0;  // likewise
  bool in_loop_ = false;
  Clock::time_point epoch_start_;
  Clock::time_point step_start_;

  Tensor waiting_;            // losses still on the device
  std::int64_t pending_ = 0;  // how many
};

/// What Recorder::batches returns; a range for one for loop.
template <class Loader>
class BatchRange {
 public:
  BatchRange(Recorder& recorder, Loader& loader) : recorder_(recorder), loader_(loader) {}

  class Iterator {
   public:
    explicit Iterator(Recorder& recorder) : recorder_(&recorder) {}
    Iterator(Iterator&& other) noexcept
        : recorder_(std::exchange(other.recorder_, nullptr)), it_(std::move(other.it_)) {
      other.it_.reset();
    }
    Iterator& operator=(Iterator&&) = delete;
    ~Iterator() {
      if (recorder_) recorder_->leave_epoch();
    }

    auto& operator*() const { return **it_; }
    Iterator& operator++() {
      // After SIGINT the next batch is not even asked for: the loader stays where it is.
      const bool stop = recorder_->should_stop();
      if (!stop) {
        recorder_->save_when_due();
        ++*it_;
      }
      settle(stop);
      return *this;
    }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.it_; }

   private:
    friend class BatchRange;
    void settle(bool stop) {
      if (!stop && it_ && !(*it_ == std::default_sentinel)) return;
      it_.reset();
      std::exchange(recorder_, nullptr)->end_epoch(!stop);
    }

    Recorder* recorder_;
    std::optional<typename Loader::Iterator> it_;
  };

  Iterator begin() {
    recorder_.begin_epoch(loader_.size(), loader_.position(), loader_.dataset().size());
    Iterator it(recorder_);
    const bool stop = recorder_.should_stop();
    if (!stop) it.it_.emplace(loader_.begin());
    it.settle(stop);
    return it;
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  Recorder& recorder_;
  Loader& loader_;
};

}  // namespace weft::train
