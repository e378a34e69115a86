// A chain of modules that map one tensor to one tensor.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

namespace detail {

/// Any module whose forward maps Tensor to Tensor; copies share it.
class AnyModule {
 public:
  template <class M>
    requires std::is_base_of_v<ModuleBase, M>
  AnyModule(M module) : impl_(std::make_shared<Impl<M>>(std::move(module))) {}

  /// Inside nn::clone the module itself is copied.
  AnyModule(const AnyModule& other) : impl_(cloning() ? other.impl_->copy() : other.impl_) {}
  AnyModule(AnyModule&&) = default;
  AnyModule& operator=(const AnyModule& other) { return *this = AnyModule(other); }
  AnyModule& operator=(AnyModule&&) = default;

  Tensor operator()(Tensor x) const { return impl_->call(std::move(x)); }
  ModuleBase& base() const { return impl_->base(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual Tensor call(Tensor x) = 0;
    virtual ModuleBase& base() = 0;
    virtual std::shared_ptr<Interface> copy() const = 0;
  };
  template <class M>
  struct Impl final : Interface {
    explicit Impl(M m) : module(std::move(m)) {}
    Tensor call(Tensor x) override { return module(std::move(x)); }
    ModuleBase& base() override { return module; }
    std::shared_ptr<Interface> copy() const override { return std::make_shared<Impl>(module); }
    M module;
  };
  std::shared_ptr<Interface> impl_;
};

}  // namespace detail

/// Calls its modules one after the other; their names are "0", "1", ...
///   nn::Sequential net{nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)};
/// Braces, because between them C++ evaluates from left to right: the layers draw their weights in
/// the order they stand in, as in PyTorch. Between parentheses it would be any order, so a list of
/// modules in parentheses does not compile.
class Sequential : public Module<Sequential> {
 public:
  Sequential(std::initializer_list<detail::AnyModule> modules) {
    for (const detail::AnyModule& m : modules) append(m);
  }
  Sequential() = default;

  void append(const detail::AnyModule& module) {
    add_child(std::to_string(modules_.size()), module.base());
    modules_.push_back(module);
  }

  std::size_t size() const { return modules_.size(); }

  Tensor forward(Tensor x) {
    for (const auto& m : modules_) x = m(std::move(x));
    return x;
  }

 private:
  std::vector<detail::AnyModule> modules_;
};

}  // namespace weft::nn
