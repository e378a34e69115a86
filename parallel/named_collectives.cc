#include "weft/parallel/named_collectives.h"

#include <algorithm>
#include <locale>
#include <sstream>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "horovod";

// The numbers in the run of the ranks that have an entry of that name; with `with` = false, of
// those that have none.
template <class Entries>
std::vector<int> ranks_with(const comm::ProcessGroup& group, const std::vector<Entries>& told,
                            const std::string& name, bool with) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < told.size(); ++r) {
    const bool has =
        std::ranges::any_of(told[r], [&](const auto& entry) { return entry.layout.name == name; });
    if (has == with) ranks.push_back(group.number_in_run(static_cast<int>(r)));
  }
  return ranks;
}

std::string list_of(const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int r : ranks) numbers.push_back(std::to_string(r));
  return (ranks.size() == 1 ? "rank " : "ranks ") + nn::detail::first_few(numbers);
}

// A view of `memory`, row-major from element `offset` on.
Tensor part_of(const Tensor& memory, const Shape& shape, std::int64_t offset) {
  return as_strided(memory.storage(), memory.dtype(), shape, contiguous_strides(shape), offset);
}

}  // namespace

NamedCollectives::NamedCollectives(std::shared_ptr<comm::ProcessGroup> group,
                                   std::int64_t fusion_threshold,
                                   std::chrono::milliseconds stall_warning)
    : group_(std::move(group)),
      fusion_threshold_(fusion_threshold),
      stall_warning_(stall_warning) {}

std::shared_ptr<NamedRequest> NamedCollectives::ask(NamedRequest request) {
  const std::string& name = request.name;
  WEFT_CHECK(!name.empty() && name.find('\n') == std::string::npos, InvalidArgument, kOp,
             "a name must be one line that is not empty, got '", name, "'");
  const bool taken = std::ranges::any_of(pending_, [&](const auto& p) { return p->name == name; });
  WEFT_CHECK(!taken, InvalidArgument, kOp, "rank ", group_->number_in_run(group_->rank()),
             " has asked for '", name,
             "' and not waited for it: a name is free again when wait() has returned");
  request.asked = std::chrono::steady_clock::now();
  return pending_.emplace_back(std::make_shared<NamedRequest>(std::move(request)));
}

Tensor NamedCollectives::wait(NamedRequest& request) {
  within([&] { return "'" + request.name + "'"; },
         [&] {
           while (!request.done) run_round();
         });
  WEFT_CHECK(request.error.empty(), InvalidArgument, kOp, request.error);
  return request.result;
}

// --- Telling -------------------------------------------------------------------------------------

NamedCollectives::Entries NamedCollectives::own_entries() const {
  Entries entries;
  for (const auto& p : pending_) {
    entries.push_back({p->kind, p->op, {p->name, p->x.dtype(), p->x.shape()}});
  }
  return entries;
}

std::string NamedCollectives::to_text(const Entries& entries) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const Entry& e : entries) {
    out << static_cast<int>(e.kind) << ' ' << static_cast<int>(e.op) << ' ' << e.layout;
  }
  return out.str();
}

NamedCollectives::Entries NamedCollectives::from_text(const std::string& text) {
  Entries entries;
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  Entry e;
  for (int kind = 0, op = 0; in >> kind >> op >> e.layout;) {
    e.kind = static_cast<NamedRequest::Kind>(kind);
    e.op = static_cast<comm::ReduceOp>(op);
    entries.push_back(e);
  }
  return entries;
}

std::string NamedCollectives::describe(const Entry& e) {
  const std::string what = e.kind == NamedRequest::Kind::allreduce
                               ? detail::concat("allreduce (", to_string(e.op), ')')
                               : "allgather";
  return detail::concat(what, " of ", e.layout.dtype, ' ', e.layout.shape);
}

