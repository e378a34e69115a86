#include "weft/comm/group/process_group.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <ranges>
#include <string_view>
#include <utility>

#include "weft/comm/backend/nccl.h"
#include "weft/comm/group/connect.h"
#include "weft/comm/group/device_tensors.h"
#include "weft/comm/group/monitored_barrier.h"
#include "weft/comm/group/operation_queue.h"
#include "weft/core/base/error.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "process_group";
// A longer Deadline might overflow the clock.
constexpr std::chrono::milliseconds kLongest{1'000'000'000};
constexpr std::int64_t kMostObjectBytes = std::int64_t{1} << 30;

ProcessGroupOptions checked(ProcessGroupOptions options) {
  for (const auto& [name, time] :
       {std::pair("timeout", options.timeout), std::pair("slow", options.slow)}) {
    WEFT_CHECK(time.count() >= 1 && time <= kLongest, InvalidArgument, kOp, name, " is ",
               time.count(), " ms; needs 1 to ", kLongest.count());
  }
  const char* const debug = std::getenv("WEFT_DISTRIBUTED_DEBUG");
  options.check_fingerprints |= debug && std::string_view(debug) == "1";
  return options;
}

std::string described(const char* name, const Tensor& x) {
  return detail::concat(name, ' ', x.shape());
}

void check_defined(const char* op, const char* name, const Tensor& x) {
  WEFT_CHECK(x.defined(), InvalidArgument, op, name, " is an undefined tensor");
}

// A result other than x must be row-major: backends write its parts in x's row-major order.
void check_row_major(const char* op, const Tensor& y) {
  WEFT_CHECK(y.is_contiguous(), InvalidArgument, op, described("y", y),
             " is not row-major (strides ", y.strides(), "), which a result beside x must be");
}

bool overlap(const Tensor& a, const Tensor& b) {
  const Buffer first = buffer_of(a), second = buffer_of(b);
  const auto end = [](const Buffer& x) { return static_cast<std::byte*>(x.data) + x.bytes(); };
  return first.data < end(second) && second.data < end(first);
}

// `stacked`: [size, x's shape].
void check_stacked(const char* op, const char* name, const Tensor& stacked, int size,
                   const char* name_of_part, const Tensor& part) {
  Shape expected = part.shape();
  expected.insert(0, size);
  WEFT_CHECK(stacked.shape() == expected, Shape, op, name, ": got ", stacked.shape(), ", expected ",
             expected, " for ", size, " ranks (", described(name_of_part, part), ')');
}

}  // namespace

struct ProcessGroup::Impl {
  Impl(BackendMaker maker, std::shared_ptr<Store> store_of_group,
       std::shared_ptr<Store> store_of_run, Members members, const ProcessGroupOptions& options);

  int rank() const { return queue->members().rank; }
  int size() const { return queue->members().size(); }

  // Checks what every tensor of an operation must fulfil.
  void check(const char* op, const char* name, const Tensor& x) const;
  // Checks that y is another tensor than x.
  void check_pair(const char* op, const Tensor& y, const Tensor& x) const;
  void check_rank(const char* op, const char* name, int rank) const;
  void check_peer(const char* op, const char* name, int rank) const;
  void check_reduce(const char* op, const Tensor& x, ReduceOp reduce) const;

  Work submit(Operation operation, std::initializer_list<const Tensor*> written);
  // `name`: the operation that it is a part of, for messages.
  Work broadcast(const char* name, const Tensor& x, int root);
  Work all_gather(const char* name, const Tensor& y, const Tensor& x);

  const int process = fork_count();
  const BackendMaker make;
  const std::shared_ptr<Store> store, run_store;
  std::unique_ptr<OperationQueue> queue;
  std::atomic<int> subgroups{0}, barriers{0};
};

