// Recorder: records a run while the program trains: losses, times, progress, checkpoints, and the
// output files. The training step itself is the program's.
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
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/io/safetensors.h"
#include "weft/tensor/tensor.h"
#include "weft/train/batch_range.h"
#include "weft/train/checkpoints.h"
#include "weft/train/figures.h"
#include "weft/train/losses.h"
#include "weft/train/memory_table.h"
#include "weft/train/metrics.h"
#include "weft/train/options.h"
#include "weft/train/output.h"
#include "weft/train/progress.h"
#include "weft/train/ranks.h"
#include "weft/train/recorder_proof.h"

namespace weft::train {

class Recorder {
 public:
  /// Makes the output folder. Throws Io if nothing can be written there; warns if another run
  /// writes there, too.
  explicit Recorder(const Options& options, const Ranks& ranks = {});
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Continues from the checkpoint that options.resume names. Without a name, or with "latest" and
  /// no checkpoint yet, starts from the beginning: with the model as it is, or with the weights
  /// that options.weights names. Throws InvalidArgument for another program's file, and for another
  /// model's, listing names and shapes; then nothing has changed. Throws Io for a file that is
  /// damaged or lacks an entry, and on a rank that does not find the latest checkpoint of rank 0. A
  /// run with another number of ranks, or of batches in a step of them, or of another program of
  /// options.family, or with another batch size, can be continued, with a warning: within an epoch
  /// its rest is dealt out anew (data::DataLoader::set_state_of_other_ranks, which may refuse it
  /// with InvalidArgument). If the number of batches is another one, generator r of them follows
  /// from options.seed, the step and r. Throws Io on all ranks if they do not read the same
  /// checkpoint.
  ///
  /// parts: those of save(), in the same order: optimisers and learning rate schedulers; averages
  /// of weights; and the engine of several ranks, whose state an older file lacks (a warning then
  /// says that the last bits of the losses may differ). With options.checkpoint_every, batches()
  /// saves them, the model and the loader as save() would, so they must live as long as its range.
  template <class Model, class Loader, class... Parts>
  void resume(Model& model, Loader& loader, Parts&... parts) {
    save_ = [this, &model, &loader, &parts...] { save(model, loader, parts...); };
    (note_optimizer<Parts>(), ...);
    checkpoints_.resume(
        [this](const std::string& path, const Checkpoint& from) { take_up(path, from); }, model,
        loader, parts...);
    proof_.begin(ranks_, model, loader, parts...);
  }

  /// Moves on to the next epoch; false if all are done, after SIGINT, or at the limit of steps.
  bool next_epoch();
  std::int64_t epoch() const { return epoch_; }
  /// Steps so far, including those before a resume.
  std::int64_t steps() const { return losses_.steps(); }

  /// The loader's batches of this epoch, with progress on stderr. Ends early after SIGINT and at
  /// the limit of steps; the loader's state() is then in the middle of the epoch. SIGINT to one
  /// rank ends all of them after the same step, some 50 ms later.
  template <class Loader>
  BatchRange<Recorder, Loader> batches(Loader& loader) {
    return {*this, loader};
  }
  /// To be called once per step. loss: one element. On CUDA its value is read later, many at once:
  /// the host does not wait for the step. The first loss that is not finite gives a warning with
  /// its step.
  void step(const Tensor& loss) { step({{"", loss}}); }
  /// The same for a program with several losses; progress and epochs show the first one:
  ///   recorder.step({{"discriminator", loss_d}, {"generator", loss_g}});
  /// Throws InvalidArgument without losses, for other names than in earlier steps, and for several
  /// losses without names or with the same one.
  void step(std::initializer_list<NamedLoss> losses);

  /// Writes OUT/checkpoint.safetensors, and files beside it for a model that is cut into parts
  /// (checkpoints.h); with options.keep_checkpoints also, at the end of an epoch,
  /// OUT/checkpoint-epoch-N.safetensors (a hard link to it where the file system has them). For a
  /// cut model it throws Io on all ranks if one of them fails, and while another run writes to OUT.
  template <class Model, class Loader, class... Parts>
  void save(const Model& model, const Loader& loader, const Parts&... parts) {
    if (options_.alone()) return;
    const Scoped step(&ThreadState::step, steps());
    const PhaseScope phase("save");
    const bool is_end = epoch_complete_ && epoch_ >= 0;  // of an epoch; there may be none yet
    checkpoints_.save(books(), is_end ? std::optional(epoch_) : std::nullopt, model, loader,
                      parts...);
    if (stopped_) {
      tell_interruption();
      merge_traces();
    }
  }

