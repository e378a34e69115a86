// A chain of modules that map one tensor to one tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

namespace detail {

/// Any module whose forward maps Tensor to Tensor.
class AnyModule {
 public:
  virtual ~AnyModule() = default;
  virtual Tensor call(Tensor x) = 0;
  virtual std::shared_ptr<AnyModule> copy() const = 0;
};

template <class M>
class AnyModuleOf final : public AnyModule {
 public:
  explicit AnyModuleOf(M module) : module_(std::move(module)) {}
  Tensor call(Tensor x) override { return module_(std::move(x)); }
  std::shared_ptr<AnyModule> copy() const override { return std::make_shared<AnyModuleOf>(module_); }

 private:
  M module_;
};

}  // namespace detail

/// Calls its modules one after the other; their names are "0", "1", ...
///   nn::Sequential net(nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10));
class Sequential : public Module<Sequential> {
 public:
  template <class... M>
    requires(sizeof...(M) > 0 && (std::is_base_of_v<ModuleBase, M> && ...))
  explicit Sequential(M... modules) {
    (append(std::move(modules)), ...);
  }
  Sequential() = default;
  Sequential(const Sequential& other) : Module(other), modules_(other.modules_) {
    if (detail::cloning())
      for (auto& m : modules_) m = m->copy();
  }
  Sequential(Sequential&&) = default;
  Sequential& operator=(Sequential&&) = default;
  Sequential& operator=(const Sequential& other) { return *this = Sequential(other); }

  template <class M>
  void append(M module) {
    add_child(std::to_string(modules_.size()), module);
    modules_.push_back(std::make_shared<detail::AnyModuleOf<M>>(std::move(module)));
  }

  std::size_t size() const { return modules_.size(); }

  Tensor forward(Tensor x) {
    for (auto& m : modules_) x = m->call(std::move(x));
    return x;
  }

 private:
  std::vector<std::shared_ptr<detail::AnyModule>> modules_;
};

}  // namespace weft::nn
