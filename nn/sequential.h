// A chain of modules that map one tensor to one tensor.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/activation.h"
#include "weft/nn/batch_norm.h"
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

  /// Of a ReLU (0) or LeakyReLU.
  std::optional<double> negative_slope() const { return impl_->negative_slope(); }
  /// The module itself where it is one.
  BatchNorm2d* batch_norm() const { return impl_->batch_norm(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual Tensor call(Tensor x) = 0;
    virtual std::optional<double> negative_slope() const = 0;
    virtual BatchNorm2d* batch_norm() = 0;
    virtual ModuleBase& base() = 0;
    virtual std::shared_ptr<Interface> copy() const = 0;
  };
  template <class M>
  struct Impl final : Interface {
    explicit Impl(M m) : module(std::move(m)) {}
    Tensor call(Tensor x) override { return module(std::move(x)); }
    std::optional<double> negative_slope() const override {
      if constexpr (std::is_same_v<M, ReLU>) return 0;
      if constexpr (std::is_same_v<M, LeakyReLU>) return module.negative_slope();
      return std::nullopt;
    }
    BatchNorm2d* batch_norm() override {
      if constexpr (std::is_same_v<M, BatchNorm2d>) return &module;
      return nullptr;
    }
    ModuleBase& base() override { return module; }
    std::shared_ptr<Interface> copy() const override { return std::make_shared<Impl>(module); }
    M module;
  };
  std::shared_ptr<Interface> impl_;
};

}  // namespace detail

/// Calls its modules one after the other; their names are "0", "1", ... A BatchNorm2d and a ReLU or
/// LeakyReLU right behind it run as one operation, with the same values.
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
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      if (const auto slope = fused_slope(i)) {
        x = (*modules_[i++].batch_norm())(x, then_leaky_relu(*slope));
      } else {
        x = modules_[i](std::move(x));
      }
    }
    return x;
  }

 private:
  // Of the activation behind module i, where that is a BatchNorm2d which can take it over. Not
  // under an observer: it is to see every module's call.
  std::optional<double> fused_slope(std::size_t i) const {
    if (i + 1 == modules_.size() || !modules_[i].batch_norm() || thread_state().calls) return {};
    return modules_[i + 1].negative_slope();
  }

  std::vector<detail::AnyModule> modules_;
};

}  // namespace weft::nn
