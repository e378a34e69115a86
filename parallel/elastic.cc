#include "weft/parallel/elastic.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <locale>
#include <sstream>
#include <string>
#include <utility>

#include "weft/comm/store/deadline.h"
#include "weft/comm/store/failure.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/black_box.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/named_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "elastic";
// The least time to wait for the next generation, even if the group's timeout is shorter. The
// launcher announces it when a process has ended, which takes long if a core file is written.
constexpr std::chrono::milliseconds kAnnounced{10'000};
// Within an epoch the lowest rank looks for waiting ranks at most this often.
constexpr std::int64_t kLookNs = 50'000'000;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::binary_search(ranks, rank);
}

std::string list_of(const std::vector<int>& ranks, const char* between) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : between) + std::to_string(rank);
  return text;
}

bool may_be_a_loss(const Error& error) {
  return error.code() == ErrorCode::PeerFailed || error.code() == ErrorCode::Comm;
}

}  // namespace

ElasticRanks::ElasticRanks(nn::ModuleBase module, optim::Optimizer& optimizer,
                           ElasticOptions options, Wrap wrap)
    : module_(std::move(module)),
      optimizer_(optimizer),
      zero_(dynamic_cast<ZeroMirror*>(&optimizer)),
      options_(std::move(options)),
      wrap_(std::move(wrap)),
      run_(options_.run ? *options_.run : comm::elastic_run()),
      has_state_(true) {
  WEFT_CHECK(options_.ddp.broadcast_buffers, Unsupported, kOp,
             "broadcast_buffers is not set: when ranks regroup, all get the lowest rank's buffers");
  WEFT_CHECK(!zero_ || zero_->mirrors(), Unsupported, kOp,
             "the optimiser's state is in parts, each on one rank only: make the "
             "ZeroRedundancyOptimizer with {.mirror = true}, and without a group");
  if (run_.returns) lack_state();
  std::vector<Device> devices = {Device()};
  for (const Tensor& x : module_.parameters()) {
    if (std::ranges::find(devices, x.device()) == devices.end()) devices.push_back(x.device());
  }
  for (const Device device : devices) {
    kept_generators_.emplace_back(device, default_generator(device));
  }
  for (const auto& [name, x] : module_.named_buffers()) {
    buffers_.push_back(x);
    kept_buffers_.push_back(empty_like(x));
  }
}

void ElasticRanks::start() {
  const bool resumes = !options_.resume.empty() && !run_.returns;
  if (resumes) {
    take_books(options_.resume);
    flags_ = 0;
  }
  if (resumes && run_.membership && run_.rank != 0) lack_state();
  meet();
  if (resumes) seed_generators();
}

/// Marks the state as missing here: another rank will send it.
void ElasticRanks::lack_state() {
  has_state_ = false;
  if (zero_) zero_->forget();
}

void ElasticRanks::meet() {
  if (!run_.membership) {
    const auto group = run_.connect(nullptr, {}, 0);
    if (!options_.resume.empty() && group->rank() != 0) lack_state();
    agree(*group);
    group_ = group;
    Ranks all;
    for (int rank = 0; rank < group_->size(); ++rank) all.push_back(rank);
    if (zero_) zero_->deal(optimizer_, group_);
    wrap_(group_);
    return take(all, group_->rank());
  }
  if (run_.returns) {
    const PhaseScope phase("wait for invitation");
    const int invited = run_.membership->await_invitation(run_.rank);
    over_ = invited < 0;
    if (over_) return;
    generation_ = invited - 1;
  }
  WEFT_CHECK(regroup(), PeerFailed, kOp, "the run has ended before its ranks had met");
}

int ElasticRanks::share() const {
  const auto found = std::ranges::find(dealt_, rank());
  WEFT_CHECK(found != dealt_.end(), InvalidArgument, kOp, "rank ", rank(),
             " has no share: call next_epoch() first");
  return static_cast<int>(found - dealt_.begin());
}

