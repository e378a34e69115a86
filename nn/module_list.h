// ModuleList, and Identity, the module that does nothing.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/nn/any_module.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Returns x itself.
class Identity : public Module<Identity> {
 public:
  Tensor forward(Tensor x) const { return x; }
};

/// A list of modules with the names "0", "1", ... The owner calls them; the list has no forward.
///   nn::ModuleList<Block> blocks = child("blocks", nn::ModuleList<Block>{Block(8), Block(16)});
///   for (Block& block : blocks) x = block(x, mask);
/// All modules have one type M, with any forward. ModuleList<> holds any modules from tensors to
/// tensors, as Sequential does. Use braces: C++ evaluates a list in braces from left to right.
template <class M = AnyModule>
class ModuleList : public Module<ModuleList<M>> {
 public:
  ModuleList() = default;
  ModuleList(std::initializer_list<M> modules) {
    for (const M& m : modules) append(m);
  }

  void append(M module) {
    this->add_child(std::to_string(modules_.size()), module);
    modules_.push_back(std::move(module));
  }

  std::size_t size() const { return modules_.size(); }
  /// Throws InvalidArgument beyond the end. Modules are handles: `list[0] = other` does not
  /// register `other`; the first module stays in state_dict() and parameters().
  M& operator[](std::size_t index) {
    check(index);
    return modules_[index];
  }
  const M& operator[](std::size_t index) const {
    check(index);
    return modules_[index];
  }
  auto begin() { return modules_.begin(); }
  auto end() { return modules_.end(); }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  void check(std::size_t index) const {
    WEFT_CHECK(index < size(), InvalidArgument, "ModuleList", "index ", index, " in a list of ",
               size());
  }

  std::vector<M> modules_;
};

}  // namespace weft::nn
