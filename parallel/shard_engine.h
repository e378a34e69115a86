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

  std::string name;  // the module's path, once the outermost module is known
  std::shared_ptr<comm::ProcessGroup> group, replicas;
  bool reshard = true;      // free the parameters after forward
  bool reshard_set = true;  // set by the user
  MixedPrecisionPolicy policy;
  std::unique_ptr<ShardUnit> memory;
  // A leaf on which the parameters of each forward depend. When a backward has finished its
  // gradient, it has finished theirs, including those from checkpoints and several forwards.
  Tensor token;
  std::shared_ptr<FsdpEngine> engine;
  bool unsharded = false;  // unshard() was called: a loss may use the parameters
  bool ready = false;      // its gradients may be reduced
  bool reduced = false;    // gradients from checkpoints were reduced
};

// The state that all units within one outermost module share.
struct FsdpEngine {
  using Unit = FsdpUnit;
  // The units in the order of one step; the next step is expected to repeat it.
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
  /// Without it the other ranks would wait forever.
  void abort() const;
  // Called when the unit's module is gone, while those of other units may live on.
  void forget(Unit* unit) {
    for (std::vector<Unit*>* const list :
         {&all, &order, &arrived, &forwards.units, &backwards.units}) {
      std::erase(*list, unit);
    }
    forwards.position = backwards.position = 0;
    if (posted == unit) posted = nullptr;
  }

  // A group for each, so that gathers and reductions do not wait for each other.
  const std::shared_ptr<comm::ProcessGroup> gathers, reductions, replicas;
  Unit* const root;
  std::vector<Unit*> all;
  Order forwards, backwards;
  bool in_forward = false;   // of the root's module
  std::vector<Unit*> order;  // trained units, in the order of their reductions
  bool ordered = false;      // `order` is that of rank 0's first backward
  Unit* posted = nullptr;    // whose gather was started early
  std::vector<Unit*> arrived;
  std::size_t next = 0;            // in `order`, to be reduced
  Unit* under_way = nullptr;       // being reduced
  std::vector<Coalesced> buffers;  // one element or none
  bool sync = true;
  bool in_backward = false, reducing = false;
  bool kept = false;  // during a pipeline's step: parameters stay whole

 private:
  void begin_backward();
  void gather(Unit& unit, Unit* next);
  void find_order();
  void reduce_ready();
  void release_all();
  void reset();
};

/// The shard's unit; null for a shard of parallelize.
inline std::shared_ptr<FsdpUnit> unit_of(const nn::Shard& shard) {
  return std::static_pointer_cast<FsdpUnit>(shard.unit.lock());
}

}  // namespace weft::parallel