// --- Steps ---------------------------------------------------------------------------------------

void ElasticRanks::run(const char* phase, const std::function<void()>& body,
                       const std::function<void()>& apply) {
  remember();
  pending_ = &apply;
  while (pending_) {
    int flags = 0;
    try {
      const Scoped step(&ThreadState::step, steps_);
      if (body) {
        const PhaseScope shown(phase);
        fault_point();
        body();
      }
      flags = vote();
    } catch (const Error& error) {
      if (!survives(error)) throw;
      continue;
    }
    pass(flags);
    if ((flags & kGrow) == 0) {
      send_parameters();
    } else if (!regroup()) {
      WEFT_THROW(PeerFailed, kOp, "the run has ended while a rank was coming back");
    }
  }
}

/// Called after an error. Returns true if a rank was lost and the others have regrouped.
bool ElasticRanks::survives(const Error& error) {
  if (!run_.membership || !may_be_a_loss(error) || !has_lost_a_rank()) return false;
  group_->abort();  // the error may come from another group
  return regroup();
}

void ElasticRanks::update() {
  {
    const Scoped step(&ThreadState::step, steps_);
    const PhaseScope phase("optimizer step");
    optimizer_.step();
    fault_point();
  }
  ++steps_;
  unsent_ = zero_ != nullptr;
}

/// Sends the parameters that this rank has updated to the others. All ranks have passed the vote,
/// so a failure here repeats no step: regrouping sends the parameters, too.
void ElasticRanks::send_parameters() {
  if (!std::exchange(unsent_, false)) return;
  try {
    const Scoped step(&ThreadState::step, steps_ - 1);
    const PhaseScope phase("send parameters");
    fault_point();
    zero_->send();
  } catch (const Error& error) {
    if (!survives(error)) throw;
  }
}

void ElasticRanks::remember() {
  for (std::size_t i = 0; i < buffers_.size(); ++i) raw::copy_(kept_buffers_[i], buffers_[i]);
  for (auto& [device, generator] : kept_generators_) generator = default_generator(device);
}

void ElasticRanks::restore() {
  for (std::size_t i = 0; i < buffers_.size(); ++i) raw::copy_(buffers_[i], kept_buffers_[i]);
  for (const auto& [device, generator] : kept_generators_) default_generator(device) = generator;
  module_.zero_grad();  // some may be means already, or only partly summed
}

/// A hash of the groups' rates, so small that sums over the ranks of it and of its square are exact
/// in a double.
int ElasticRanks::rates() const {
  std::string text;
  for (std::size_t g = 0; g < optimizer_.group_count(); ++g) {
    text += detail::concat(optimizer_.lr(g), ' ', optimizer_.momentum(g), ' ');
  }
  return static_cast<int>(std::hash<std::string>()(text) % (1 << 20));
}

/// Returns the flags that at least one rank has set.
int ElasticRanks::vote() {
  bool grows = false;
  const bool due = !in_epoch_ || steady_ns(std::chrono::steady_clock::now()) - asked_ > kLookNs;
  if (run_.membership && place_ == 0 && !finishing_ && due) {
    asked_ = steady_ns(std::chrono::steady_clock::now());
    const auto may_come = [&](int rank) { return !in_epoch_ || contains(dealt_, rank); };
    grows = run_.membership->grows(generation_, may_come);
  }
  const bool stop = options_.stop && options_.stop();
  // The vote is on the gradients' device, so that the device reduces it after the gradients.
  const double own = rates();
  const Tensor cast = from_vector<double>({1, grows ? 1.0 : 0, stop ? 1.0 : 0, own, own * own}, {5},
                                          kept_generators_.back().first);
  const PhaseScope phase("vote");
  fault_point();
  const comm::ProcessGroup::Tag tag("vote");
  group_->all_reduce(cast).wait();
  fault_point("voted");
  const std::vector<double> sum = cast.to_vector<double>();
  WEFT_CHECK(sum[0] == group_->size(), Internal, kOp, sum[0], " of ", group_->size(),
             " ranks have voted");
  // The variance of the ranks' numbers is 0 only if all are equal; all ranks compute the same one,
  // so all throw.
  WEFT_CHECK(sum[0] * sum[4] == sum[3] * sum[3], InvalidArgument, kOp,
             "the ranks' optimisers have other lr or momentum in step ", steps_,
             "; here group 0 has lr ", optimizer_.lr(),
             ". A rank that comes back does not do what the others do after step() in that step: "
             "set lr from steps() in the closure, or step the scheduler directly before step()");
  return (sum[1] > 0 ? kGrow : 0) | (sum[2] > 0 ? kStop : 0);
}

