// An operation of a group: what was called, on which tensors, by which code. Private to comm/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/backend/backend.h"
#include "weft/comm/group/options.h"
#include "weft/comm/group/work.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::comm {

/// The members of a group.
struct Members {
  int rank = 0;
  /// The ranks' numbers in the group of the whole run, which messages use.
  std::vector<int> ranks;
  int generation = 0;
  /// This rank in messages: "rank 1", and if the group has others than ranks 0 to size - 1, "rank 2
  /// (1 of the group of ranks 0, 2)".
  std::string me;
  /// The name in traces: "dp of ranks 0, 2"; empty: all ranks of the run.
  std::string label = {};

  /// All ranks of a run. Throws InvalidArgument for a rank that does not exist, here or in
  /// WEFT_FAULT's links, and if generation.ranks is neither empty nor `size` increasing numbers.
  static Members of_run(int rank, int size, const Generation& generation = {});
  /// The group of the ranks `chosen` of this group; this rank is the `place`-th of them. `name`:
  /// the name of an axis, or empty.
  Members some(const std::vector<int>& chosen, int place, const std::string& name) const;

  int size() const { return static_cast<int>(ranks.size()); }
  int number_in_run(int r) const { return ranks[static_cast<std::size_t>(r)]; }
};

/// A call, as messages name it.
struct Call {
  const char* name = "";  ///< "all_reduce", a literal
  /// Counts from 1: one count for the group's collectives, one for this rank's sends and receives.
  std::int64_t number = 0;
  std::string tag;
  bool same_module = false;  ///< ranks in other modules call another operation
  std::int64_t step = -1;
  const PathNode* path = nullptr;  ///< interned
};
/// The content of a ProcessGroup::Tag.
struct TagText {
  std::string text;
  bool same_module = false;
};
/// That of the calling thread's innermost tag.
TagText& tag_of_thread();
/// "all_reduce 17 (bucket 2)"
std::string to_string(const Call& call);
/// " at step 5 in layer3", without what is not known.
std::string place_of(const Call& call);

struct Operation {
  using Run = void (*)(const Operation& operation, Backend& backend, const Deadline& deadline);

  Call call;
  Run run = nullptr;
  /// The tensors, kept alive until the operation is done. With x alone it works in place, else the
  /// result is y. A tensor that this rank does not need is undefined.
  Tensor y = {}, x = {};
  bool writes_x = false;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  /// The other rank of a send or recv; -1: all ranks call the operation.
  int peer = -1;
  /// The memory that Backend::allocate() gives for this many bytes.
  struct Memory {
    std::size_t bytes = 0;
    intrusive_ptr<Storage> storage = {};
  };
  std::shared_ptr<Memory> memory = nullptr;
  ThreadState caller = {};
  /// For tensors on a CUDA device: the event that the operation waits for, after the work that the
  /// caller has queued on them.
  std::shared_ptr<Event> ready = nullptr;
  std::shared_ptr<Work::State> work = nullptr;

  /// Stores the calling thread's state, module, step and tag.
  void set_caller();
  /// x or y, whichever has the same size on every rank; undefined in a barrier.
  const Tensor& part() const;
};

/// The memory of a dense tensor; empty for an undefined one.
Buffer buffer_of(const Tensor& x);

}  // namespace weft::comm
