#include "weft/parallel/shard_unit.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

std::int64_t elements_of_row(const Tensor& x) {
  std::int64_t elements = 1;
  for (int i = 1; i < x.dim(); ++i) elements *= x.shape()[i];
  return elements;
}

// Dense strides for rows of x: dimension 0 is outermost, the others keep their order in memory.
Strides strides_of_rows(const Tensor& x) {
  std::vector<int> order(static_cast<std::size_t>(x.dim() - 1));
  std::iota(order.begin(), order.end(), 1);
  std::ranges::sort(order, [&](int a, int b) {
    return x.strides()[a] != x.strides()[b] ? x.strides()[a] < x.strides()[b] : a > b;
  });
  Strides strides = x.strides();
  std::int64_t step = 1;
  for (const int i : order) {
    strides[i] = step;
    step *= x.shape()[i];
  }
  strides[0] = step;
  return strides;
}

// The same elements with a version of their own: writing to them does not count as changing x.
Tensor unversioned(const Tensor& x) {
  return as_strided(Storage::borrow(x.device(), x.storage()->data(), x.storage()->bytes()),
                    x.dtype(), x.shape(), x.strides(), x.offset());
}

// Waits, and adds how long to `ms`, also if the message fails.
void wait(const comm::Work& work, double& ms) {
  struct Stopwatch {
    double& ms;
    std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    ~Stopwatch() {
      ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                .count();
    }
  } const stopwatch{ms};
  work.wait();
}

// The text is never freed: Storage::release keeps a pointer to it, and a parameter's memory may
// outlive its unit.
const char* why_released(const std::string& parameter, const std::string& unit) {
  static std::mutex mutex;
  static std::set<std::string>& texts = *new std::set<std::string>;
  const std::string text =
      detail::concat("this is ", parameter, " of the unit ", unit,
                     ", which fully_shard has cut: it is whole only ",
                     "while the unit's module is called, with module(x), and in its backward; ",
                     "FullySharded::unshard() gathers it");
  const std::lock_guard lock(mutex);
  return texts.insert(text).first->c_str();
}

}  // namespace

ShardUnit::ShardUnit(const nn::ModuleBase& module, int rank, int size,
                     const MixedPrecisionPolicy& policy, std::shared_ptr<void> owner,
                     const std::string& name)
    : size_(size) {
  const nn::NamedTensors parameters = nn::uncut_parameters(module);
  std::int64_t length = 0;
  for (const auto& [parameter, x] : parameters) {
    const std::int64_t rows = (x.shape()[0] + size - 1) / size;
    pieces_.push_back({parameter, nullptr, length, rows, strides_of_rows(x)});
    length += rows * elements_of_row(x);
  }
  if (parameters.empty()) return;
  set_name(name);
  const Tensor& any = parameters[0].second;
  whole_dtype_ = policy.param_dtype.value_or(any.dtype());
  sum_dtype_ = policy.reduce_dtype.value_or(whole_dtype_);
  {
    const Scoped memory(&ThreadState::memory_owner, MemoryOwner::parameters);
    chunk_ = zeros({length}, {any.dtype(), any.device()});
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    const Tensor& whole = parameters[i].second;
    const nn::Cut cut{.whole = whole.shape(), .rank = rank, .size = size};
    const Tensor part =
        as_strided(chunk_.storage(), chunk_.dtype(), cut.part_shape(), piece.strides, piece.offset);
    raw::copy_(part, cut.part_of(whole));
    const bool trained = whole.requires_grad();
    part.set_requires_grad(trained);
    whole.set_grad({});
    whole.set_requires_grad(false);
    piece.shard = nn::put_in_place(module, {whole, part, cut, owner});
    nn::convert_used(*piece.shard, whole_dtype_);
    whole.storage()->release(piece.why);
  }
  version_ = chunk_.storage()->version();
}

void ShardUnit::set_name(const std::string& name) {
  for (Piece& piece : pieces_) piece.why = why_released(piece.name, name);
}

Tensor ShardUnit::rows_at(const Tensor& memory, std::int64_t start, std::int64_t rows,
                          const Piece& piece) {
  Shape shape = piece.shard->used.shape();
  shape[0] = rows;
  return as_strided(memory.storage(), memory.dtype(), shape, piece.strides, start);
}

template <class F>
void ShardUnit::for_each_part(const Piece& piece, const F& f) const {
  const std::int64_t all = piece.shard->used.shape()[0];
  for (int r = 0; r < size_; ++r) {
    const std::int64_t first = r * piece.rows;
    if (first < all) f(r, first, std::min(piece.rows, all - first));
  }
}

// --- Parameters ----------------------------------------------------------------------------------

std::int64_t ShardUnit::start_gather(comm::ProcessGroup& group) {
  if (pieces_.empty() || gathering_) return 0;
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::communication);
  const Tensor own = raw::to(chunk_, whole_dtype_);
  const Tensor all = empty({size_, own.numel()}, {own.dtype(), own.device()});
  gathering_ = {all, own, group.all_gather(all, own)};
  started_version_ = chunk_.storage()->version();
  const auto bytes = all.numel() * static_cast<std::int64_t>(size_of(all.dtype()));
  stats_.gathers += 1;
  stats_.bytes_gathered += bytes;
  return bytes;
}