void ElasticRanks::pass(int flags) {
  ++votes_;
  flags_ = flags;
  const std::function<void()>& apply = *std::exchange(pending_, nullptr);
  if (apply) apply();
}

// --- Epochs --------------------------------------------------------------------------------------

bool ElasticRanks::next_epoch(std::int64_t epochs) {
  if (std::exchange(resumes_, false)) return true;
  if (stopped() || epoch_ + 1 >= epochs) return false;
  in_epoch_ = false;
  // If ranks wait to join, they join first, and the epoch is dealt in the next round.
  const std::function<void()> deal = [&] {
    if ((flags_ & kGrow) != 0) return;
    ++epoch_;
    epoch_first_step_ = steps_;
    dealt_ = ranks_;
    in_epoch_ = true;
    if (!epochs_.empty() && epochs_.back().ranks == dealt_) return;
    epochs_.push_back({steps_, dealt_});
    write_record();
  };
  const std::function<void()> checkpoint = [&] { save(); };
  while (!in_epoch_) run("save", options_.save && epoch_ >= 0 ? checkpoint : nullptr, deal);
  return !stopped();
}

void ElasticRanks::save() const {
  optim::NamedTensors state;
  if (zero_ || place_ == 0) state = optimizer_.state_dict();  // ZeRO's ranks send their parts
  if (place_ != 0) return;
  const BusyScope alone("save");
  options_.save(state, books());
}

void ElasticRanks::finish(const std::function<void()>& on_lowest) {
  if (over_) return;
  finishing_ = true;
  run("finish",
      [&] {
        write_record();
        if (place_ != 0 || !on_lowest) return;
        const BusyScope alone("finish");
        on_lowest();
      },
      {});
  if (run_.membership) run_.membership->leave(run_.rank, generation_);
}

// --- Another group -------------------------------------------------------------------------------

/// Whether the generation's keys name this rank as the first that failed: then the error was its
/// own.
bool ElasticRanks::failed_first() const {
  const auto first = comm::if_told<std::optional<comm::Failure>>([&] {
    return comm::find_failure(*run_.membership->keys(generation_),
                              comm::Deadline(std::chrono::milliseconds(0)));
  });
  return first && first->rank == run_.rank;
}

/// Called after an error that may mean the loss of a rank. Waits for the launcher, which announces
/// the next generation when a process has ended; its connections may close long before.
bool ElasticRanks::has_lost_a_rank() const {
  const PhaseScope phase("regroup");
  // A group that has not failed means an error of this rank's own, and so may one that has: a
  // backward that fails here aborts the group.
  const bool failed = group_->failed() || (zero_ && zero_->failed());
  return next_ranks(!failed || failed_first()).has_value();
}

/// The ranks of the next generation, if it is announced in time. `own_error`: none is likely to be
/// announced, so this waits only shortly.
std::optional<std::vector<int>> ElasticRanks::next_ranks(bool own_error) const {
  const auto patience = group_ ? std::max(kAnnounced, group_->options().timeout) : kAnnounced;
  return run_.membership->ranks(generation_ + 1,
                                comm::Deadline(own_error ? comm::kStoreTimeout : patience));
}

