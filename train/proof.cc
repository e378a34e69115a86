#include "weft/train/proof.h"

#include <algorithm>
#include <cstdlib>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/io/safetensors.h"
#include "weft/nn/shard.h"
#include "weft/tensor/ops.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "prove";

}  // namespace

std::shared_ptr<Proof> Proof::from_environment() {
  const char* const plan = std::getenv("WEFT_PROVE");
  return plan && *plan ? std::make_shared<Proof>(read_plan(plan)) : nullptr;
}

Proof::Proof(ProofPlan plan) : plan_(std::move(plan)) {
  if (replays()) {
    recorded_ = read_recorded_run(plan_.from);
    for (const RecordedRank& rank : recorded_.ranks) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->number = rank.number;
    }
  } else {
    ranks_.push_back(std::make_unique<Rank>());
  }
  now_ = ranks_[0].get();
}

data::DataLoaderOptions Proof::loader(data::DataLoaderOptions options) const {
  if (options.device_resident) {
    log_info("prove: the data stays on the host, without --data-on-device");
    options.device_resident = false;
  }
  if (!replays()) return options;
  return {.workers = options.workers,
          .device = options.device,
          .batch_sampler = recorded_batches(recorded_)};
}

// --- The run -------------------------------------------------------------------------------------

void Proof::begin(const Ranks& ranks, ProvedRun run) {
  WEFT_CHECK(!begun_, InvalidArgument, kOp, "the program trains twice; only one run is recorded");
  begun_ = true;
  run_ = std::move(run);
  if (replays()) {
    WEFT_CHECK(ranks.size == 1, InvalidArgument, kOp, "the replay is of one process, this has ",
               ranks.size, " ranks");
    const std::string here = what_ran(run_.program, to_string(run_.dtype), run_.dataset_size);
    WEFT_CHECK(here == recorded_.what, InvalidArgument, kOp, "the records are of ", recorded_.what,
               ", this is ", here);
  } else {
    now_->number = ranks.rank;
  }
  if (const std::error_code error = make_folders(plan_.out)) {
    WEFT_THROW(Io, kOp, plan_.out, ": ", error.message());
  }
  watch_modules();
  write_head(ranks);
}

// The lines before the first step.
void Proof::write_head(const Ranks& ranks) {
  std::string declared;
  const auto add = [&](const std::string& line) { declared += line + '\n'; };
  for (const auto& [name, type] : modules_) add(module_line(name, type));
  nn::NamedTensors parameters, buffers;
  if (run_.module) {
    parameters = run_.module->named_parameters();
    buffers = run_.module->named_buffers();
  }
  for (const auto& [name, x] : parameters) {
    add(declared_line("parameter", name, x, parts_.contains(name)));
  }
  for (const auto& [name, x] : buffers) {
    add(declared_line("buffer", name, x, parts_.contains(name)));
  }
  RunLine line{.program = run_.program,
               .dtype = run_.dtype,
               .ranks = ranks.size,
               .batches = replays() ? batches_per_step() : ranks.batches_per_step(),
               .backend = ranks.backend,
               .dataset_size = run_.dataset_size,
               .batch_size = run_.batch_size,
               .shuffle = run_.shuffle};
  for (const auto& rank : ranks_) {
    line.rank = rank->number;
    const std::string path = plan_.out + "/rank-" + std::to_string(rank->number) + ".jsonl";
    rank->file.open(path, std::ios::binary | std::ios::trunc);
    rank->file << to_line(line) << '\n' << declared << std::flush;
    WEFT_CHECK(rank->file, Io, kOp, path, ": cannot be written");
    if (!replays()) continue;
    for (const auto& [name, x] : buffers) rank->buffers.push_back(raw::clone(x));
  }
}

