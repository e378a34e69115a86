#include "weft/parallel/collectives.h"

#include <any>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/autograd/function.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "collectives";
constexpr std::int64_t kTextBytes = 256;  // longer texts are cut off

std::string text_of(const Tensor& x) {
  return weft::to_string(x.dtype()) + (' ' + weft::to_string(x.shape()));
}

// A text of kTextBytes, and a tensor over its memory; the rest of the text is 0.
std::string padded(std::string_view text) {
  std::string all(kTextBytes, '\0');
  text.copy(all.data(), kTextBytes - 1);
  return all;
}
Tensor bytes_of(std::string& text) {
  return borrow(std::span(reinterpret_cast<std::uint8_t*>(text.data()), text.size()), {kTextBytes});
}

// A row-major copy.
Tensor owned(const Tensor& x) {
  const Tensor y = empty(x.shape(), {x.dtype(), x.device()});
  raw::copy_(y, x);
  return y;
}

}  // namespace

struct Collectives::State {
  std::shared_ptr<comm::ProcessGroup> group;
  std::optional<Device> device = {};                     // that all tensors are on
  std::map<int, std::int64_t> sent = {}, received = {};  // key: the other rank

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }

  // Backward runs each device's nodes on a thread of its own. With several devices the ranks might
  // therefore run their operations in different orders.
  void check_device(const Tensor& x) {
    if (!device) device = x.device();
    WEFT_CHECK(x.device() == *device, Unsupported, kOp, "got a tensor on ", x.device(),
               " after one on ", *device, "; one Collectives serves tensors of one device");
  }

  // Sends a text ahead: the fingerprint of a send or recv says less than that of a collective.
  void announce(const std::string& what, int to) {
    std::string mine = padded(what);
    group->send(bytes_of(mine), to).wait();
  }
  void expect(const std::string& what, int from) {
    std::string said = padded("");
    group->recv(bytes_of(said), from).wait();
    const std::string_view theirs(said.data());
    WEFT_CHECK(theirs == what, Comm, kOp, "rank ", from, " of the group sends ", theirs, ", rank ",
               rank(), " expects ", what);
  }

  // The steps of which the rules below consist. `argument`: a root or a dimension.
  Tensor same(const Tensor& x, std::int64_t) { return x; }
  Tensor reduced(const Tensor& x, std::int64_t) {
    const Tensor y = owned(x);
    group->all_reduce(y).wait();
    return y;
  }
  Tensor gathered(const Tensor& x, std::int64_t) {
    Shape shape = x.shape();
    shape.insert(0, size());
    const Tensor y = empty(shape, {x.dtype(), x.device()});
    group->all_gather(y, raw::contiguous(x)).wait();
    return y;
  }
  Tensor part_of_sum(const Tensor& x, std::int64_t) {
    WEFT_CHECK(x.dim() > 0 && x.shape(0) == size(), Shape, kOp, "got ", x.shape(),
               ", expected a first dimension of ", size(), ", the number of ranks");
    const Tensor y = owned(raw::select(x, 0, 0));
    group->reduce_scatter(y, owned(x)).wait();
    return y;
  }
  Tensor exchanged(const Tensor& x, std::int64_t) {
    const Tensor y = empty(x.shape(), {x.dtype(), x.device()});
    group->all_to_all(y, raw::contiguous(x)).wait();
    return y;
  }
  // In a broadcast or reduce not every rank gets a message, so the ranks compare their calls here.
  void hear_all() { group->barrier().wait(); }
  Tensor from_root(const Tensor& x, std::int64_t root) {
    const Tensor y = owned(x);
    hear_all();
    group->broadcast(y, static_cast<int>(root)).wait();
    return y;
  }
  // Gives zeros on the other ranks, so that backward goes on there, too, to the operations before.
  Tensor sum_at_root(const Tensor& x, std::int64_t root) {
    const Tensor y = owned(x);
    hear_all();
    group->reduce(y, static_cast<int>(root)).wait();
    return rank() == root ? y : zeros(x.shape(), {x.dtype(), x.device()});
  }
  Tensor own_part(const Tensor& x, std::int64_t dim) {
    const std::int64_t whole = x.shape(dim);
    WEFT_CHECK(whole % size() == 0, Shape, kOp, "dimension ", dim, " of ", x.shape(),
               " does not divide into ", size(), " parts, one for each rank");
    const std::int64_t part = whole / size();
    return owned(raw::narrow(x, dim, rank() * part, part));
  }
  Tensor all_parts(const Tensor& x, std::int64_t dim) {
    const Tensor all = gathered(x, dim);
    std::vector<Tensor> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(raw::select(all, 0, r));
    return raw::cat(parts, dim);
  }
};

namespace {

using State = Collectives::State;
using Ranks = std::shared_ptr<State>;

const char* differentiated(const autograd::Context& ctx) {
  return ctx.needs_input_grad(0) ? ", to be differentiated" : "";
}

// What an operation of all ranks does in forward and in backward.
struct Rule {
  using Step = Tensor (State::*)(const Tensor& x, std::int64_t argument);

  const char* name;
  Step there, back;
  const char* argument = nullptr;  // "root" or "dim"
};
constexpr Rule kAllReduce = {"all_reduce", &State::reduced, &State::reduced};
constexpr Rule kAllGather = {"all_gather", &State::gathered, &State::part_of_sum};
constexpr Rule kReduceScatter = {"reduce_scatter", &State::part_of_sum, &State::gathered};
constexpr Rule kAllToAll = {"all_to_all", &State::exchanged, &State::exchanged};
constexpr Rule kBroadcast = {"broadcast", &State::from_root, &State::sum_at_root, "root"};
constexpr Rule kCopyTo = {"copy_to", &State::same, &State::reduced};
constexpr Rule kReduceFrom = {"reduce_from", &State::reduced, &State::same};
constexpr Rule kSplitTo = {"split_to", &State::own_part, &State::all_parts, "dim"};
constexpr Rule kGatherFrom = {"gather_from", &State::all_parts, &State::own_part, "dim"};

// "broadcast with root 1"
std::string name_of(const Rule& rule, std::int64_t argument) {
  return rule.argument ? detail::concat(rule.name, " with ", rule.argument, ' ', argument)
                       : rule.name;
}

struct Collective : autograd::Function<Collective> {
  static constexpr bool nests_backward = false;