ProcessGroup::Impl::Impl(BackendMaker maker, std::shared_ptr<Store> store_of_group,
                         std::shared_ptr<Store> store_of_run, Members members,
                         const ProcessGroupOptions& given)
    : make(std::move(maker)), store(std::move(store_of_group)), run_store(std::move(store_of_run)) {
  const ProcessGroupOptions options = checked(given);
  std::unique_ptr<Backend> backend;
  std::shared_ptr<Store> of_group;
  std::unique_ptr<Store> of_run;
  if (members.size() > 1) {
    if (demands_nccl(options.cuda)) check_nccl();
    WEFT_CHECK(make && store, InvalidArgument, kOp, "a group of ", members.size(),
               " ranks needs a backend and a store in which they meet");
    of_group = store->duplicate();
    of_run = run_store->duplicate();
    of_run->set_timeout(kStoreTimeout);
  }
  const FailureWatch others(of_run.get(), members.number_in_run(members.rank));
  if (of_run) backend = connect_members(make, of_group, *of_run, members, options.timeout);
  queue = std::make_unique<OperationQueue>(std::move(members), options, std::move(backend),
                                           std::move(of_group), std::move(of_run), others);
}

void ProcessGroup::Impl::check(const char* op, const char* name, const Tensor& x) const {
  check_defined(op, name, x);
  WEFT_CHECK(x.is_dense(), InvalidArgument, op, described(name, x),
             " has gaps in memory or elements that share it (strides ", x.strides(),
             "); use contiguous()");
}

void ProcessGroup::Impl::check_pair(const char* op, const Tensor& y, const Tensor& x) const {
  check(op, "y", y);
  check(op, "x", x);
  WEFT_CHECK(y.dtype() == x.dtype(), Dtype, op, "y is ", y.dtype(), ", x is ", x.dtype(),
             "; nothing is converted on the way");
  WEFT_CHECK(y.device() == x.device(), Device, op, "y is on ", y.device(), ", x on ", x.device());
  check_row_major(op, y);
  WEFT_CHECK(!overlap(y, x), InvalidArgument, op, "y and x share memory; use a copy of x");
}

void ProcessGroup::Impl::check_rank(const char* op, const char* name, int rank) const {
  WEFT_CHECK(rank >= 0 && rank < size(), InvalidArgument, op, name, " is rank ", rank,
             ", the group has ranks 0 to ", size() - 1);
}

void ProcessGroup::Impl::check_peer(const char* op, const char* name, int rank) const {
  check_rank(op, name, rank);
  WEFT_CHECK(rank != this->rank(), InvalidArgument, op, name, " is rank ", rank,
             ", which is this one itself");
}

void ProcessGroup::Impl::check_reduce(const char* op, const Tensor& x, ReduceOp reduce) const {
  WEFT_CHECK(reduce != ReduceOp::avg || is_floating(x.dtype()), Dtype, op, "avg of ", x.dtype(),
             "; only floating numbers have one, use sum");
}

Work ProcessGroup::Impl::submit(Operation operation, std::initializer_list<const Tensor*> written) {
  WEFT_CHECK(process == fork_count(), Internal, operation.call.name,
             "this group was made in the parent process; make another one after fork()");
  if (size() > 1) graph::check_not_capturing(operation.call.name, "a replay would not run it");
  operation.set_caller();
  for (const Tensor* const x : written) {
    if (!x->defined()) continue;
    x->storage()->bump_version();
    operation.writes_x |= x->same(operation.x);
  }
  const Tensor& part = operation.part();
  if (size() > 1 && part.defined() && part.device().is_cuda()) {
    operation.ready = event_here(part.device());
  }
  return queue->submit(std::move(operation));
}

Work ProcessGroup::Impl::broadcast(const char* name, const Tensor& x, int root) {
  check_rank(name, "root", root);
  check(name, "x", x);
  const Tensor written = rank() == root ? Tensor() : x;
  return submit({.call = {.name = name},
                 .run = [](const Operation& o, Backend& backend,
                           const Deadline& d) { backend.broadcast(buffer_of(o.x), o.root, d); },
                 .x = x,
                 .root = root},
                {&written});
}

Work ProcessGroup::Impl::all_gather(const char* name, const Tensor& y, const Tensor& x) {
  check_pair(name, y, x);
  check_stacked(name, "y", y, size(), "x", x);
  return submit(
      {.call = {.name = name},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.all_gather(buffer_of(o.x), buffer_of(o.y), d); },
       .y = y,
       .x = raw::contiguous(x)},
      {&y});
}