void Proof::watch_modules() {
  if (!run_.module) return;
  for (const auto& [name, x] : run_.module->named_parameters()) names_[x.impl()] = name;
  for (const auto& [name, shard] : nn::shards_of(*run_.module)) {
    if (shard->part.shape() != shard->cut.parameter_shape()) parts_.insert(name);
  }
  for (auto& [name, module] : run_.module->named_modules()) {
    WEFT_CHECK(!replays() || ranks_.size() == 1 ||
                   module.type_name().find("SyncBatchNorm") == std::string::npos,
               InvalidArgument, kOp, "module ", name, " is a ", module.type_name(),
               ", whose statistics are of all ranks' batches: one process that takes them one "
               "after the other has no such statistics");
    const std::size_t number = modules_.size();
    modules_.emplace_back(name, module.type_name());
    module.register_forward_hook(
        [proof = weak_from_this(), number](nn::ModuleBase& called, std::span<Tensor> results) {
          if (const auto alive = proof.lock()) {
            alive->on_output(number, called.is_training(), results);
          }
        });
  }
}

// Begins to record the outputs of modules, or ends it.
void Proof::listen(bool open) {
  const std::lock_guard lock(mutex_);
  open_ = open;
  if (!open) return;
  calls_.clear();
  outputs_.clear();
}

void Proof::on_batch(std::int64_t step, std::int64_t epoch, std::span<const std::int64_t> indices,
                     std::vector<Tensor> tensors) {
  WEFT_CHECK(begun_, InvalidArgument, kOp,
             "the program does not call Recorder::resume(), which tells what is trained");
  step_ = step;
  batch_ = std::move(tensors);
  in_step_ = true;
  ran_ = false;
  WEFT_CHECK(call_ < ranks_.size(), InvalidArgument, kOp,
             "a train::Step whose loss Recorder::step() has not got");
  Rank& rank = *ranks_[call_];
  rank.batch = {.step = step, .epoch = epoch, .indices = {indices.begin(), indices.end()}};
  rank.lines.clear();
  rank.kept.clear();
  if (replays()) {
    WEFT_CHECK(
        std::ranges::equal(indices, recorded_step(rank).indices), InvalidArgument, kOp, "step ",
        step, " has other samples than that of rank ", rank.number,
        ": this loader is not made with Options::loader() or Trial::loader(), or its batch sampler "
        "was replaced afterwards");
    return;
  }
  rank.batch.generator = hex_hash(default_generators().state());
  event_ = 0;
  listen(true);
}

void Proof::run(std::span<const Tensor> inputs, const Body& body) {
  WEFT_CHECK(in_step_, InvalidArgument, kOp,
             "a train::Step outside of a loop over Recorder::batches()");
  WEFT_CHECK(
      !ran_, InvalidArgument, kOp,
      "a second call of a train::Step for one batch cannot be replayed; make all its updates "
      "in one body");
  ran_ = true;
  Rank& rank = *ranks_[call_];
  if (replays()) {
    rank.inputs = as_recorded(rank, inputs);
    batch_.clear();
    if (++call_ == ranks_.size()) replay(body);
    return;
  }
  note_inputs(rank, inputs);
  const std::string state = default_generators().state();
  rank.batch.generator = hex_hash(state);
  if (state != rank.generator) rank.batch.state = state;
  listen(true);
  event_ = 0;
  in_body_ = true;
  body(inputs);
  in_body_ = false;
  write_outputs();
  listen(false);
  rank.generator = default_generators().state();
}

bool Proof::is_from_loader(const Tensor& x) const {
  return std::ranges::any_of(batch_, [&](const Tensor& given) {
    return given.defined() && given.storage() == x.storage();
  });
}

// Keeps the inputs that the loader has not made, such as noise that each rank draws for itself.
void Proof::note_inputs(Rank& rank, std::span<const Tensor> inputs) const {
  rank.batch.inputs.emplace();
  rank.batch.saved.emplace();
  io::NamedTensors saved;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    rank.batch.inputs->push_back(hex_hash(inputs[i]));
    if (is_from_loader(inputs[i]) && !plan_.save_inputs) continue;
    rank.batch.saved->push_back(i);
    saved.emplace_back(std::to_string(i), inputs[i]);
  }
  if (!saved.empty()) {
    io::save_safetensors(inputs_file(plan_.out, rank.number, step_), saved);
  }
}

