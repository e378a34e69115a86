#include "weft/autograd/discovery.h"

#include <algorithm>
#include <limits>

namespace weft::autograd {

namespace {

constexpr std::size_t kSmallTable = 256;

}  // namespace

std::size_t Discovery::slot_of(const RefCounted* target) const {
  const std::size_t mask = table_.size() - 1;
  // Fibonacci hashing of the address, whose low bits are alignment.
  std::size_t slot =
      ((reinterpret_cast<std::uintptr_t>(target) >> 4) * 0x9e3779b97f4a7c15ull >> 32) & mask;
  while (table_[slot] != 0 && tasks[table_[slot] - 1].target != target) slot = (slot + 1) & mask;
  return slot;
}

void Discovery::grow() {
  table_.assign(std::max(kSmallTable, 4 * tasks.size()), 0);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    table_[slot_of(tasks[i].target)] = static_cast<std::int32_t>(i) + 1;
  }
}

std::int32_t Discovery::task_of(RefCounted* target, bool leaf) {
  if (2 * (tasks.size() + 1) > table_.size()) grow();
  const std::size_t slot = slot_of(target);
  if (table_[slot] != 0) return table_[slot] - 1;
  Task task;
  task.target = target;
  task.leaf = leaf;
  task.first_buffer = buffers;
  task.sequence =
      leaf ? std::numeric_limits<std::uint64_t>::max() : static_cast<Node*>(target)->sequence();
  buffers += leaf ? 1 : task.node().outputs();
  tasks.push_back(task);
  table_[slot] = static_cast<std::int32_t>(tasks.size());
  return table_[slot] - 1;
}

std::int32_t Discovery::find(const RefCounted* target) const {
  return table_.empty() ? -1 : table_[slot_of(target)] - 1;
}

void Discovery::follow() {
  // The list of tasks is the queue of a breadth-first search.
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].first_link = static_cast<std::int32_t>(links.size());
    if (tasks[i].leaf) continue;
    for (const Edge& edge : tasks[i].node().edges()) {
      Link link;
      if (!edge.empty()) {
        link = {task_of(edge), edge.output()};
        ++tasks[link.task].pending;
      }
      links.push_back(link);
    }
  }
}

void Discovery::clear() {
  const bool sparse = table_.size() > kSmallTable && 32 * tasks.size() < table_.size();
  tasks.clear();
  links.clear();
  buffers = 0;
  if (sparse) {
    table_ = {};
  } else {
    std::fill(table_.begin(), table_.end(), 0);
  }
}

}  // namespace weft::autograd
