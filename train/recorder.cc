#include "weft/train/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <system_error>

#include "weft/core/base/device.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/io/png.h"
#include "weft/kernels/plan/choice_cache.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/train/interrupt.h"
#include "weft/train/merge_traces.h"
#include "weft/train/pictures.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "recorder";
constexpr std::int64_t kMostPending = 64;
constexpr const char* kCheckpoint = "checkpoint.safetensors";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<float> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::int64_t integer(const std::string& path, const io::Metadata& notes, const char* key) {
  const std::string& text = checkpoint_entry(path, notes, key);
  char* end = nullptr;
  errno = 0;
  const std::int64_t value = std::strtoll(text.c_str(), &end, 10);
  WEFT_CHECK(errno == 0 && *end == '\0' && !text.empty() && value >= 0, InvalidArgument,
             "checkpoint", path, ": note \"", key, "\" is no count: \"", text, '"');
  return value;
}

}  // namespace

OutputLock::~OutputLock() {
  if (fd_ >= 0) ::close(fd_);
}

// Of the folder itself: there is no file to be left. Not every file system has locks.
void OutputLock::take(const std::string& folder) {
  fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  log_warning(detail::concat(folder,
                             ": another run is writing here, and each overwrites the other's "
                             "files. Choose another folder with --out; ranks of one run give "
                             "their recorders the Ranks, of which only the first writes"));
}

Recorder::Recorder(const Options& options, const Ranks& ranks)
    : options_(options), ranks_(ranks), progress_(ranks.rank == 0 ? Progress() : Progress::none()) {
  if (ranks_.rank != 0) return;
  // Now, and not after an hour of training.
  if (!options_.trace.empty()) const AtomicFile can_be_written(options_.trace);
  const std::error_code error = make_folders(options_.out);
  WEFT_CHECK(!error, Io, kOp, options_.out, ": cannot make this folder: ", error.message(),
             "; choose another with --out");
  WEFT_CHECK(::access(options_.out.c_str(), W_OK | X_OK) == 0, Io, kOp, options_.out,
             ": cannot write here: ", std::generic_category().message(errno),
             "; choose another folder with --out");
  lock_.take(options_.out);
  if (ranks_.size > 1) {
    const int sharing = ranks_.size / ranks_.batches_per_step();
    log_info(detail::concat("batch ", options_.batch_size, " per ",
                            sharing == 1 ? "rank" : detail::concat(sharing, " ranks"), ", ",
                            images_per_step(), " in all: ", ranks_.size, " ranks by ",
                            ranks_.backend, ", each with ", options_.workers, " loader workers"));
  } else if (options_.as_ranks > 1) {
    note({{"as_ranks", options_.as_ranks}});
    log_info(detail::concat("batch ", options_.batch_size, " as of each of ", options_.as_ranks,
                            " ranks, ", images_per_step(), " in all"));
  }
}

std::int64_t Recorder::images_per_step() const {
  return options_.batch_size * ranks_.batches_per_step() * options_.as_ranks;
}

std::string Recorder::path(const std::string& name) const {
  return (std::filesystem::path(options_.out) / name).string();
}

bool Recorder::should_stop() {
  if (!stopped_) stopped_ = ranks_.size == 1 ? train::interrupted() : agree_to_stop();
  return stopped_ || (options_.limit_steps > 0 && steps() >= options_.limit_steps);
}

// All ranks ask after the same steps, about every 50 ms by the clock of rank 0.
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

// Whether there is one to resume from. Of the latest, rank 0 knows: no two ranks may decide
// otherwise.
bool Recorder::find_checkpoint() {
  if (options_.resume != "latest") return !options_.resume.empty();
  options_.resume = path(kCheckpoint);
  const bool here = std::filesystem::exists(options_.resume);
  if (ranks_.sum({ranks_.rank == 0 && here ? 1.0 : 0})[0] == 0) {
    log_info(detail::concat(options_.resume, ": not there yet; from the beginning"));
    return false;
  }
  WEFT_CHECK(here, Io, kOp, options_.resume, ": rank ", ranks_.rank, " does not find it, rank 0 ",
             "does; --out must be a folder that all ranks see");
  return true;
}

