#include "weft/train/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/parallel.h"
#include "weft/train/charts.h"
#include "weft/train/memory_table.h"
#include "weft/train/progress.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "recorder";

}  // namespace

Output::Output(const Options& options, const Ranks& ranks) : options_(options), ranks_(ranks) {
  if (ranks_.rank != 0) return;
  // Checks this now, and not after an hour of training.
  if (!options_.trace.empty()) const AtomicFile can_be_written(options_.trace);
  const std::error_code error = make_folders(options_.out);
  WEFT_CHECK(!error, Io, kOp, options_.out, ": cannot make this folder: ", error.message(),
             "; choose another with --out");
  WEFT_CHECK(::access(options_.out.c_str(), W_OK | X_OK) == 0, Io, kOp, options_.out,
             ": cannot write here: ", std::generic_category().message(errno),
             "; choose another folder with --out");
  // Locks the folder itself, so that no lock file stays. Not every file system has locks.
  fd_ = ::open(options_.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (is_alone()) return;
  log_warning(detail::concat(options_.out,
                             ": another run is writing here, and each overwrites the other's "
                             "files. Choose another folder with --out; ranks of one run give "
                             "their recorders the Ranks, of which only the first writes"));
}

Output::~Output() {
  if (fd_ >= 0) ::close(fd_);
}

// Tries again: the other run may have ended.
bool Output::is_alone() const {
  return fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

std::string Output::path(const std::string& name) const {
  return (std::filesystem::path(options_.out) / name).string();
}

void Output::note(const TestFigures& figures) {
  notes_.insert(notes_.end(), figures.begin(), figures.end());
}

void Output::write(Metrics run) const {
  run.example = options_.example;
  run.device = to_string(options_.device);
  run.dtype = to_string(options_.dtype);
  run.threads = num_threads();
  run.seed = options_.seed;
  run.batch_size = options_.batch_size;
  run.lr = options_.lr;
  run.amp = options_.amp;
  run.float32_matmul_precision = options_.float32_matmul_precision;
  run.conv_fp32_precision = options_.conv_fp32_precision;
  run.graph = options_.findings->graph;
  run.world_size = ranks_.size;
  run.backend = ranks_.backend;
  run.flags = options_.flags;
  run.notes = notes_;
  for (const EpochMetrics& epoch : run.epochs) run.train_seconds += epoch.seconds;
  run.cpu = cpu_model();
  run.version = kVersion;
  run.date = utc_date();
  run.commit = source_commit();
  write_metrics(path("metrics.json"), run);
  std::vector<Curve> curves = {{run.loss_name, run.losses}};
  for (const auto& [name, values] : run.more_losses) curves.push_back({name, values});
  write_file_atomically(path("loss.svg"),
                        loss_picture(curves, options_.example + ": loss per step"));
  if (ranks_.size > 1) log_info(memory_table(run.memory));
  std::string test;
  for (const auto& [name, value] : run.test)
    test += detail::concat("test ", name, ' ', value, ", ");
  log_info(detail::concat(test, "trained in ", format_duration(run.train_seconds), "; results in ",
                          options_.out));
}

}  // namespace weft::train
