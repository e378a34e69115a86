#include "weft/parallel/shard_checks.h"

#include <algorithm>
#include <optional>
#include <set>

#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/nn/shard.h"
#include "weft/parallel/same_model.h"
#include "weft/parallel/shard_engine.h"

namespace weft::parallel {

namespace {

constexpr const char* kOp = "fully_shard";

}  // namespace

std::string lines_of_uncut(const nn::ModuleBase& module) {
  std::string text;
  for (const auto& [name, x] : nn::uncut_parameters(module)) {
    text += detail::concat("parameter ", name, ' ', x.dtype(), ' ', x.shape(), " of strides ",
                           x.strides(), x.requires_grad() ? ", trained\n" : ", not trained\n");
  }
  // The parts' numbers are compared, too: parts may be equal in shape, and different in values.
  for (const auto& [name, shard] : nn::shards_of(module)) {
    if (shard->group) text += detail::concat("part ", shard->cut.rank, " of ", name, '\n');
  }
  for (const auto& [name, x] : module.named_buffers()) {
    text += detail::concat("buffer ", name, ' ', x.dtype(), ' ', x.shape(), '\n');
  }
  return text;
}

std::vector<Tensor> buffers_of(const nn::ModuleBase& module) {
  std::vector<Tensor> buffers;
  for (const auto& [name, x] : module.named_buffers()) buffers.push_back(x);
  return buffers;
}

void check_order(const nn::ModuleBase& module) {
  const nn::NamedShards shards = nn::shards_of(module);
  for (const auto& [name, shard] : shards) {
    WEFT_CHECK(shard->group || unit_of(*shard), InvalidArgument, kOp, name,
               " was cut together with a module that is gone: keep that module");
  }
  if (!nn::uncut_parameters(module).empty()) return;
  for (const auto& [name, shard] : shards) {
    const auto unit = unit_of(*shard);
    bool same = true;  // the unit has this module's parameters
    for (const ShardUnit::Piece& piece : unit->memory->pieces()) {
      const auto within =
          std::ranges::find_if(shards, [&](const auto& s) { return s.second == piece.shard; });
      WEFT_CHECK(within != shards.end(), InvalidArgument, kOp, module.name(), " belongs to ",
                 unit->name, ", which was cut before: cut inner modules first");
      same = same && within->first == piece.name;
    }
    WEFT_CHECK(!same, InvalidArgument, kOp, unit->name, " was cut before");
  }
}

void check_can_be_cut(const nn::NamedTensors& parameters) {
  std::set<const Storage*> memories;
  for (const auto& [name, x] : parameters) {
    const Tensor& first = parameters[0].second;
    WEFT_CHECK(x.dim() > 0, InvalidArgument, kOp, name,
               " has no dimension along which it could be cut: make it [1]");
    WEFT_CHECK(x.dtype() == first.dtype() && x.device() == first.device(), InvalidArgument, kOp,
               name, " is ", x.dtype(), " on ", x.device(), ", ", parameters[0].first, " is ",
               first.dtype(), " on ", first.device(),
               "; the parameters of one unit must have one dtype and one device");
    WEFT_CHECK(x.is_leaf() && !x.storage()->released(), InvalidArgument, kOp, name,
               " is shared with a module that has been cut: cut the module that contains both");
    WEFT_CHECK(memories.insert(x.storage().get()).second && x.is_dense() &&
                   (x.numel() == 0 || x.storage()->owned()),
               InvalidArgument, kOp, name,
               " has no memory of its own: it shares it with another parameter or library");
  }
}

void check_same_cut(comm::ProcessGroup& group, comm::ProcessGroup* replicas,
                    const nn::ModuleBase& module, const std::string& how) {
  const auto compare = [](comm::ProcessGroup& ranks, const std::string& lines) {
    check_same_lines(ranks, kOp, lines, "cuts another module",
                     "Build the same model, with the same options and the same parameters frozen, "
                     "on every rank, and cut its modules in the same order");
  };
  const std::string uncut = lines_of_uncut(module);
  const std::string name = module.type_name() + (module.name().empty() ? "" : ' ' + module.name());
  std::optional<Error> alone;
  try {
    check_replicas(group, replicas, kOp, "cuts " + name, uncut);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::InvalidArgument) throw;
    alone = error;  // the other ranks of the group wait for this one
  }
  const std::string lines = (alone ? alone->what() + std::string("\n") : how) + uncut;
  try {
    compare(group, lines);
  } catch (const Error& error) {
    // The replicas of this rank wait for it, and their groups may have found no error: tell them.
    if (!alone && replicas && error.code() == ErrorCode::InvalidArgument) {
      compare(*replicas, error.what() + std::string("\n"));
    }
    if (!alone) throw;
  }
  if (alone) throw Error(*alone);
  if (replicas) compare(*replicas, lines);
}

void check_together(const nn::ModuleBase& module,
                    const std::vector<std::shared_ptr<FsdpUnit>>& units) {
  const FsdpUnit& root = *units[0];
  for (const auto& [name, x] : nn::uncut_parameters(module)) {
    WEFT_CHECK(!x.requires_grad(), InvalidArgument, kOp, "parameter ", name, " of ", root.name,
               " was added after that was cut, so its gradient would not be averaged: build the "
               "whole module before it is cut");
  }
  const ShardUnit::Piece* any = nullptr;
  for (const auto& unit : units) {
    WEFT_CHECK(!unit->engine, InvalidArgument, kOp, unit->name, ", which is part of ", root.name,
               ", was called before it: call the outermost module first");
    for (const ShardUnit::Piece& piece : unit->memory->pieces()) {
      if (!any) any = &piece;
      WEFT_CHECK(piece.shard->part.device() == any->shard->part.device(), Unsupported, kOp,
                 piece.name, " of ", unit->name, " is on ", piece.shard->part.device(), ", ",
                 any->name, " on ", any->shard->part.device(),
                 "; all units of a model must be on one device");
      WEFT_CHECK(unit->group == root.group && unit->replicas == root.replicas, InvalidArgument, kOp,
                 unit->name, " and ", root.name, ", of which it is part, are cut over different ",
                 unit->group == root.group ? "replicas" : "groups",
                 ": give fully_shard the same ones");
    }
  }
  // A rank that still cuts modules makes the same kind of comparison, with another text, so it
  // throws.
  check_same_lines(
      *root.group, kOp,
      detail::concat("the first call of ", root.name, ", of ", units.size(), " units\n"),
      "is at another module",
      "Cut the same modules on every rank, all of them before the first call");
}

}  // namespace weft::parallel