ProcessGroup::ProcessGroup(BackendMaker make, std::shared_ptr<Store> store, int rank, int size,
                           const ProcessGroupOptions& options, const Generation& generation)
    : impl_(std::make_unique<Impl>(std::move(make), store, store,
                                   Members::of_run(rank, size, generation), options)) {}

ProcessGroup::Tag::Tag(std::string_view text, bool same_module)
    : text_before_(std::exchange(tag_of_thread().text, std::string(text))),
      same_module_before_(std::exchange(tag_of_thread().same_module, same_module)) {}
ProcessGroup::Tag::~Tag() { tag_of_thread() = {std::move(text_before_), same_module_before_}; }

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ProcessGroup::~ProcessGroup() {
  // A child of fork() does not have these threads, and what they share is as they left it: so
  // nothing is destroyed.
  if (impl_->process != fork_count()) static_cast<void>(impl_.release());
}

int ProcessGroup::rank() const { return impl_->rank(); }
int ProcessGroup::size() const { return impl_->size(); }
const char* ProcessGroup::backend() const {
  const Backend* const backend = impl_->queue->backend();
  if (!backend) return "none";
  switch (options().cuda) {
    case CudaTransport::nccl: return "nccl";
    case CudaTransport::nccl_ring: return "nccl-ring";
    default: return backend->name();
  }
}
const ProcessGroupOptions& ProcessGroup::options() const { return impl_->queue->options(); }
const std::shared_ptr<Store>& ProcessGroup::store() const { return impl_->store; }
const std::shared_ptr<Store>& ProcessGroup::run_store() const { return impl_->run_store; }
int ProcessGroup::number_in_run(int rank) const {
  impl_->check_rank("number_in_run", "rank", rank);
  return impl_->queue->members().number_in_run(rank);
}
bool ProcessGroup::failed() const { return impl_->queue->failed(); }
Traffic ProcessGroup::traffic() const { return impl_->queue->traffic(); }
void ProcessGroup::abort() noexcept { impl_->queue->abort("the group was aborted"); }

// --- Operations ----------------------------------------------------------------------------------

Work ProcessGroup::broadcast(const Tensor& x, int root) {
  return impl_->broadcast("broadcast", x, root);
}

Work ProcessGroup::all_reduce(const Tensor& x, ReduceOp op) {
  impl_->check("all_reduce", "x", x);
  impl_->check_reduce("all_reduce", x, op);
  return impl_->submit(
      {.call = {.name = "all_reduce"},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.all_reduce(buffer_of(o.x), o.reduce, d); },
       .x = x,
       .reduce = op},
      {&x});
}

Work ProcessGroup::reduce(const Tensor& x, int root, ReduceOp op) {
  impl_->check_rank("reduce", "root", root);
  impl_->check("reduce", "x", x);
  impl_->check_reduce("reduce", x, op);
  return impl_->submit(
      {.call = {.name = "reduce"},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.reduce(buffer_of(o.x), o.reduce, o.root, d); },
       .x = x,
       .reduce = op,
       .root = root},
      {&x});
}

Work ProcessGroup::all_gather(const Tensor& y, const Tensor& x) {
  return impl_->all_gather("all_gather", y, x);
}

Work ProcessGroup::reduce_scatter(const Tensor& y, const Tensor& x, ReduceOp op) {
  impl_->check_pair("reduce_scatter", y, x);
  check_stacked("reduce_scatter", "x", x, size(), "y", y);
  impl_->check_reduce("reduce_scatter", x, op);
  return impl_->submit({.call = {.name = "reduce_scatter"},
                        .run =
                            [](const Operation& o, Backend& backend, const Deadline& d) {
                              backend.reduce_scatter(buffer_of(o.x), buffer_of(o.y), o.reduce, d);
                            },
                        .y = y,
                        .x = raw::contiguous(x),
                        .reduce = op},
                       {&y, &x});
}

