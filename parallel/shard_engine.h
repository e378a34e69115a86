// The units of a module that fully_shard has cut, and what they have in common. Private to
// parallel/; fully_shard.cc has the functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/shard.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/mixed_precision.h"
#include "weft/parallel/shard_unit.h"

namespace weft::parallel {

struct FsdpEngine;

struct FsdpUnit {
  ~FsdpUnit();

  std::string name;  // the module's path from the outermost one, once that is known
  std::shared_ptr<comm::ProcessGroup> group, replicas;
  bool reshard = true;      // after forward
  bool reshard_set = true;  // by the user
  MixedPrecisionPolicy policy;
  std::unique_ptr<ShardUnit> memory;
  // A leaf on which the parameters of each forward depend. When a backward has finished its
  // gradient, it has finished theirs, also those of checkpoints and of several forwards.
  Tensor token;
  std::shared_ptr<FsdpEngine> engine;
  bool unsharded = false;  // by the user, who may use its parameters elsewhere
  bool ready = false;      // its gradients may be reduced
  bool reduced = false;    // those of checkpoints were
};

// What the units within one outermost module have in common.
struct FsdpEngine {
  using Unit = FsdpUnit;
  // Units in the order of a step, which the next step is expected to repeat.
  struct Order {
    std::vector<Unit*> units;
    std::size_t position = 0;

    /// Returns the unit that followed this one in the step before, or null.
    Unit* after(Unit& unit) {
      if (position == units.size() || units[position] != &unit) {
        units.resize(position);
        units.push_back(&unit);
      }
      ++position;
      return position < units.size() ? units[position] : nullptr;
    }
  };

  explicit FsdpEngine(const std::shared_ptr<Unit>& root_unit)
      : gathers(root_unit->group->duplicate()),
        reductions(root_unit->group->duplicate()),
        replicas(root_unit->replicas ? root_unit->replicas->duplicate() : nullptr),
        root(root_unit.get()) {}

  void begin_forward();
  void end_forward();
  void gather_for_forward(Unit& unit);
  void on_forward_error(const Unit& unit);
  void before_backward(Unit& unit);
  void on_recomputed_gradients(Unit& unit);
  void on_gradients(Unit& unit);
  void end_backward(const std::exception_ptr& error);
  void drop_posted();
  void update_order();
  void broadcast_buffers();
  void start_reduction(Unit& unit);
  void finish_reduction();
  /// Else the other ranks wait forever.
  void abort() const;
  // The module of the unit is gone, but not those beside it.
  void forget(Unit* unit) {
    for (std::vector<Unit*>* const list :
         {&all, &order, &arrived, &forwards.units, &backwards.units}) {
      std::erase(*list, unit);
    }
    forwards.position = backwards.position = 0;
    if (posted == unit) posted = nullptr;
  }

  // Of their own, so that one does not wait for the other.
  const std::shared_ptr<comm::ProcessGroup> gathers, reductions, replicas;
  Unit* const root;
  std::vector<Unit*> all;
  Order forwards, backwards;
  bool in_forward = false;   // of the root
  std::vector<Unit*> order;  // of reductions, those that are trained
  bool ordered = false;      // as in the first backward of rank 0
  Unit* posted = nullptr;    // whose gather was started before it was needed
  std::vector<Unit*> arrived;
  std::size_t next = 0;            // to be reduced
  Unit* under_way = nullptr;       // being reduced
  std::vector<Coalesced> buffers;  // one, or none
  bool sync = true;
  bool in_backward = false, reducing = false;
  bool kept = false;  // whole, and leaves, during a step of a pipeline

 private:
  void begin_backward();
  void gather(Unit& unit, Unit* next);
  void find_order();
  void reduce_ready();
  void release_all();
  void reset();
};

/// Null for a shard of parallelize.
inline std::shared_ptr<FsdpUnit> unit_of(const nn::Shard& shard) {
  return std::static_pointer_cast<FsdpUnit>(shard.unit.lock());
}

}  // namespace weft::parallel