void Recorder::check_program(const Checkpoint& checkpoint, std::size_t parts,
                             std::size_t engines) const {
  const auto example = checkpoint.notes.find("example");
  WEFT_CHECK(example == checkpoint.notes.end() || example->second == options_.example,
             InvalidArgument, "checkpoint", options_.resume, ": it is of the program ",
             example->second, ", this is ", options_.example);
  WEFT_CHECK(checkpoint.parts.size() == parts, InvalidArgument, "checkpoint", options_.resume,
             ": it holds ", checkpoint.parts.size(),
             " optimisers and schedulers, this program has ", parts);
  if (engines == 0 || checkpoint.engines.size() == engines) return;
  WEFT_CHECK(checkpoint.engines.empty(), InvalidArgument, "checkpoint", options_.resume,
             ": it holds the states of ", checkpoint.engines.size(), " engines, this program has ",
             engines);
  if (ranks_.size < 3) return;  // a sum of two is the same either way
  log_warning(detail::concat(
      options_.resume, ": saved without the engine's state, as earlier versions did it: the next ",
      "step may add up the ranks' gradients in another order, and the losses may then differ from ",
      "those of an undisturbed run in their last bits"));
}

Recorder::RankState Recorder::own_state(const Checkpoint& checkpoint) const {
  const auto& notes = checkpoint.notes;
  const std::int64_t saved = notes.contains("ranks") ? integer(options_.resume, notes, "ranks") : 1;
  const auto of_rank = [&](const char* what, const std::string& of_first) {
    return ranks_.rank == 0 || ranks_.rank >= saved
               ? of_first
               : checkpoint_entry(options_.resume, notes,
                                  detail::concat("rank", ranks_.rank, '.', what));
  };
  RankState own{of_rank("loader", checkpoint.loader), of_rank("generator", checkpoint.generator)};
  if (saved == ranks_.size) return own;
  WEFT_CHECK(integer(options_.resume, notes, "epoch_complete") != 0, InvalidArgument, "checkpoint",
             options_.resume, ": saved by a run of ", saved,
             " ranks within an epoch, this run has ", ranks_.size, "; resume with ", saved,
             ", or from the end of an epoch");
  log_warning(detail::concat(options_.resume, ": saved by a run of ", saved,
                             " ranks, this run has ", ranks_.size,
                             ": from here on its random numbers are others"));
  own.loader.clear();
  return own;
}

