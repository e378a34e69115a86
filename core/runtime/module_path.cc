#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {
namespace {

// Module paths must outlive the calls that they name. They are nodes of a trie that are never
// freed, and can be put into ThreadState::path as they are. Reading takes no lock.
struct InternedPath : PathNode {
  std::string text;
  mutable std::atomic<const InternedPath*> first_child{nullptr};
  const InternedPath* next_sibling = nullptr;
};

const InternedPath* find_child(const InternedPath& parent, const char* name) {
  const InternedPath* child = parent.first_child.load(std::memory_order_acquire);
  while (child && std::strcmp(child->name, name) != 0) child = child->next_sibling;
  return child;
}

const InternedPath& child_of(const InternedPath& parent, const char* name) {
  if (const InternedPath* child = find_child(parent, name)) return *child;
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  if (const InternedPath* child = find_child(parent, name)) return *child;
  auto* child = new InternedPath;
  child->text = name;
  child->name = child->text.c_str();
  child->parent = parent.name ? &parent : nullptr;
  child->interned = child;
  child->next_sibling = parent.first_child.load(std::memory_order_relaxed);
  parent.first_child.store(child, std::memory_order_release);
  return *child;
}

const InternedPath& intern(const PathNode* path) {
  static const InternedPath& root = *new InternedPath;
  if (!path) return root;
  // Workers share the path of the thread that gave them work.
  std::atomic_ref<const PathNode*> known(path->interned);
  if (const PathNode* found = known.load(std::memory_order_acquire)) {
    return static_cast<const InternedPath&>(*found);
  }
  const InternedPath& parent = intern(path->parent);
  const bool shows = path->name && *path->name;
  const InternedPath& found = shows ? child_of(parent, path->name) : parent;
  known.store(&found, std::memory_order_release);
  return found;
}

}  // namespace

const PathNode* interned_path() {
  const PathNode* path = thread_state().path;
  if (!path) return nullptr;
  const InternedPath& found = intern(path);
  return found.name ? &found : nullptr;
}

std::string module_path(const PathNode* path) {
  std::string text;
  const auto append = [&text](const auto& self, const PathNode* node) -> void {
    if (!node) return;
    self(self, node->parent);
    if (!node->name || !*node->name) return;
    if (!text.empty()) text += '.';
    text += node->name;
  };
  append(append, path);
  return text;
}

std::string module_path() { return module_path(thread_state().path); }
std::string detail::module_path_of_thread() { return module_path(); }

}  // namespace weft