/// Joins the next generation that forms. Returns false if none contains this rank; the caller's
/// error then says why.
bool ElasticRanks::regroup() {
  const Scoped step(&ThreadState::step, steps_);
  const PhaseScope phase("regroup");
  if (group_) fault_point();
  std::exception_ptr last;
  for (bool own_error = false;;) {
    const std::optional<Ranks> ranks = next_ranks(own_error);
    if (!ranks || !contains(*ranks, run_.rank)) {
      if (last) std::rethrow_exception(last);
      return false;
    }
    ++generation_;
    own_error = false;
    if (run_.membership->has_failed(generation_)) continue;
    const char* lost = nullptr;
    try {
      lost = join(*ranks);
      if (!lost) return true;
    } catch (const Error& error) {
      if (!may_be_a_loss(error)) throw;
      last = std::current_exception();
      own_error = failed_first();
      continue;
    }
    WEFT_THROW(PeerFailed, kOp, lost, "; start again from a checkpoint");
  }
}

// Keeps the previous group until the new one is complete: if it has not failed, other ranks may
// still be receiving the result of its last vote. Returns what is lost if the training cannot go
// on, else null.
const char* ElasticRanks::join(const Ranks& ranks) {
  const int place = static_cast<int>(std::ranges::find(ranks, run_.rank) - ranks.begin());
  const auto group = run_.connect(run_.membership->keys(generation_), {generation_, ranks}, place);
  if (!agree(*group)) return "all ranks that had the state of the training have failed";
  // While finishing, a missing part does not matter: a rank that has finished may have been the
  // last to have it, and no further step needs it.
  if (zero_ && !zero_->deal(optimizer_, group) && !finishing_) {
    return "a rank and its mirror have failed, and with them both copies of a part of the "
           "optimiser's state";
  }
  unsent_ = false;
  wrap_(group);
  const bool first = !std::exchange(group_, group) && !run_.returns;
  take(ranks, place);
  if (place_ == 0 && !first) {
    log_info(detail::concat("elastic: from step ", steps_, " on ranks ", list_of(ranks_, ", ")));
  }
  return nullptr;
}

void ElasticRanks::take(const Ranks& ranks, int place) {
  ranks_ = ranks;
  place_ = place;
  if (!history_.empty() && history_.back().step == steps_) history_.pop_back();
  if (history_.empty() || history_.back().ranks != ranks_) history_.push_back({steps_, ranks_});
  write_record();
}

bool ElasticRanks::agree(comm::ProcessGroup& group) {
  struct Said {
    std::int64_t votes = 0;
    int flags = 0, has_state = 0;
  };
  std::vector<Said> all;
  Said front;
  int root = -1;
  bool some_lack_state = false;
  for (const std::string& text :
       group.all_gather_object(detail::concat(votes_, ' ', flags_, ' ', has_state_ ? 1 : 0))) {
    Said& said = all.emplace_back();
    std::istringstream(text) >> said.votes >> said.flags >> said.has_state;
    some_lack_state |= said.has_state == 0;
    if (said.has_state == 0) continue;
    if (root < 0) root = static_cast<int>(all.size()) - 1;
    if (said.votes >= front.votes) front = said;
  }
  if (root < 0) return false;
  const bool alike = std::ranges::all_of(
      all, [&](const Said& said) { return said.has_state == 0 || said.votes == front.votes; });
  WEFT_CHECK(group_ || run_.returns || alike, InvalidArgument, kOp,
             "some ranks go on from a checkpoint, others from none or another one; here from step ",
             steps_);
  if (has_state_ && front.votes > votes_) {
    WEFT_CHECK(front.votes == votes_ + 1 && pending_, Internal, kOp, "this rank has passed ",
               votes_, " votes, another one ", front.votes);
    pass(front.flags);
  } else if (has_state_ && pending_) {
    restore();
  }
  if (some_lack_state) copy_state(group, root);
  return true;
}

