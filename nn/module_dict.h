// ModuleDict: modules by name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/nn/any_module.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Modules with names, in the order in which they were inserted. The owner calls them; the dict has
/// no forward.
///   nn::ModuleDict<> heads = child("heads", nn::ModuleDict<>{{"a", nn::Linear(4, 2)},
///                                                            {"b", nn::Identity()}});
///   y = heads["a"](x);
///   for (const auto& [name, head] : heads) ..
/// It gives out const modules, since an assignment would put an unregistered module in their place.
/// Modules are handles, so to change a module, copy its handle: `auto head = heads["a"];
/// head.eval();`. All modules have one type M, with any forward. ModuleDict<> holds any modules
/// from tensors to tensors, as Sequential does. Use braces: C++ evaluates a list in braces from
/// left to right.
template <class M = AnyModule>
class ModuleDict : public Module<ModuleDict<M>> {
 public:
  using Entry = std::pair<std::string, M>;

  ModuleDict() = default;
  ModuleDict(std::initializer_list<Entry> entries) {
    for (const auto& [name, module] : entries) insert(name, module);
  }

  /// Throws InvalidArgument when the name is taken, empty or contains a dot.
  void insert(const std::string& name, M module) {
    this->add_child(name, module);
    entries_.emplace_back(name, std::move(module));
  }

  std::size_t size() const { return entries_.size(); }
  bool contains(std::string_view name) const { return find(name) != entries_.end(); }
  std::vector<std::string> keys() const {
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.first);
    return names;
  }
  /// Throws InvalidArgument for a name that is not there.
  const M& operator[](std::string_view name) const {
    const auto found = find(name);
    WEFT_CHECK(found != entries_.end(), InvalidArgument, "ModuleDict", "has no '", name,
               "'; use insert() to add a module");
    return found->second;
  }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  // A loop by hand: every program would have to compile <algorithm>, which is long.
  auto find(std::string_view name) const {
    auto entry = entries_.begin();
    while (entry != entries_.end() && entry->first != name) ++entry;
    return entry;
  }

  std::vector<Entry> entries_;
};

}  // namespace weft::nn
