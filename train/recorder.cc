#include "weft/train/recorder.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/train/interrupt.h"
#include "weft/train/merge_traces.h"

namespace weft::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<float> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Recorder::Recorder(const Options& options, const Ranks& ranks)
    : options_(options),
      ranks_(ranks),
      output_(options_, ranks_),
      checkpoints_(options_, ranks_, output_),
      losses_(ranks_),
      progress_(ranks.rank == 0 ? Progress() : Progress::none()),
      proof_(options_) {
  if (ranks_.rank != 0) return;
  if (ranks_.size > 1) {
    const int sharing = ranks_.size / ranks_.batches_per_step();
    log_info(detail::concat("batch ", options_.batch_size, " per ",
                            sharing == 1 ? "rank" : detail::concat(sharing, " ranks"), ", ",
                            images_per_step(), " in all: ", ranks_.size, " ranks by ",
                            ranks_.backend, ", each with ", options_.workers, " loader workers"));
  }
}

std::int64_t Recorder::images_per_step() const {
  return options_.batch_size * ranks_.batches_per_step();
}

bool Recorder::should_stop() {
  if (!stopped_) stopped_ = ranks_.size == 1 ? train::interrupted() : agree_to_stop();
  return stopped_ || (options_.limit_steps > 0 && steps() >= options_.limit_steps);
}

// All ranks ask each other after the same number of steps, about every 50 ms by rank 0's clock.
bool Recorder::agree_to_stop() {
  if (--agree_in_ > 0) return false;
  const Clock::time_point now = Clock::now();
  const double ms = std::chrono::duration<double, std::milli>(now - agreed_).count();
  const auto steps_since = static_cast<double>(steps() - agreed_steps_);
  const double next = std::clamp(std::floor(50 * steps_since / std::max(ms, 1e-3)), 1.0, 1000.0);
  const auto sums = ranks_.sum({train::interrupted() ? 1.0 : 0, ranks_.rank == 0 ? next : 0});
  agree_in_ = static_cast<int>(sums[1]);
  agreed_ = now;
  agreed_steps_ = steps();
  return sums[0] > 0;
}

bool Recorder::next_epoch() {
  if (should_stop()) return false;
  if (epoch_complete_) {
    if (epoch_ + 1 >= options_.epochs) return false;
    ++epoch_;
    epoch_complete_ = false;
    epoch_first_step_ = steps();
    earlier_seconds_ = 0;
    earlier_batches_ = 0;
  }
  return true;
}

void Recorder::take_up(const std::string& path, const Checkpoint& checkpoint) {
  const auto name = checkpoint.notes.find("loss_name");
  losses_ = Losses(ranks_, {.name = name == checkpoint.notes.end() ? std::string() : name->second,
                            .values = checkpoint.losses,
                            .more = checkpoint.more_losses});
  epoch_ = checkpoint_count(path, checkpoint.notes, "epochs_begun") - 1;
  epoch_complete_ = checkpoint_count(path, checkpoint.notes, "epoch_complete") != 0;
  epoch_first_step_ = checkpoint_count(path, checkpoint.notes, "epoch_first_step");
  earlier_seconds_ =
      static_cast<double>(checkpoint_count(path, checkpoint.notes, "epoch_ms")) / 1000;
  WEFT_CHECK(epoch_first_step_ <= steps(), InvalidArgument, "checkpoint",
             "its epoch begins after its last step");
  earlier_batches_ = steps() - epoch_first_step_;
  if (const auto epochs = checkpoint.notes.find("epochs"); epochs != checkpoint.notes.end()) {
    figures_ = Figures(epochs_from_text(epochs->second));
  }
  log_info(detail::concat("resumed from ", path, " after ", steps(), " steps"));
}

Checkpoint Recorder::books() {
  const LossRecord& losses = averaged();
  Checkpoint checkpoint;
  checkpoint.losses = losses.values;
  checkpoint.more_losses = losses.more;
  checkpoint.notes = {{"example", options_.example},
                      {"epochs_begun", std::to_string(epoch_ + 1)},
                      {"epoch_complete", std::to_string(epoch_complete_)},
                      {"epoch_first_step", std::to_string(epoch_first_step_)},
                      {"epoch_ms", std::to_string(std::llround(epoch_seconds() * 1000))},
                      {"epochs", epochs_to_text(figures_.epochs())}};
  if (!losses.name.empty()) checkpoint.notes["loss_name"] = losses.name;
  if (!options_.family.empty()) checkpoint.notes["family"] = options_.family;
  return checkpoint;
}

void Recorder::begin_epoch(std::int64_t batches, std::int64_t done, std::int64_t dataset_size) {
  batches = proof_.steps(batches);
  epoch_batches_ = batches;
  epoch_images_ = std::min(batches * images_per_step(), dataset_size);
  losses_.reserve(batches - done);
  step_ms_.reserve(step_ms_.size() + static_cast<std::size_t>(batches - done));
  if (options_.tensorboard && ranks_.rank == 0) {
    figures_.follow(path("tensorboard"), std::ssize(losses_.of_rank().values));
  }
  progress_.start(detail::concat("epoch ", epoch_), batches, done, options_.log_every,
                  options_.unit);
  epoch_start_ = step_start_ = Clock::now();
  in_loop_ = true;
  thread_state().step = steps();
}

