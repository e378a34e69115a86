// The node that all handles on a module share. Private to nn/.
#pragma once

#include <algorithm>
#include <any>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {
struct Shard;
}

namespace weft::nn::detail {

struct ModuleNode {
  struct Entry {
    std::string name;
    Tensor tensor;
    bool is_buffer;
    // The weight of a convolution of images: row-major on the CPU, channels last on a GPU, where
    // the libraries are fastest with it.
    bool is_image_weight = false;
    std::shared_ptr<const Shard> shard = nullptr;  // if `tensor` is a part of a parameter
  };

  struct Child {
    std::shared_ptr<const std::string> name;
    std::shared_ptr<ModuleNode> node;
  };

  static ModuleNode& of(const ModuleBase& module) { return module.node(); }

  std::string name;  // the first name under which it was registered
  std::string type_name;
  std::string description;
  bool training = true;
  std::any shared_state;
  std::shared_ptr<const HookList> hooks;  // null if there are none; a change makes a new list
  std::vector<Entry> tensors;
  std::vector<Child> children;

  bool has(const std::string& wanted) const {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const Entry& e) { return e.name == wanted; }) ||
           std::any_of(children.begin(), children.end(),
                       [&](const Child& c) { return *c.name == wanted; });
  }

  template <class F>
  void visit(const std::string& prefix, F&& f, bool recurse = true) {
    for (Entry& entry : tensors) f(prefix + entry.name, entry);
    if (!recurse) return;
    for (const Child& c : children) c.node->visit(prefix + *c.name + ".", f);
  }

  static void post_order(const std::shared_ptr<ModuleNode>& self,
                         const std::shared_ptr<const std::string>& name,
                         const std::function<void(ModuleBase&)>& f) {
    const std::vector<Child>& all = self->children;
    for (auto c = all.begin(); c != all.end(); ++c) {
      const bool seen =
          std::any_of(all.begin(), c, [&](const Child& before) { return before.node == c->node; });
      if (!seen) post_order(c->node, c->name, f);
    }
    ModuleBase handle(self, name);
    f(handle);
  }

  std::int64_t own_parameter_count() const {
    std::int64_t count = 0;
    for (const Entry& e : tensors)
      if (!e.is_buffer) count += whole_numel(e);
    return count;
  }
  /// The number of elements; for a cut parameter that of the whole one.
  static std::int64_t whole_numel(const Entry& entry);
};

/// Throws Unsupported if a parameter of the module is cut into parts. `op`: what it then cannot do.
void check_not_cut(const char* op, const ModuleNode& node);

/// Gives the tensor another value of any shape, dtype or device. Its handles, its role as a leaf
/// and its hooks stay.
void set_data(const Tensor& tensor, const Tensor& value);

/// A tensor of a module, or its gradient, on `device` in the layout that it has there.
Tensor placed(bool is_image_weight, const Tensor& x, Device device);

}  // namespace weft::nn::detail
