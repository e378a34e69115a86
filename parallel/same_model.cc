#include "weft/parallel/same_model.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/shard.h"

namespace weft::parallel {

std::string lines_of_model(const nn::ModuleBase& module, bool with_strides) {
  std::string text;
  std::map<std::string, Shape> whole;
  std::string parts;
  for (const auto& [name, shard] : nn::shards_of(module)) {
    const nn::Cut& cut = shard->cut;
    if (!with_strides) {
      whole[name] = cut.parameter_shape();
    } else if (cut.dim >= 0) {
      parts += detail::concat("part ", cut.rank, " of ", cut.size, " of ", name, '\n');
    }
  }
  const auto add = [&](const char* kind, const nn::NamedTensors& tensors) {
    for (const auto& [name, x] : tensors) {
      const auto cut = whole.find(name);
      const Shape& shape = cut == whole.end() ? x.shape() : cut->second;
      text += detail::concat(kind, " ", name, " ", x.dtype(), " ", shape);
      if (with_strides) text += detail::concat(" of strides ", x.strides());
      text += x.requires_grad() ? ", trained\n" : ", not trained\n";
    }
  };
  add("parameter", module.named_parameters());
  add("buffer", module.named_buffers());
  return text + parts;
}

namespace {

// How long a rank with replicas waits for the notes of these. It waits longer only for a rank that
// seems to give no replicas; others that come later are left to the group's timeout.
constexpr std::chrono::seconds kPatience{5};

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Describes the first difference from rank `root`; empty if there is none.
std::string difference(const Lines& mine, const Lines& roots, int root) {
  const auto [a, b] = std::ranges::mismatch(mine, roots);
  if (a == mine.end() && b == roots.end()) return "";
  const auto text = [](const Lines& lines, Lines::const_iterator at) {
    return at == lines.end() ? "nothing behind \"" + lines.back() + '"' : '"' + *at + '"';
  };
  return detail::concat("it has ", text(mine, a), ", rank ", root, " has ", text(roots, b));
}

}  // namespace

void check_same_lines(comm::ProcessGroup& group, const char* op, const std::string& text,
                      const char* problem, const char* remedy) {
  const std::string roots = group.broadcast_object(text, 0);
  const int root = group.number_in_run(0);
  const Lines differences =
      group.all_gather_object(difference(lines_of(text), lines_of(roots), root));
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string& own = differences[static_cast<std::size_t>(rank)];
    WEFT_CHECK(own.empty(), InvalidArgument, op, "rank ", group.number_in_run(rank), ' ', problem,
               " than rank ", root, ": ", own, ". ", remedy);
  }
}

void check_same_model(comm::ProcessGroup& group, const nn::ModuleBase& module,
                      const std::string& options) {
  for (const auto& [name, shard] : nn::shards_of(module)) {
    WEFT_CHECK(
        shard->group, InvalidArgument, "ddp", module.type_name(),
        " is cut into parts, one on each rank (fully_shard), which averages its gradients by "
        "itself: call the module without DistributedDataParallel around it");
  }
  check_same_lines(group, "ddp", options + "\n" + lines_of_model(module), "wraps another model",
                   "Build the same model, with the same options and the same parameters frozen, on "
                   "every rank");
}

void check_none_added(const nn::ModuleBase& module,
                      const std::vector<GradientBuckets::Parameter>& wrapped) {
  for (const auto& [name, x] : module.named_parameters()) {
    const bool known =
        std::ranges::any_of(wrapped, [&, x = x](const auto& p) { return p.tensor.same(x); });
    WEFT_CHECK(known || !x.requires_grad(), InvalidArgument, "ddp", "parameter ", name,
               " was added after the module was wrapped, so it would not be averaged: build the "
               "whole module before it is wrapped");
  }
}

void check_replicas(comm::ProcessGroup& group, comm::ProcessGroup* replicas, const char* op,
                    const std::string& what, const std::string& lines) {
  comm::ProcessGroup& here = replicas ? *replicas : group;
  const std::shared_ptr<comm::Store>& store = here.run_store();
  if (!store) return;  // a run of one rank
  const auto key = [op](int rank, const std::string& name) {
    return detail::concat(op, '/', rank, '/', name);
  };
  const auto calls_alone = [&](int rank) { return store->add(key(rank, "calls alone"), 0); };
  const int me = here.number_in_run(here.rank());
  // A hash, since the lines of a model may exceed the store's limit for a value.
  const std::string note = std::to_string(std::hash<std::string>()(what + '\n' + lines));
  if (!replicas || replicas->size() == 1) {
    store->add(key(me, "calls alone"), 1);  // before the note: its readers see the call counted
    store->set(key(me, "alone"), note);
    return;
  }

  std::string members;
  for (int r = 0; r < replicas->size(); ++r) {
    members += detail::concat(replicas->number_in_run(r), ',');
  }
  const std::int64_t calls = store->add(key(me, members), 1);
  const std::string call = detail::concat(members, '/', calls);
  store->set(key(me, call), note);
  const std::chrono::milliseconds most = here.options().timeout / 2;
  const comm::Deadline patience(std::min<std::chrono::milliseconds>(kPatience, most));
  const comm::Deadline deadline(most);
  const auto seems_alone = [&](int rank) {
    if (store->try_get(key(rank, "alone")) != note) return false;
    // An equal number of calls means that the note is of an earlier call that both made, and that
    // the rank is only late for this one.
    return calls_alone(rank) > calls_alone(me);
  };
  for (int r = 0; r < replicas->size(); ++r) {
    const int rank = replicas->number_in_run(r);
    if (store->wait(key(rank, call), patience) == note || !seems_alone(rank)) continue;
    // It may have made such a call for itself first, to evaluate a checkpoint, and still come to
    // this one: wait longer.
    if (store->wait(key(rank, call), deadline) == note || !seems_alone(rank)) continue;
    store->add(key(me, members), -1);  // this call does not count
    WEFT_THROW(InvalidArgument, op, "rank ", rank, " of the run ", what,
               " with no replicas, and rank ", me, ", which gives it as one of its own, with ",
               replicas->size(), ". Give the same replicas on every rank");
  }
}

void share_generator(comm::ProcessGroup& group, const nn::ModuleBase& module) {
  const std::vector<Tensor> parameters = module.parameters();
  Generator& draws = default_generator(parameters.empty() ? Device() : parameters[0].device());
  draws.set_state(group.broadcast_object(draws.state(), 0));
}

}  // namespace weft::parallel