void Recorder::add_states(Checkpoint& checkpoint, const RankState& own) const {
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

void Recorder::take_up(const Checkpoint& checkpoint) {
  losses_ = checkpoint.losses;
  averaged_ = losses_.size();
  more_losses_ = checkpoint.more_losses;
  for (const NamedLosses& more : more_losses_) {
    WEFT_CHECK(more.values.size() == losses_.size(), InvalidArgument, "checkpoint", "it has ",
               losses_.size(), " losses, but ", more.values.size(), " of ", more.name);
  }
  if (const auto name = checkpoint.notes.find("loss_name"); name != checkpoint.notes.end()) {
    loss_name_ = name->second;
  }
  epoch_ = integer(options_.resume, checkpoint.notes, "epochs_begun") - 1;
  epoch_complete_ = integer(options_.resume, checkpoint.notes, "epoch_complete") != 0;
  epoch_first_step_ = integer(options_.resume, checkpoint.notes, "epoch_first_step");
  earlier_seconds_ =
      static_cast<double>(integer(options_.resume, checkpoint.notes, "epoch_ms")) / 1000;
  WEFT_CHECK(epoch_first_step_ <= steps(), InvalidArgument, "checkpoint",
             "its epoch begins after its last step");
  earlier_batches_ = steps() - epoch_first_step_;
  if (const auto epochs = checkpoint.notes.find("epochs"); epochs != checkpoint.notes.end()) {
    epochs_ = epochs_from_text(epochs->second);
    if (!epochs_.empty()) test_ = epochs_.back().test;
  }
  log_info(detail::concat("resumed from ", options_.resume, " after ", steps(), " steps"));
}

Checkpoint Recorder::books() {
  average();
  Checkpoint checkpoint;
  checkpoint.losses = losses_;
  checkpoint.more_losses = more_losses_;
  checkpoint.notes = {{"example", options_.example},
                      {"epochs_begun", std::to_string(epoch_ + 1)},
                      {"epoch_complete", std::to_string(epoch_complete_)},
                      {"epoch_first_step", std::to_string(epoch_first_step_)},
                      {"epoch_ms", std::to_string(std::llround(epoch_seconds() * 1000))},
                      {"epochs", epochs_to_text(epochs_)}};
  if (!loss_name_.empty()) checkpoint.notes["loss_name"] = loss_name_;
  return checkpoint;
}

void Recorder::write(const Checkpoint& checkpoint) {
  if (ranks_.rank != 0) return fault_point();
  const std::string last = path(kCheckpoint);
  // What a run that is killed later should not have to time again: there once its checkpoint is.
  if (ChoiceCache* const choices = thread_state().choices) choices->save();
  save_checkpoint(last, checkpoint);
  if (!options_.keep_checkpoints || !epoch_complete_) return;
  // The next save() replaces the name, not the file: this one stays what it is.
  const std::string kept = path(detail::concat("checkpoint-epoch-", epoch_, ".safetensors"));
  std::error_code error;
  std::filesystem::remove(kept, error);
  std::filesystem::create_hard_link(last, kept, error);
  if (error) save_checkpoint(kept, checkpoint);
}

void Recorder::begin_epoch(std::int64_t batches, std::int64_t done, std::int64_t dataset_size) {
  epoch_batches_ = batches;
  epoch_images_ = std::min(batches * images_per_step(), dataset_size);
  const auto expected = static_cast<std::size_t>(steps() + batches - done);
  losses_.reserve(expected);  // a step allocates nothing
  for (NamedLosses& more : more_losses_) more.values.reserve(expected);
  step_ms_.reserve(step_ms_.size() + static_cast<std::size_t>(batches - done));
  if (options_.tensorboard && ranks_.rank == 0 && !events_) {
    events_.emplace(path("tensorboard"), steps());
    told_ = losses_.size();
  }
  progress_.start(detail::concat("epoch ", epoch_), batches, done, options_.log_every,
                  options_.unit);
  epoch_start_ = step_start_ = Clock::now();
  in_loop_ = true;
  thread_state().step = steps();
}

// Not after an epoch's last batch: then the program saves.
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

double Recorder::epoch_mean() const {
  const auto first = losses_.begin() + epoch_first_step_;
  const auto count = static_cast<double>(losses_.end() - first);
  return count > 0 ? std::accumulate(first, losses_.end(), 0.0) / count : NAN;
}

double Recorder::images_per_second() const {
  const std::int64_t batches = steps() - epoch_first_step_ - earlier_batches_;
  const double part =
      static_cast<double>(batches) / static_cast<double>(std::max<std::int64_t>(epoch_batches_, 1));
  return part * static_cast<double>(epoch_images_) / std::max(seconds_since(epoch_start_), 1e-9);
}

void Recorder::record(std::size_t which, double loss) {
  std::vector<double>& losses = which == 0 ? losses_ : more_losses_[which - 1].values;
  losses.push_back(loss);
  if (std::isfinite(loss) || std::exchange(warned_, true)) return;
  const std::string& name = which == 0 ? loss_name_ : more_losses_[which - 1].name;
  const char* what = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
  log_warning(detail::concat("the loss", name.empty() ? "" : " of the ", name, " is ", what,
                             " at step ", losses.size() - 1, " (epoch ", epoch_,
                             "); further steps are not reported. A lower --lr may help"));
}

void Recorder::check_names(std::initializer_list<NamedLoss> losses) {
  const NamedLoss* first = losses.begin();
  if (steps() == 0) {
    WEFT_CHECK(losses.size() > 0, InvalidArgument, kOp, "a step without a loss");
    loss_name_ = first->name;
    more_losses_.clear();
    for (const NamedLoss* more = first + 1; more != losses.end(); ++more) {
      more_losses_.push_back({std::string(more->name), {}});
      more_losses_.back().values.reserve(losses_.capacity());
    }
    return;
  }
  WEFT_CHECK(losses.size() == more_losses_.size() + 1, InvalidArgument, kOp, "a step with ",
             losses.size(), " losses after steps with ", more_losses_.size() + 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::string& before = i == 0 ? loss_name_ : more_losses_[i - 1].name;
    WEFT_CHECK(first[i].name == before, InvalidArgument, kOp, "a loss named '", first[i].name,
               "' after steps where it was '", before, "'");
  }
}

void Recorder::step(std::initializer_list<NamedLoss> losses) {
  check_names(losses);
  const Tensor& first = losses.begin()->value;
  std::int64_t which = 0;
  if (first.device().is_cpu()) {
    for (const NamedLoss& loss : losses)
      record(static_cast<std::size_t>(which++), loss.value.item<double>());
  } else {
    if (!waiting_.defined()) {
      waiting_ = zeros({kMostPending, static_cast<std::int64_t>(losses.size())},
                       TensorOptions(first.dtype(), first.device()));
    }
    const Tensor row = raw::narrow(waiting_, 0, pending_++, 1);
    for (const NamedLoss& loss : losses)
      raw::copy_(raw::narrow(row, 1, which++, 1), raw::reshape(loss.value, {1, 1}));
    if (pending_ == kMostPending) flush();
  }
  const Clock::time_point now = Clock::now();
  step_ms_.push_back(std::chrono::duration<float, std::milli>(now - step_start_).count());
  step_start_ = now;
  thread_state().step = steps();
  const std::int64_t done = steps() - epoch_first_step_;
  if (progress_.due(done)) {
    flush();
    tell_losses();
    progress_.update(done, epoch_mean(), images_per_second());
  }
}

void Recorder::flush() {
  if (pending_ == 0) return;
  const std::vector<double> values = raw::narrow(waiting_, 0, 0, pending_).to_vector<double>();
  pending_ = 0;
  const std::size_t each = more_losses_.size() + 1;
  for (std::size_t i = 0; i < values.size(); ++i) record(i % each, values[i]);
}

// So late, because a step need not wait for the others' losses.
void Recorder::average() {
  flush();
  if (ranks_.size == 1) return tell_losses();
  std::vector<std::vector<double>*> lists = {&losses_};
  for (NamedLosses& more : more_losses_) lists.push_back(&more.values);
  const auto first = static_cast<std::ptrdiff_t>(averaged_);
  std::vector<double> values;
  for (const auto* list : lists) values.insert(values.end(), list->begin() + first, list->end());
  values = ranks_.sum(values);
  auto from = values.begin();
  for (auto* list : lists) {
    for (std::size_t i = averaged_; i < list->size(); ++i) (*list)[i] = *from++ / ranks_.size;
  }
  averaged_ = losses_.size();
  tell_losses();
}

void Recorder::tell_losses() {
  if (!events_) return;
  const auto tag = [](const std::string& name) { return name.empty() ? "loss" : "loss/" + name; };
  for (const std::size_t end = ranks_.size == 1 ? losses_.size() : averaged_; told_ < end;
       ++told_) {
    const auto step = static_cast<std::int64_t>(told_);
    events_->scalar(tag(loss_name_), losses_[told_], step);
    for (const auto& [name, values] : more_losses_) events_->scalar(tag(name), values[told_], step);
  }
  events_->flush();
}

void Recorder::end_epoch(bool complete) {
  average();
  const double seconds = epoch_seconds(), rate = images_per_second();
  const std::int64_t done = steps() - epoch_first_step_;
  earlier_seconds_ = seconds;
  in_loop_ = false;
  thread_state().step = -1;
  epoch_complete_ = complete;
  if (complete || done > 0) progress_.finish(done, epoch_mean(), rate, seconds);
  if (!complete) return;
  const double mean = epoch_mean();
  epochs_.push_back({mean, mean * static_cast<double>(done), seconds, rate, {}});
  if (!events_) return;
  events_->scalar("images_per_second", rate, steps() - 1);
  events_->flush();
}

void Recorder::note(const TestFigures& figures) {
  notes_.insert(notes_.end(), figures.begin(), figures.end());
}

const std::vector<double>& Recorder::losses() {
  average();
  return losses_;
}

void Recorder::test(const std::string& name, double value) {
  // Figures of an epoch stand together; the first of the next one begins anew.
  if (test_epoch_ != epoch_) test_.clear();
  test_epoch_ = epoch_;
  test_.emplace_back(name, value);
  if (epoch_complete_) epochs_.back().test = test_;
  log_info(detail::concat("epoch ", epoch_, ": test ", name, ' ', value));
  if (!events_) return;
  events_->scalar("test/" + name, value, steps() - 1);
  events_->flush();
}

void Recorder::tell_interruption() const {
  if (ranks_.rank != 0) return;
  log_info(detail::concat("interrupted after step ", steps(), " of epoch ", epoch_, "; saved in ",
                          path("checkpoint.safetensors"),
                          "; the same command with --resume latest goes on from there"));
}

void Recorder::merge_traces() {
  Tracer* const tracer = thread_state().tracer;
  if (tracer && !std::exchange(traces_merged_, true)) train::merge_traces(*tracer, ranks_);
}

void Recorder::finish() {
  average();
  if (ranks_.rank == 0) {
    const BusyScope alone("save");
    write_figures();
  }
  merge_traces();
}

void Recorder::write_figures() const {
  Metrics metrics;
  metrics.example = options_.example;
  metrics.device = to_string(options_.device);
  metrics.dtype = to_string(options_.dtype);
  metrics.threads = num_threads();
  metrics.seed = options_.seed;
  metrics.batch_size = options_.batch_size;
  metrics.optimizer = optimizer_;
  metrics.lr = options_.lr;
  metrics.amp = options_.amp;
  metrics.float32_matmul_precision = options_.float32_matmul_precision;
  metrics.conv_fp32_precision = options_.conv_fp32_precision;
  metrics.world_size = ranks_.size;
  metrics.backend = ranks_.backend;
  metrics.flags = options_.flags;
  metrics.notes = notes_;
  metrics.losses = losses_;
  metrics.loss_name = loss_name_;
  metrics.more_losses = more_losses_;
  metrics.epochs = epochs_;
  if (!epoch_complete_ && steps() > epoch_first_step_) {  // the limit of steps came first
    const double mean = epoch_mean();
    const auto done = static_cast<double>(steps() - epoch_first_step_);
    const double seconds = epoch_seconds();
    metrics.epochs.push_back(
        {mean, mean * done, seconds,
         done * static_cast<double>(images_per_step()) / std::max(seconds, 1e-9), test_});
  }
  metrics.test = test_;
  metrics.step_ms_median = median(step_ms_);
  for (const EpochMetrics& epoch : metrics.epochs) metrics.train_seconds += epoch.seconds;
  metrics.cpu = cpu_model();
  metrics.version = kVersion;
  metrics.date = utc_date();
  metrics.commit = source_commit();
  write_metrics(path("metrics.json"), metrics);
  std::vector<Curve> curves = {{loss_name_, losses_}};
  for (const auto& [name, values] : more_losses_) curves.push_back({name, values});
  io::write_png(path("loss.png"), loss_picture(curves, options_.example + ": loss per step"));
  std::string test;
  for (const auto& [name, value] : test_) test += detail::concat("test ", name, ' ', value, ", ");
  log_info(detail::concat(test, "trained in ", format_duration(metrics.train_seconds),
                          "; results in ", options_.out));
}

}  // namespace weft::train
