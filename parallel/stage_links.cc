#include "weft/parallel/stage_links.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/streams.h"
#include "weft/core/runtime/thread_name.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "pipeline";
// The description of a message has a fixed size of 4 KiB, so that any message can be received.
constexpr std::int64_t kWords = 512;
constexpr std::int64_t kMark = 0x7765667470697065;  // "weftpipe"

// Flags of a tensor; 0: undefined.
constexpr std::int64_t kDefined = 1, kNeedsGradient = 2;

/// A sequence of words of limited length.
class Words {
 public:
  void add(std::int64_t word) {
    WEFT_CHECK(next_ < kWords, Unsupported, kOp,
               "a stage hands too many tensors to another rank, their description has more than ",
               kWords, " numbers; let it hand over fewer, or put both stages on one rank");
    words_[next_++] = word;
  }
  std::int64_t take() {
    WEFT_CHECK(next_ < kWords, Comm, kOp, "a message ends within its description");
    return words_[next_++];
  }
  const Tensor& tensor() const { return memory_; }

 private:
  Tensor memory_ = zeros({kWords}, {DType::i64, Device()});
  std::int64_t* words_ = memory_.data<std::int64_t>();
  std::int64_t next_ = 0;
};

void add_form(Words& words, const Tensor& x) {
  if (!x.defined()) return words.add(0);
  words.add(kDefined | (x.requires_grad() ? kNeedsGradient : 0));
  words.add(static_cast<std::int64_t>(x.dtype()));
  words.add(x.dim());
  for (const std::int64_t size : x.shape()) words.add(size);
  for (const std::int64_t stride : x.strides()) words.add(stride);
}

// Reads the form of a tensor; its values are undefined until they arrive.
Tensor take_form(Words& words, Device device) {
  const std::int64_t flags = words.take();
  if (flags == 0) return {};
  const std::int64_t dtype = words.take(), dims = words.take();
  WEFT_CHECK(0 <= dtype && dtype <= static_cast<std::int64_t>(DType::boolean) && 0 <= dims &&
                 dims <= kMaxDims,
             Comm, kOp, "a message describes a tensor of dtype ", dtype, " with ", dims,
             " dimensions");
  Shape shape;
  Strides strides;
  for (std::int64_t i = 0; i < dims; ++i) shape.push_back(words.take());
  for (std::int64_t i = 0; i < dims; ++i) strides.push_back(words.take());
  const Tensor memory = empty({numel(shape)}, {static_cast<DType>(dtype), device});
  const Tensor x = as_strided(memory.storage(), memory.dtype(), shape, strides, 0);
  return flags & kNeedsGradient ? x.set_requires_grad() : x;
}

}  // namespace

/// The thread that receives what one rank sends; made for the first batch, and kept.
class StageLinks::Receiver {
 public:
  Receiver() = default;
  ~Receiver() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// Runs the job on the thread. It may not throw.
  void start(std::function<void()> job) {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    {
      const std::lock_guard lock(mutex_);
      job_ = std::move(job);
    }
    changed_.notify_all();
  }
  /// Waits until the job is done.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !job_; });
  }

 private:
  void serve() {
    set_thread_name("pipeline receive");
    leave_thread_unbound();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return quit_ || job_; });
      if (!job_) return;
      lock.unlock();
      job_();
      lock.lock();
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // empty: no job
  bool quit_ = false;
  std::thread thread_;
};

struct StageLinks::Link {
  std::shared_ptr<comm::ProcessGroup> group;
  int rank = 0;  // of the other end
  Receiver receiver = {};
};

const std::vector<Tensor>& Arrival::wait() const {
  for (const comm::Work& work : works_) work.wait();
  return tensors_;
}

StageLinks::StageLinks(comm::ProcessGroup& group, const std::set<Route>& routes) {
  for (const auto& [from, to] : routes) {
    const auto [first, second] = std::minmax(from, to);
    const auto pair = group.subgroup({first, second});
    if (!pair) continue;
    const int other = group.rank() == from ? to : from;
    auto& link = (group.rank() == from ? to_ : from_)[other];
    link.reset(new Link{.group = pair, .rank = other < group.rank() ? 0 : 1});
  }
}