// --- The state of the training -------------------------------------------------------------------

std::string ElasticRanks::books() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the text may be read in another locale
  out << votes_ << ' ' << steps_ << ' ' << epoch_ << ' ' << epoch_first_step_ << ' ' << flags_
      << ' ' << in_epoch_ << '\n'
      << list_of(dealt_, " ") << '\n';
  for (const std::vector<Span>* spans : {&history_, &epochs_}) {
    out << spans->size() << '\n';
    for (const Span& span : *spans) out << span.step << ' ' << list_of(span.ranks, " ") << '\n';
  }
  if (options_.state) out << options_.state();
  return std::move(out).str();
}

void ElasticRanks::take_books(const std::string& text) {
  std::istringstream in(text);
  std::string line;
  const auto next_line = [&] {
    std::getline(in, line);
    return std::istringstream(line);
  };
  const auto ranks_in = [](std::istringstream from) {
    Ranks ranks;
    for (int rank; from >> rank;) ranks.push_back(rank);
    return ranks;
  };
  std::istringstream counters = next_line();
  counters >> votes_ >> steps_ >> epoch_ >> epoch_first_step_ >> flags_ >> in_epoch_;
  WEFT_CHECK(counters, InvalidArgument, kOp, "\"", line, "\" are no counters of an elastic run");
  dealt_ = ranks_in(next_line());
  for (std::vector<Span>* spans : {&history_, &epochs_}) {
    std::size_t count = 0;
    next_line() >> count;
    spans->clear();
    for (; count > 0 && in; --count) {
      std::istringstream one = next_line();
      Span& span = spans->emplace_back();
      one >> span.step;
      span.ranks = ranks_in(std::move(one));
    }
  }
  if (options_.load_state) {
    options_.load_state(text.substr(std::min(text.size(), static_cast<std::size_t>(in.tellg()))));
  }
  resumes_ = in_epoch_ && contains(dealt_, run_.rank);
}

/// Copies the state from the root to the ranks that lack it. The other ranks take part, with equal
/// values.
void ElasticRanks::copy_state(comm::ProcessGroup& group, int root) {
  const PhaseScope phase("copy state");
  const bool sends = group.rank() == root;
  fault_point();
  const std::string text = group.broadcast_object(sends ? books() : "", root);
  std::vector<Tensor> tensors = module_.parameters();
  tensors.insert(tensors.end(), buffers_.begin(), buffers_.end());

  broadcast_coalesced(group, tensors, root);
  optim::NamedTensors state;
  if (sends) state = zero_ ? zero_->rates() : optimizer_.state_dict();
  state = broadcast_named(group, std::move(state), root);

  if (has_state_) return;
  optimizer_.load_state_dict(state);
  take_books(text);
  seed_generators();
  has_state_ = true;
}

/// Seeds each device's generator from its seed, the rank and the step.
void ElasticRanks::seed_generators() {
  for (auto& [device, generator] : kept_generators_) {
    Generator& own = default_generator(device);
    const std::uint64_t of_step =
        Generator(own.initial_seed()).random64() + static_cast<std::uint64_t>(steps_);
    own.manual_seed(Generator(of_step).random64() + static_cast<std::uint64_t>(rank()));
  }
}

void ElasticRanks::write_record() const {
  if (place_ != 0 || options_.record.empty()) return;
  std::string text = "{";
  for (const auto& [name, spans] :
       {std::pair("\"ranks\": [", &history_), std::pair(",\n\"epochs\": [", &epochs_)}) {
    text += name;
    for (const Span& span : *spans) {
      text += detail::concat(&span == spans->data() ? "" : ", ", "{\"step\": ", span.step,
                             ", \"ranks\": [", list_of(span.ranks, ", "), "]}");
    }
    text += ']';
  }
  write_file_atomically(options_.record, detail::concat(text, ",\n\"steps\": ", steps_, "}\n"));
}

}  // namespace weft::parallel