Work ProcessGroup::gather(const Tensor& y, const Tensor& x, int root) {
  impl_->check_rank("gather", "root", root);
  impl_->check("gather", "x", x);
  const Tensor result = rank() == root ? y : Tensor();
  if (rank() == root) {
    impl_->check_pair("gather", y, x);
    check_stacked("gather", "y", y, size(), "x", x);
  }
  return impl_->submit(
      {.call = {.name = "gather"},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.gather(buffer_of(o.x), buffer_of(o.y), o.root, d); },
       .y = result,
       .x = raw::contiguous(x),
       .root = root},
      {&result});
}

Work ProcessGroup::scatter(const Tensor& y, const Tensor& x, int root) {
  impl_->check_rank("scatter", "root", root);
  impl_->check("scatter", "y", y);
  check_row_major("scatter", y);
  Tensor parts;
  if (rank() == root) {
    impl_->check_pair("scatter", y, x);
    check_stacked("scatter", "x", x, size(), "y", y);
    parts = raw::contiguous(x);
  }
  return impl_->submit(
      {.call = {.name = "scatter"},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.scatter(buffer_of(o.x), buffer_of(o.y), o.root, d); },
       .y = y,
       .x = parts,
       .root = root},
      {&y});
}

Work ProcessGroup::all_to_all(const Tensor& y, const Tensor& x) {
  impl_->check_pair("all_to_all", y, x);
  WEFT_CHECK(x.dim() > 0 && x.shape(0) == size() && y.shape() == x.shape(), Shape, "all_to_all",
             "got ", described("y", y), " and ", described("x", x), ", expected two of one shape [",
             size(), ",...] for ", size(), " ranks");
  return impl_->submit(
      {.call = {.name = "all_to_all"},
       .run = [](const Operation& o, Backend& backend,
                 const Deadline& d) { backend.all_to_all(buffer_of(o.x), buffer_of(o.y), d); },
       .y = y,
       .x = raw::contiguous(x)},
      {&y});
}

Work ProcessGroup::send(const Tensor& x, int to) {
  impl_->check_peer("send", "to", to);
  impl_->check("send", "x", x);
  const auto run = [](const Operation& o, Backend& backend, const Deadline& d) {
    const Outgoing message{o.peer, buffer_of(o.x).span()};
    backend.exchange({&message, 1}, {}, d);
  };
  return impl_->submit({.call = {.name = "send"}, .run = run, .x = x, .peer = to}, {});
}

Work ProcessGroup::recv(const Tensor& x, int from) {
  impl_->check_peer("recv", "from", from);
  impl_->check("recv", "x", x);
  const auto run = [](const Operation& o, Backend& backend, const Deadline& d) {
    const Incoming message{o.peer, buffer_of(o.x).span()};
    backend.exchange({}, {&message, 1}, d);
  };
  return impl_->submit({.call = {.name = "recv"}, .run = run, .x = x, .peer = from}, {&x});
}

Work ProcessGroup::barrier() {
  return impl_->submit(
      {.call = {.name = "barrier"},
       .run = [](const Operation&, Backend& backend, const Deadline& d) { backend.barrier(d); }},
      {});
}

Tensor ProcessGroup::empty(const Shape& shape, DType dtype) {
  const Backend* const own = impl_->queue->backend();
  if (!own || !own->has_memory()) return weft::empty(shape, {dtype, Device()});
  check_shape(shape, "empty");
  const auto bytes = checked_mul(numel(shape), static_cast<std::int64_t>(size_of(dtype)), "empty");
  checked_mul(bytes, size(), "empty");  // the memory of all ranks is one block
  const auto memory = std::make_shared<Operation::Memory>();
  memory->bytes = static_cast<std::size_t>(bytes);
  impl_
      ->submit({.call = {.name = "empty"},
                .run =
                    [](const Operation& o, Backend& backend, const Deadline& d) {
                      o.memory->storage = backend.allocate(o.memory->bytes, d);
                    },
                .memory = memory},
               {})
      .wait();
  Storage& storage = *memory->storage;  // from the group's thread
  storage.owned() ? storage.set_owner(thread_state().memory_owner) : storage.charge();
  return as_strided(memory->storage, dtype, shape, contiguous_strides(shape), 0);
}