// Not after the last batch of an epoch: the program saves then.
void Recorder::save_when_due() {
  const std::int64_t every = options_.checkpoint_every;
  if (every == 0 || steps() % every != 0 || !save_) return;
  if (steps() - epoch_first_step_ == epoch_batches_) return;
  save_();
  step_start_ = Clock::now();
}

void Recorder::leave_epoch() {
  thread_state().step = -1;
  progress_.abandon();
  earlier_seconds_ = epoch_seconds();
  in_loop_ = false;
}

double Recorder::epoch_seconds() const {
  return earlier_seconds_ + (in_loop_ ? seconds_since(epoch_start_) : 0);
}

double Recorder::epoch_mean() {
  const std::vector<double>& losses = losses_.of_rank().values;
  const auto first = losses.begin() + epoch_first_step_;
  const auto count = static_cast<double>(losses.end() - first);
  return count > 0 ? std::accumulate(first, losses.end(), 0.0) / count : NAN;
}

double Recorder::images_per_second() const {
  const std::int64_t batches = steps() - epoch_first_step_ - earlier_batches_;
  const double part =
      static_cast<double>(batches) / static_cast<double>(std::max<std::int64_t>(epoch_batches_, 1));
  return part * static_cast<double>(epoch_images_) / std::max(seconds_since(epoch_start_), 1e-9);
}

void Recorder::step(std::initializer_list<NamedLoss> losses) {
  if (!proof_.end_step(losses)) return;
  losses_.add(losses, epoch_);
  const Clock::time_point now = Clock::now();
  step_ms_.push_back(std::chrono::duration<float, std::milli>(now - step_start_).count());
  step_start_ = now;
  thread_state().step = steps();
  if (BlackBox* const box = own_black_box()) {
    box->sums().samples += images_per_step() / ranks_.size;
  }
  const std::int64_t done = steps() - epoch_first_step_;
  if (progress_.due(done)) {
    figures_.show(losses_.of_rank());
    progress_.update(done, epoch_mean(), images_per_second());
  }
}

const LossRecord& Recorder::averaged() {
  const LossRecord& losses = losses_.averaged();
  figures_.show(losses);
  return losses;
}

void Recorder::note_memory() {
  if (memory_.empty()) memory_ = memory_of_rank(options_.device, ranks_);
}

void Recorder::end_epoch(bool complete) {
  note_memory();
  averaged();
  const double seconds = epoch_seconds(), rate = images_per_second();
  const std::int64_t done = steps() - epoch_first_step_;
  earlier_seconds_ = seconds;
  in_loop_ = false;
  thread_state().step = -1;
  epoch_complete_ = complete;
  if (complete || done > 0) progress_.finish(done, epoch_mean(), rate, seconds);
  if (!complete) return;
  const double mean = epoch_mean();
  figures_.end_epoch({mean, mean * static_cast<double>(done), seconds, rate, {}}, steps() - 1);
}

void Recorder::test(const std::string& name, double value) {
  figures_.test(name, value, epoch_, epoch_complete_, steps() - 1);
}

void Recorder::tell_interruption() const {
  if (ranks_.rank != 0) return;
  log_info(detail::concat("interrupted after step ", steps(), " of epoch ", epoch_, "; saved in ",
                          checkpoints_.latest(),
                          "; the same command with --resume latest goes on from there"));
}

void Recorder::merge_traces() {
  Tracer* const tracer = thread_state().tracer;
  if (tracer && !std::exchange(traces_merged_, true)) train::merge_traces(*tracer, ranks_);
}

void Recorder::finish() {
  const LossRecord& losses = averaged();
  note_memory();
  const std::vector<TestFigures> memory = memory_by_rank(memory_, ranks_);
  if (ranks_.rank == 0) {
    const BusyScope alone("save");
    Metrics run;
    run.optimizer = optimizer_;
    run.losses = losses.values;
    run.loss_name = losses.name;
    run.more_losses = losses.more;
    run.epochs = figures_.epochs();
    run.test = figures_.last_test();
    run.memory = memory;
    if (!epoch_complete_ && steps() > epoch_first_step_) {  // ended by the limit of steps
      const double mean = epoch_mean(), seconds = epoch_seconds();
      const auto done = static_cast<double>(steps() - epoch_first_step_);
      const double images = done * static_cast<double>(images_per_step());
      run.epochs.push_back(
          {mean, mean * done, seconds, images / std::max(seconds, 1e-9), figures_.test_of(epoch_)});
    }
    run.step_ms_median = median(step_ms_);
    output_.write(run);
  }
  proof_.end(steps());
  merge_traces();
}

}  // namespace weft::train