bool NamedCollectives::fit(const Entry& a, const Entry& b) {
  if (a.kind != b.kind || a.op != b.op || a.layout.dtype != b.layout.dtype) return false;
  Shape first = a.layout.shape, second = b.layout.shape;
  if (a.kind == NamedRequest::Kind::allgather) first[0] = second[0] = 0;
  return first == second;
}

// --- Rounds --------------------------------------------------------------------------------------

void NamedCollectives::run_round() {
  std::vector<Entries> told;
  {
    const comm::ProcessGroup::Tag tag("names");
    for (const std::string& text : group_->all_gather_object(to_text(own_entries()))) {
      told.push_back(from_text(text));
    }
  }
  warn_of_stalled(told);
  const std::size_t before = pending_.size();
  const std::vector<Common> common = find_common(told);
  if (pending_.size() == before) throw_deadlock(told);
  try {
    for (const std::vector<Common>& members : fuse(common)) {
      const NamedRequest& first = *members[0].request;
      const comm::ProcessGroup::Tag tag(first.name);
      first.kind == NamedRequest::Kind::allreduce ? allreduce(members) : allgather(members);
      ++messages_sent_;
      for (const Common& member : members) member.request->done = true;
    }
  } catch (...) {
    group_->abort();
    throw;
  }
}

// Takes the names that all ranks have from pending_. Those with differing requests get an error.
std::vector<NamedCollectives::Common> NamedCollectives::find_common(
    const std::vector<Entries>& told) {
  std::vector<Common> common;
  for (const Entry& first : told[0]) {
    const std::string& name = first.layout.name;
    std::vector<const Entry*> entries;
    for (const Entries& of_rank : told) {
      const auto found =
          std::ranges::find(of_rank, name, [](const Entry& e) { return e.layout.name; });
      if (found != of_rank.end()) entries.push_back(&*found);
    }
    if (entries.size() < told.size()) continue;
    const auto own = std::ranges::find_if(pending_, [&](const auto& p) { return p->name == name; });
    Common c{.request = *own};
    pending_.erase(own);
    const auto other =
        std::ranges::find_if(entries, [&](const Entry* e) { return !fit(first, *e); });
    if (other != entries.end()) {
      c.request->error = detail::concat(
          "'", name, "' is not the same on all ranks: rank ", group_->number_in_run(0),
          " asks for ", describe(first), ", rank ",
          group_->number_in_run(static_cast<int>(other - entries.begin())), " for ",
          describe(**other), "; ask for the same on all ranks, or by different names");
      c.request->done = true;
      continue;
    }
    std::int64_t all = 0;
    for (const Entry* e : entries) {
      c.shapes.push_back(e->layout.shape);
      all += numel(e->layout.shape);
    }
    const Tensor& x = c.request->x;
    const bool gathers = c.request->kind == NamedRequest::Kind::allgather;
    c.bytes = (gathers ? all : x.numel()) * static_cast<std::int64_t>(size_of(x.dtype()));
    common.push_back(std::move(c));
  }
  return common;
}

void NamedCollectives::throw_deadlock(const std::vector<Entries>& told) const {
  std::vector<std::string> missing;
  for (const Entries& of_rank : told) {
    for (const Entry& e : of_rank) {
      const std::string& name = e.layout.name;
      const std::string text =
          detail::concat("'", name, "' of ", list_of(ranks_with(*group_, told, name, true)),
                         " is not asked for by ", list_of(ranks_with(*group_, told, name, false)));
      if (std::ranges::find(missing, text) == missing.end()) missing.push_back(text);
    }
  }
  WEFT_THROW(InvalidArgument, kOp, "rank ", group_->number_in_run(group_->rank()),
             ": all ranks wait, and no name is everybody's: ", nn::detail::first_few(missing),
             ". Each name must be asked for on every rank, before any of them waits for what comes "
             "behind it");
}