// --- Objects -------------------------------------------------------------------------------------

namespace {

Tensor bytes_of(std::string& text, const Shape& shape) {
  return borrow(std::span(reinterpret_cast<std::uint8_t*>(text.data()), text.size()), shape);
}

// Called when all ranks know the sizes, so that all of them throw.
void check_object(const char* op, std::int64_t bytes) {
  WEFT_CHECK(bytes <= kMostObjectBytes, InvalidArgument, op, "objects of ", bytes,
             " bytes; at most ", kMostObjectBytes, " go at once, use a tensor");
}

}  // namespace

std::string ProcessGroup::broadcast_object(std::string_view object, int root) {
  constexpr const char* op = "broadcast_object";
  std::int64_t length = std::ssize(object);
  impl_->broadcast(op, borrow(std::span(&length, 1), {1}), root).wait();
  check_object(op, length);
  std::string result(rank() == root ? object : "");
  result.resize(static_cast<std::size_t>(length));
  impl_->broadcast(op, bytes_of(result, {length}), root).wait();
  return result;
}

std::vector<std::string> ProcessGroup::all_gather_object(std::string_view object) {
  constexpr const char* op = "all_gather_object";
  std::int64_t length = std::ssize(object);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size()));
  impl_->all_gather(op, borrow(std::span(lengths), {size(), 1}), borrow(std::span(&length, 1), {1}))
      .wait();
  // All objects are padded to the longest.
  const std::int64_t longest = std::ranges::max(lengths);
  check_object(op, longest);
  check_object(op, longest * size());
  std::string mine(object), all(static_cast<std::size_t>(longest * size()), '\0');
  mine.resize(static_cast<std::size_t>(longest));
  impl_->all_gather(op, bytes_of(all, {size(), longest}), bytes_of(mine, {longest})).wait();
  std::vector<std::string> objects;
  for (const std::int64_t bytes : lengths) {
    const std::size_t begin = objects.size() * static_cast<std::size_t>(longest);
    objects.push_back(all.substr(begin, static_cast<std::size_t>(bytes)));
  }
  return objects;
}

// --- Without the queue ---------------------------------------------------------------------------

void ProcessGroup::monitored_barrier(std::chrono::milliseconds timeout) {
  WEFT_CHECK(timeout.count() >= 1 && timeout <= kLongest, InvalidArgument, "monitored_barrier",
             "timeout is ", timeout.count(), " ms; needs 1 to ", kLongest.count());
  impl_->queue->check_alive("monitored_barrier");
  const int round = impl_->barriers++;
  if (size() == 1) return;
  // Uses a connection of its own, so that other threads can use the store while this one waits for
  // the ranks.
  const std::unique_ptr<Store> own = impl_->store->duplicate();
  comm::monitored_barrier(*own, impl_->queue->members(), round, timeout);
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(std::vector<int> ranks, std::string name) {
  impl_->queue->check_alive("subgroup");
  WEFT_CHECK(!ranks.empty(), InvalidArgument, "subgroup", "got no ranks");
  std::ranges::sort(ranks);
  for (const int r : ranks) impl_->check_rank("subgroup", "a member", r);
  const auto twice = std::ranges::adjacent_find(ranks);
  WEFT_CHECK(twice == ranks.end(), InvalidArgument, "subgroup", "rank ", *twice, " is given twice");
  const std::string prefix = "group/" + std::to_string(impl_->subgroups++);
  const auto found = std::ranges::find(ranks, rank());
  if (found == ranks.end()) return nullptr;

  auto members = impl_->queue->members().some(ranks, static_cast<int>(found - ranks.begin()), name);
  std::shared_ptr<Store> store;
  if (impl_->store) store = std::make_shared<PrefixStore>(prefix, impl_->store->duplicate());
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(
      std::make_unique<Impl>(impl_->make, store, impl_->run_store, std::move(members), options())));
}

std::shared_ptr<ProcessGroup> ProcessGroup::duplicate() {
  const auto all = std::views::iota(0, size());
  return subgroup({all.begin(), all.end()});
}

}  // namespace weft::comm