void ShardUnit::finish_gather() {
  if (!gathering_) return;
  const Message message = *std::exchange(gathering_, std::nullopt);
  wait(message.work, stats_.gather_wait_ms);
  const std::int64_t length = chunk_.numel();
  const bool changed = version_ != started_version_;
  version_ = started_version_;
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::whole_parameters);
  for (const Piece& piece : pieces_) {
    const Tensor& whole = piece.shard->used;
    whole.storage()->restore();
    // With equal values the version stays, so what was saved for a backward is still valid.
    if (changed) whole.storage()->bump_version();
    const Tensor written = unversioned(whole);
    for_each_part(piece, [&](int r, std::int64_t first, std::int64_t rows) {
      raw::copy_(raw::narrow(written, 0, first, rows),
                 rows_at(message.all, r * length + piece.offset, rows, piece));
    });
  }
  // The message may have been allocated in another stream.
  message.all.storage()->record_stream(current_stream(chunk_.device()));
  gathered_ = true;
}

void ShardUnit::drop_gather() {
  if (!gathering_) return;
  const Message message = *std::exchange(gathering_, std::nullopt);
  try {
    wait(message.work, stats_.gather_wait_ms);
  } catch (const Error&) {
    // The group has ended; its next call says why.
  }
}

void ShardUnit::release() {
  drop_gather();
  for (const Piece& piece : pieces_) piece.shard->used.storage()->release(piece.why);
  gathered_ = false;
}

// --- Gradients -----------------------------------------------------------------------------------

void ShardUnit::add_gradient(std::size_t i, Tensor gradient) {
  Tensor& sum = pieces_[i].gradient;
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::gradients);
  // Not added in place: others may still read both tensors.
  sum = sum.defined() ? raw::add(raw::to(sum, sum_dtype_), raw::to(gradient, sum_dtype_))
                      : std::move(gradient);
  sum.storage()->set_owner(MemoryOwner::gradients);
}

void ShardUnit::start_reduction(comm::ProcessGroup& group) {
  std::int64_t length = 0;
  for (const Piece& piece : pieces_) {
    if (!piece.reduced()) continue;
    length += piece.rows * elements_of_row(piece.shard->used);
  }
  const TensorOptions options(sum_dtype_, chunk_.device());
  {
    const Scoped memory(&ThreadState::memory_owner, MemoryOwner::communication);
    reduction_.all = zeros({size_, length}, options);
  }
  std::int64_t offset = 0;
  for (Piece& piece : pieces_) {
    if (!piece.reduced()) continue;
    if (const Tensor whole = std::exchange(piece.gradient, {}); whole.defined()) {
      whole.storage()->record_stream(current_stream(whole.device()));
      for_each_part(piece, [&](int r, std::int64_t first, std::int64_t rows) {
        raw::copy_(rows_at(reduction_.all, r * length + offset, rows, piece),
                   raw::narrow(whole, 0, first, rows));
      });
    }
    offset += piece.rows * elements_of_row(piece.shard->used);
  }
  // Divides before the sum, as DistributedDataParallel does.
  if (size_ > 1) raw::mul_(reduction_.all, 1.0 / size_);
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::gradients);
  reduction_.own = empty({length}, options);
  reduction_.work = group.reduce_scatter(reduction_.own, reduction_.all);
  stats_.reductions += 1;
  stats_.bytes_reduced += size_ * length * static_cast<std::int64_t>(size_of(sum_dtype_));
}

void ShardUnit::finish_reduction(comm::ProcessGroup* replicas) {
  const Message done = std::exchange(reduction_, {});
  wait(done.work, stats_.reduce_wait_ms);
  if (const int n = replicas ? replicas->size() : 1; n > 1) {
    raw::mul_(done.own, 1.0 / n);
    wait(replicas->all_reduce(done.own), stats_.reduce_wait_ms);
  }
  const Scoped memory(&ThreadState::memory_owner, MemoryOwner::gradients);
  const Tensor sums = raw::to(done.own, chunk_.dtype());
  std::int64_t offset = 0;
  for (Piece& piece : pieces_) {
    const Tensor& part = piece.shard->part;
    if (!piece.reduced()) continue;
    piece.kept = false;
    const Tensor gradient = rows_at(sums, offset, part.shape()[0], piece);
    if (const Tensor before = part.grad(); before.defined()) {
      raw::add_scaled_(before, 1, gradient);
    } else {
      part.set_grad(gradient);
    }
    offset += piece.rows * elements_of_row(piece.shard->used);
  }
}

void ShardUnit::drop_gradients() {
  for (Piece& piece : pieces_) piece.gradient = {}, piece.kept = false;
  reduction_ = {};
}

}  // namespace weft::parallel