  struct Call {
    const Rule* rule;
    Ranks ranks;
    std::int64_t argument = 0;
  };

  static Tensor forward(autograd::Context& ctx, const Tensor& x, const Call& call) {
    const auto& [rule, ranks, argument] = call;
    ctx.data = call;
    ranks->check_device(x);
    const comm::ProcessGroup::Tag tag(
        detail::concat(name_of(*rule, argument), " of ", text_of(x), differentiated(ctx)), true);
    return ((*ranks).*rule->there)(x, argument);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const auto& [rule, ranks, argument] = std::any_cast<const Call&>(ctx.data);
    const comm::ProcessGroup::Tag tag(
        detail::concat("backward of ", name_of(*rule, argument), ", ", text_of(grads[0])), true);
    return {((*ranks).*rule->back)(grads[0], argument)};
  }
};

// A call of send() or recv().
struct Message {
  Ranks ranks;
  int peer, tag;
  std::string text = {};
  Shape shape = {};
};

// "message 2: f32 [3], to be differentiated at step 5 with tag 1"
std::string message_of(const autograd::Context& ctx, const Tensor& x, std::int64_t number,
                       int tag) {
  const std::int64_t step = thread_state().step;
  return detail::concat("message ", number, ": ", text_of(x), differentiated(ctx),
                        step < 0 ? "" : " at step " + std::to_string(step),
                        tag == 0 ? "" : " with tag " + std::to_string(tag));
}

struct Send : autograd::Function<Send> {
  static constexpr bool nests_backward = false;

  static Tensor forward(autograd::Context& ctx, const Tensor& x, Message m) {
    m.ranks->check_device(x);
    m.text = message_of(ctx, x, ++m.ranks->sent[m.peer], m.tag);
    m.shape = x.shape();
    m.ranks->announce(m.text, m.peer);
    m.ranks->group->send(raw::contiguous(x), m.peer).wait();
    ctx.data = m;
    return scalar(0, {x.dtype(), x.device()});
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const auto& [ranks, to, tag, text, shape] = std::any_cast<const Message&>(ctx.data);
    ranks->expect("the gradient of " + text, to);
    const Tensor grad = empty(shape, {grads[0].dtype(), grads[0].device()});
    ranks->group->recv(grad, to).wait();
    return {grad};
  }
};

struct Recv : autograd::Function<Recv> {
  static constexpr bool nests_backward = false;

  static Tensor forward(autograd::Context& ctx, const Tensor& like, Message m) {
    m.ranks->check_device(like);
    m.text = message_of(ctx, like, ++m.ranks->received[m.peer], m.tag);
    m.ranks->expect(m.text, m.peer);
    const Tensor y = empty(like.shape(), {like.dtype(), like.device()});
    m.ranks->group->recv(y, m.peer).wait();
    ctx.data = m;
    return y;
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const auto& [ranks, from, tag, text, shape] = std::any_cast<const Message&>(ctx.data);
    ranks->announce("the gradient of " + text, from);
    ranks->group->send(raw::contiguous(grads[0]), from).wait();
    return {Tensor()};
  }
};

}  // namespace

Collectives::Collectives(std::shared_ptr<comm::ProcessGroup> group)
    : state_(std::make_shared<State>()) {
  WEFT_CHECK(group, InvalidArgument, kOp, "there is no process group");
  state_->group = std::move(group);
}

int Collectives::rank() const { return state_->rank(); }
int Collectives::size() const { return state_->size(); }

Tensor Collectives::all_reduce(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kAllReduce, state_});
}
Tensor Collectives::all_gather(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kAllGather, state_});
}
Tensor Collectives::reduce_scatter(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kReduceScatter, state_});
}
Tensor Collectives::all_to_all(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kAllToAll, state_});
}
Tensor Collectives::broadcast(const Tensor& x, int root) const {
  return Collective::apply(x, Collective::Call{&kBroadcast, state_, root});
}
Tensor Collectives::copy_to(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kCopyTo, state_});
}
Tensor Collectives::reduce_from(const Tensor& x) const {
  return Collective::apply(x, Collective::Call{&kReduceFrom, state_});
}
Tensor Collectives::split_to(const Tensor& x, std::int64_t dim) const {
  return Collective::apply(x,
                           Collective::Call{&kSplitTo, state_, normalize_dim(dim, x.dim(), kOp)});
}
Tensor Collectives::gather_from(const Tensor& x, std::int64_t dim) const {
  return Collective::apply(
      x, Collective::Call{&kGatherFrom, state_, normalize_dim(dim, x.dim(), kOp)});
}
Tensor Collectives::max_of(const Tensor& x) const {
  state_->check_device(x);
  const comm::ProcessGroup::Tag tag("max_of of " + text_of(x), true);
  const Tensor y = owned(x);
  state_->group->all_reduce(y, comm::ReduceOp::max).wait();
  return y;
}
Tensor Collectives::send(const Tensor& x, int to, int tag) const {
  return Send::apply(x, Message{state_, to, tag});
}
Tensor Collectives::recv(const Tensor& like, int from, int tag) const {
  return Recv::apply(like, Message{state_, from, tag});
}

}  // namespace weft::parallel