// After finish() nothing may be aborted: on CUDA the other rank may still read what was sent.
StageLinks::~StageLinks() {
  if (!sent_.empty()) abort();
}

StageLinks::Link& StageLinks::link(const Links& links, int other) const {
  const auto found = links.find(other);
  WEFT_CHECK(found != links.end(), Internal, kOp, "there is no connection to rank ", other);
  return *found->second;
}

void StageLinks::send(int to, const Action& action, std::int64_t rows,
                      std::span<const Tensor> tensors) {
  Link& link = this->link(to_, to);
  std::vector<Tensor> dense;
  for (const Tensor& x : tensors) {
    dense.push_back(
        !x.defined() || x.is_dense() ? x : raw::contiguous(x).set_requires_grad(x.requires_grad()));
  }
  Words words;
  for (const std::int64_t word :
       {kMark, static_cast<std::int64_t>(action.kind), std::int64_t{action.stage},
        std::int64_t{action.micro_batch}, rows, static_cast<std::int64_t>(dense.size())}) {
    words.add(word);
  }
  for (const Tensor& x : dense) add_form(words, x);
  const comm::ProcessGroup::Tag tag(to_string(action));
  sent_.push_back(link.group->send(words.tensor(), link.rank));
  for (const Tensor& x : dense) {
    if (x.defined()) sent_.push_back(link.group->send(x, link.rank));
  }
}

Arrival StageLinks::receive(int from, const Action& sent, std::int64_t rows, Device device) {
  return receive(link(from_, from), sent, rows, device);
}

Arrival StageLinks::receive(Link& from, const Action& sent, std::int64_t rows, Device device) {
  const comm::ProcessGroup::Tag tag(to_string(counterpart(sent)));
  Words words;
  from.group->recv(words.tensor(), from.rank).wait();
  WEFT_CHECK(words.take() == kMark, Comm, kOp, "got something else than a stage's tensors");
  const auto kind = static_cast<Action::Kind>(words.take());
  const auto stage = static_cast<int>(words.take()), micro_batch = static_cast<int>(words.take());
  const std::int64_t theirs = words.take(), count = words.take();
  const Action got{kind, stage, micro_batch};
  WEFT_CHECK(got == sent && theirs == rows, Comm, kOp, "expected ", to_string(sent),
             " of a batch of ", rows, " rows, got ", to_string(got), " of ", theirs,
             " rows; all ranks must be given batches of the same size");
  Arrival arrival;
  for (std::int64_t i = 0; i < count; ++i) {
    arrival.tensors_.push_back(take_form(words, device));
    const Tensor& x = arrival.tensors_.back();
    if (x.defined()) arrival.works_.push_back(from.group->recv(x, from.rank));
  }
  return arrival;
}

void StageLinks::begin(const Sends& sends, std::int64_t rows, Device device, const Deliver& deliver,
                       const Fail& fail) {
  ThreadState state = thread_state();
  state.multiply_adds = nullptr;
  for (const auto& [from, actions] : sends) {
    Link& link = this->link(from_, from);
    link.receiver.start([=, this, &link, streams = CurrentStreams::of_this_thread()] {
      const ThreadStateGuard state_guard(state);
      const StreamsGuard streams_guard(streams);
      try {
        for (const Action& action : actions) {
          const bool gradients = action.kind == Action::Kind::send_gradient;
          const Scoped owner(&ThreadState::memory_owner,
                             gradients ? MemoryOwner::gradients : MemoryOwner::activations);
          deliver(action, receive(link, action, rows, device));
        }
      } catch (...) {
        fail(std::current_exception());
      }
    });
  }
}

void StageLinks::finish() {
  for (auto& [rank, link] : from_) link->receiver.wait();
  const std::vector<comm::Work> sent = std::exchange(sent_, {});
  for (const comm::Work& work : sent) work.wait();
}

comm::Traffic StageLinks::traffic() const {
  comm::Traffic sum;
  for (const auto* const links : {&to_, &from_}) {
    for (const auto& [rank, link] : *links) sum += link->group->traffic();
  }
  return sum;
}

void StageLinks::abort() noexcept {
  for (auto* const links : {&to_, &from_}) {
    for (auto& [rank, link] : *links) link->group->abort();
  }
}

}  // namespace weft::parallel
