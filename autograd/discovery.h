// Discovery numbers the nodes and leaves that the outputs of a backward depend on. They are the
// tasks. It counts how many gradients each task waits for. Private to autograd/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/autograd/graph.h"

namespace weft::autograd {

/// A node or leaf in one backward.
struct Task {
  RefCounted* target = nullptr;  // a Node, or a leaf's TensorImpl
  std::uint64_t sequence = 0;
  std::int32_t first_link = 0;
  std::int32_t first_buffer = 0;
  std::int32_t pending = 0;  // gradients still to come
  bool leaf = false;
  bool wanted = true;        // false in grad(): no input is reached from here
  bool runs = true;          // its rule has wanted results
  bool captured = false;     // in grad(): it is an input
  bool before_relu = false;  // its gradient is already that before its relu

  Node& node() const { return *static_cast<Node*>(target); }
  TensorImpl* impl() const { return static_cast<TensorImpl*>(target); }
  Device device() const { return leaf ? impl()->storage->device() : node().device(); }
};

/// The tasks of a backward and the links between them.
class Discovery {
 public:
  /// The task of a node or leaf; the first call for a target adds one.
  std::int32_t task_of(RefCounted* target, bool leaf);
  std::int32_t task_of(const Edge& edge) { return task_of(edge.target(), edge.is_leaf()); }
  /// The task that task_of() added for the target, or -1.
  std::int32_t find(const RefCounted* target) const;
  /// Follows all edges from the tasks added so far, and adds the tasks that they reach.
  void follow();
  void clear();

  std::vector<Task> tasks;
  std::vector<Link> links;  // of all tasks, in the order of their edges
  std::int32_t buffers = 0;

 private:
  std::size_t slot_of(const RefCounted* target) const;
  void grow();

  std::vector<std::int32_t> table_;  // a hash table, open addressing: task + 1, or 0 if free
};

}  // namespace weft::autograd