bool Proof::end_step(std::initializer_list<NamedLoss> losses) {
  WEFT_CHECK(in_step_, InvalidArgument, kOp, "a step without a batch of Recorder::batches()");
  if (replays() && call_ > 0 && call_ < ranks_.size()) return false;
  WEFT_CHECK(!replays() || complete_, InvalidArgument, kOp,
             "the program's steps are no train::Step, so they cannot be replayed");
  complete_ = false;
  in_step_ = false;
  call_ = 0;
  write_outputs();  // for a program without a train::Step
  listen(false);
  write_weights();
  const std::vector<Tensor>& last = ranks_.back()->results;
  for (const auto& rank : ranks_) {
    std::vector<std::pair<std::string, double>> values;
    for (const NamedLoss& loss : losses) {
      // The loss of another rank is the tensor at the same place in its result.
      const auto place = std::ranges::find_if(
          last, [&](const Tensor& x) { return x.defined() && x.same(loss.value); });
      Tensor value = loss.value;
      if (replays()) {
        if (place != last.end()) {
          value = rank->results[static_cast<std::size_t>(place - last.begin())];
        } else if (rank != ranks_.back()) {
          continue;
        }
      }
      values.emplace_back(loss.name, value.item<double>());
    }
    put_line(*rank, loss_line(step_, values));
    rank->file << to_line(rank->batch) << '\n' << rank->lines << std::flush;
    check_written(*rank);
    if (!rank->kept.empty()) {
      io::save_safetensors(
          detail::concat(plan_.out, "/rank-", rank->number, "-step-", step_, ".safetensors"),
          rank->kept);
    }
    rank->kept.clear();
    rank->results.clear();
    rank->inputs.clear();
  }
  batch_.clear();
  return true;
}

void Proof::check_written(const Rank& rank) const {
  WEFT_CHECK(rank.file, Io, kOp, "the record of rank ", rank.number, " cannot be written to ",
             plan_.out, "; is the disk full?");
}

void Proof::end(std::int64_t steps) {
  for (const auto& rank : ranks_) {
    rank->file << end_line(steps) << '\n' << std::flush;
    check_written(*rank);
  }
}

// --- Lines of a step -----------------------------------------------------------------------------

void Proof::put_line(Rank& rank, const std::string& line) const { rank.lines += line + '\n'; }

void Proof::keep(Rank& rank, const std::string& key, const Tensor& x) const {
  if (step_ == plan_.keep_step) rank.kept.emplace_back(key, raw::clone(x));
}