  /// Whether SIGINT came, to this rank or another. Such a run leaves only the checkpoint.
  bool interrupted() const { return stopped_; }

  /// Records and prints a figure of a test ("accuracy") after the epoch. The last figures count as
  /// those of the run.
  void test(const std::string& name, double value);

  /// Writes OUT/model.safetensors, loss.svg and metrics.json, and prints their paths.
  template <class Model>
  void finish(const Model& model) {
    check_states<Model>(model);
    if constexpr (InParts<Model>) {
      checkpoints_.write_model(static_cast<std::size_t>(steps()), model.parts());
    } else {
      const io::NamedTensors values = model.state_dict();  // may need all ranks
      const BusyScope alone("save");
      if (ranks_.rank == 0) {
        io::save_safetensors(path("model.safetensors"), values, {{"format", "pt"}});
      }
    }
    finish();
  }
  template <class Model>
  void finish(const Model& model, const std::string& test_name, double test_value) {
    test(test_name, test_value);
    finish(model);
  }

  /// Adds figures to metrics.json: {"bytes_sent", 123}.
  void note(const TestFigures& figures) { output_.note(figures); }

  /// OUT/name
  std::string path(const std::string& name) const { return output_.path(name); }
  /// One per step so far. All ranks call it.
  const std::vector<double>& losses() { return averaged().values; }

 private:
  template <class Loop, class Loader>
  friend class BatchRange;
  using Clock = std::chrono::steady_clock;

  // Called by BatchRange.
  bool should_stop();
  void begin_epoch(std::int64_t batches, std::int64_t done, std::int64_t dataset_size);
  template <class Loader, class Batch>
  void note_batch(const Loader& loader, Batch& batch) {
    proof_.on_batch(steps(), epoch_, loader, batch);
  }
  void end_epoch(bool complete);
  void leave_epoch();
  void save_when_due();

  // Names the optimiser for metrics.json: the first part that has a learning rate. A part that
  // wraps an optimiser, as in programs of several ranks, names its class by a type StandsFor.
  template <class Part>
  void note_optimizer() {
    if (!optimizer_.empty()) return;
    if constexpr (Averages<Part>) {
      return;
    } else if constexpr (requires { typename Part::StandsFor; }) {
      optimizer_ = detail::type_name<typename Part::StandsFor>();
    } else if constexpr (requires(Part& part) { part.set_lr(0.1); }) {
      optimizer_ = detail::type_name<Part>();
    }
  }
  void tell_interruption() const;
  void note_memory();

  bool agree_to_stop();
  Checkpoint books();
  void take_up(const std::string& path, const Checkpoint& checkpoint);
  void merge_traces();
  void finish();
  const LossRecord& averaged();
  double epoch_mean();
  double epoch_seconds() const;
  double images_per_second() const;
  std::int64_t images_per_step() const;

  const Options options_;
  const Ranks ranks_;
  Output output_;
  const Checkpoints checkpoints_;
  Losses losses_;
  Figures figures_;
  Progress progress_;
  std::function<void()> save_;
  RecorderProof proof_;
  std::string optimizer_;
  std::vector<float> step_ms_;
  std::vector<MemoryStats> memory_;  // at the end of the first epoch here
  bool stopped_ = false;
  bool traces_merged_ = false;
  int agree_in_ = 0;  // further steps before the ranks ask each other; unused in one process
  Clock::time_point agreed_;
  std::int64_t agreed_steps_ = 0;

  std::int64_t epoch_ = -1;
  bool epoch_complete_ = true;
  std::int64_t epoch_first_step_ = 0;
  std::int64_t epoch_batches_ = 0;
  std::int64_t epoch_images_ = 0;     // of a complete epoch
  double earlier_seconds_ = 0;        // of this epoch before a resume
  std::int64_t earlier_batches_ = 0;  // also
  bool in_loop_ = false;
  Clock::time_point epoch_start_;
  Clock::time_point step_start_;
};

}  // namespace weft::train