// The first rank that has asked for the name logs the warning.
void NamedCollectives::warn_of_stalled(const std::vector<Entries>& told) {
  const auto now = std::chrono::steady_clock::now();
  for (const auto& p : pending_) {
    if (p->warned || now - p->asked < stall_warning_) continue;
    const std::vector<int> missing = ranks_with(*group_, told, p->name, false);
    if (missing.empty()) continue;
    const int first = ranks_with(*group_, told, p->name, true).front();
    if (first != group_->number_in_run(group_->rank())) continue;
    p->warned = true;
    log_warning(
        detail::concat("horovod: '", p->name, "' has been asked for ",
                       std::chrono::duration_cast<std::chrono::seconds>(now - p->asked).count(),
                       " s ago and still waits for ", list_of(missing)));
  }
}

// --- Messages ------------------------------------------------------------------------------------

std::vector<std::vector<NamedCollectives::Common>> NamedCollectives::fuse(
    const std::vector<Common>& common) const {
  struct Message {
    std::vector<Common> members;
    std::int64_t bytes = 0;
  };
  std::vector<Message> messages;
  for (const Common& c : common) {
    auto message = std::ranges::find_if(messages, [&](const Message& m) {
      const NamedRequest &a = *m.members[0].request, &b = *c.request;
      return a.kind == b.kind && a.op == b.op && a.x.dtype() == b.x.dtype() &&
             a.x.device() == b.x.device() && m.bytes + c.bytes <= fusion_threshold_;
    });
    if (message == messages.end()) message = messages.insert(message, Message());
    message->members.push_back(c);
    message->bytes += c.bytes;
  }
  std::vector<std::vector<Common>> result;
  for (Message& m : messages) result.push_back(std::move(m.members));
  return result;
}

void NamedCollectives::allreduce(const std::vector<Common>& members) {
  const NamedRequest& first = *members[0].request;
  std::int64_t count = 0;
  for (const Common& c : members) count += c.request->x.numel();
  const Tensor memory = empty({count}, {first.x.dtype(), first.x.device()});
  std::vector<Tensor> parts;
  std::int64_t offset = 0;
  for (const Common& c : members) {
    const Tensor& x = c.request->x;
    parts.push_back(part_of(memory, x.shape(), offset));
    raw::copy_(parts.back(), x);
    offset += x.numel();
  }
  group_->all_reduce(memory, first.op).wait();
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].request->result = raw::clone(parts[i]);
  }
}

// A rank's parts follow each other in the message, with zeros up to the longest rank's length.
void NamedCollectives::allgather(const std::vector<Common>& members) {
  const NamedRequest& first = *members[0].request;
  const TensorOptions options{first.x.dtype(), first.x.device()};
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group_->size()));
  for (const Common& c : members) {
    for (std::size_t r = 0; r < counts.size(); ++r) counts[r] += numel(c.shapes[r]);
  }
  const std::int64_t longest = std::ranges::max(counts);
  const Tensor mine = zeros({longest}, options), all = empty({group_->size(), longest}, options);
  std::int64_t offset = 0;
  for (const Common& c : members) {
    raw::copy_(part_of(mine, c.request->x.shape(), offset), c.request->x);
    offset += c.request->x.numel();
  }
  group_->all_gather(all, mine).wait();

  std::vector<std::int64_t> offsets(counts.size());
  for (std::size_t r = 0; r < offsets.size(); ++r) {
    offsets[r] = static_cast<std::int64_t>(r) * longest;
  }
  for (const Common& c : members) {
    Shape shape = c.request->x.shape();
    shape[0] = 0;
    for (const Shape& s : c.shapes) shape[0] += s[0];
    const Tensor result = empty(shape, options);
    std::int64_t row = 0;
    for (std::size_t r = 0; r < offsets.size(); ++r) {
      const Shape& part = c.shapes[r];
      raw::copy_(raw::narrow(result, 0, row, part[0]), part_of(all, part, offsets[r]));
      row += part[0];
      offsets[r] += numel(part);
    }
    c.request->result = result;
  }
}

}  // namespace weft::parallel