void Proof::on_output(std::size_t module, bool training, std::span<const Tensor> results) {
  // Skips what a checkpoint runs again, and what nn::summary or a pipeline runs on trial.
  if (thread_state().recomputing || thread_state().multiply_adds || results.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  const int device = results[0].defined() ? results[0].device().index : 0;
  const std::int64_t call = calls_[{module, device}]++;
  if (replays()) {
    last_call_ = event_;
    if (event_ != pass_) return;  // recorded in another pass
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    outputs_.push_back({module, call, i, device, training, raw::clone(results[i])});
  }
}

// Joins the outputs that replicas on several devices have made of one batch.
void Proof::write_outputs() {
  std::vector<Output> outputs;
  {
    const std::lock_guard lock(mutex_);
    outputs.swap(outputs_);
  }
  while (!outputs.empty()) {
    const Output first = outputs[0];
    const auto is_part = [&](const Output& other) {
      return other.module == first.module && other.call == first.call && other.index == first.index;
    };
    std::map<int, Tensor> by_device;
    for (const Output& other : outputs) {
      if (is_part(other)) by_device[other.device] = raw::to(other.tensor, Device());
    }
    std::erase_if(outputs, is_part);
    std::vector<Tensor> parts;
    for (const auto& [device, part] : by_device) parts.push_back(part);
    const bool joined = parts.size() > 1 && parts[0].dim() > 0;
    const Tensor x = joined ? raw::cat(parts, 0) : parts[0];
    const auto& [name, type] = modules_[first.module];
    put_line(*now_, output_line(step_, {name, type, first.call, first.index, first.training}, x));
    keep(*now_, detail::concat("output/", name, '/', first.call, '/', first.index), x);
  }
}

std::size_t Proof::number_of(optim::Optimizer& optimizer) {
  const auto found = std::ranges::find(optimizers_, &optimizer);
  const auto number = static_cast<std::size_t>(found - optimizers_.begin());
  if (found != optimizers_.end()) return number;
  optimizers_.push_back(&optimizer);
  std::vector<std::string> names;
  for (const Tensor& p : optimizer.parameters()) names.push_back(names_[p.impl()]);
  const std::string line = optimizer_line(number, optimizer, names);
  for (const auto& rank : ranks_) put_line(*rank, line);
  return number;
}

// In a replay all ranks have the same lines.
void Proof::write_update(optim::Optimizer& optimizer) {
  const std::size_t number = number_of(optimizer);
  std::string lines = update_line(step_, event_, number, optimizer);
  const std::vector<Tensor> params = optimizer.parameters();
  for (std::size_t i = 0; i < params.size(); ++i) {
    std::string name = names_[params[i].impl()];
    const bool part = parts_.contains(name);
    if (name.empty()) name = detail::concat("optimizer ", number, " parameter ", i);
    const Tensor grad = params[i].grad();
    lines += '\n' + gradient_line(step_, event_, name, grad, part);
    if (!grad.defined()) continue;
    for (const auto& rank : ranks_) {
      keep(*rank, detail::concat("gradient/", event_, '/', name), grad);
    }
    if (const auto found = magnitudes_.find(params[i].impl()); found != magnitudes_.end()) {
      keep(*ranks_.front(), detail::concat("magnitudes/", event_, '/', name), found->second);
    }
  }
  for (const auto& rank : ranks_) put_line(*rank, lines);
}

void Proof::write_weights() {
  const auto write = [&](Rank& rank, const char* kind, const std::string& name, const Tensor& x,
                         std::string& line) {
    if (line.empty()) {
      line = state_line(kind, step_, name, x, !run_.state && parts_.contains(name));
    }
    put_line(rank, line);
    keep(rank, kind + ('/' + name), x);
  };
  nn::NamedTensors buffers, weights;
  if (run_.module) buffers = run_.module->named_buffers();
  if (run_.state) {
    for (auto& [name, x] : run_.state()) {
      const auto same = std::ranges::find(buffers, name, &nn::NamedTensors::value_type::first);
      if (same == buffers.end()) weights.emplace_back(name, x);
    }
  } else if (run_.module) {
    weights = run_.module->named_parameters();
  }
  for (const auto& [name, x] : weights) {
    std::string line;
    for (const auto& rank : ranks_) write(*rank, "weight", name, x, line);
  }
  for (const auto& rank : ranks_) {
    // The buffers of other ranks are lost in the next forward.
    if (replays() && run_.shares_buffers && rank != ranks_.front()) continue;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      std::string line;
      write(*rank, "buffer", buffers[i].first, replays() ? rank->buffers[i] : buffers[i].second,
            line);
    }
  }
}

// --- Updates -------------------------------------------------------------------------------------

bool Proof::before_step(optim::Optimizer& optimizer) {
  if (!in_step_) return true;
  write_outputs();
  if (replays() && !before_replayed_step(optimizer)) return false;
  write_update(optimizer);
  return true;
}

void Proof::after_step(optim::Optimizer& optimizer) {
  if (!in_step_) return;
  if (replays()) {
    Event event{&optimizer, std::move(sums_), {}};
    sums_.clear();
    magnitudes_.clear();
    for (const Tensor& p : optimizer.parameters()) event.weights.emplace_back(p, raw::clone(p));
    events_.push_back(std::move(event));
  }
  ++event_;
}

void Proof::before_clipping(std::span<const Tensor> params) {
  if (!in_step_ || !in_body_ || !replays()) return;
  use_gradients(params);
  if (event_ != pass_) return;  // the magnitudes belong to another update
  // For clipped gradients the magnitudes say nothing: the factor is itself a sum over all
  // gradients.
  for (const Tensor& p : params) magnitudes_.erase(p.impl());
}

}  // namespace weft::train
