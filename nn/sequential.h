// Sequential: a chain of modules, each from one tensor to one tensor.
#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/nn/activation.h"
#include "weft/nn/any_module.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/conv.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"
#include "weft/nn/then.h"

namespace weft::nn {

/// Calls its modules one after the other. Their names are "0", "1", ... A Conv2d, ConvTranspose2d,
/// Linear or BatchNorm2d directly followed by a ReLU runs with it as one operation, with the same
/// values; a BatchNorm2d also with a LeakyReLU.
///   nn::Sequential net{nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)};
///   net[0].as<nn::Linear>()->weight
/// Use braces: C++ evaluates a list in braces from left to right, so the layers draw their weights
/// in the order of the list, as in PyTorch. In parentheses the order is not defined, so only
/// modules that have names already compile there: nn::Sequential net(encoder, decoder).
class Sequential : public Module<Sequential> {
 public:
  Sequential(std::initializer_list<AnyModule> modules) {
    for (const AnyModule& m : modules) append(m);
  }
  template <class First, class... Rest>
    requires(std::convertible_to<First, AnyModule> &&
             (std::convertible_to<Rest, AnyModule> && ...) &&
             (sizeof...(Rest) > 0 || !std::same_as<std::remove_cvref_t<First>, Sequential>))
  explicit Sequential(First&& first, Rest&&... rest) {
    static_assert((std::is_lvalue_reference_v<First> && ... && std::is_lvalue_reference_v<Rest>),
                  "use braces, nn::Sequential{nn::Linear(..), nn::ReLU()}: in parentheses C++ does "
                  "not say in which order new layers draw their weights");
    append(first);
    (append(rest), ...);
  }
  Sequential() = default;

  void append(AnyModule module) {
    add_child(std::to_string(modules_.size()), module);
    modules_.push_back(std::move(module));
  }

  std::size_t size() const { return modules_.size(); }
  /// A handle on module `index`. Throws InvalidArgument beyond the end.
  AnyModule operator[](std::size_t index) const {
    WEFT_CHECK(index < size(), InvalidArgument, "Sequential", "index ", index, " in a chain of ",
               size());
    return modules_[index];
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

  /// A chain of the modules first to last - 1. They are the same modules, with names from "0" on,
  /// as in PyTorch. Throws InvalidArgument unless first <= last <= size().
  Sequential slice(std::size_t first, std::size_t last) const {
    WEFT_CHECK(first <= last && last <= size(), InvalidArgument, "Sequential", "slice [", first,
               ", ", last, ") of a chain of ", size());
    Sequential part;
    for (std::size_t i = first; i < last; ++i) part.append(modules_[i]);
    part.take_mode_of(*this);
    return part;
  }

  Tensor forward(Tensor x) const {
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      if (ran_with_next(i, x)) {
        ++i;
      } else {
        x = modules_[i](std::move(x));
      }
    }
    return x;
  }

 private:
  // If module i can apply the activation after it: runs both on x. Not if one of the two has hooks,
  // which must see its call.
  bool ran_with_next(std::size_t i, Tensor& x) const {
    if (i + 1 == modules_.size()) return false;
    const AnyModule &layer = modules_[i], &next = modules_[i + 1];
    if (layer.has_forward_hooks() || next.has_forward_hooks()) return false;
    if (next.as<ReLU>()) {
      return ran<Linear>(layer, x, then_relu()) || ran<Conv2d>(layer, x, then_relu()) ||
             ran<BatchNorm2d>(layer, x, then_relu()) || ran<ConvTranspose2d>(layer, x, then_relu());
    }
    const LeakyReLU* const leaky = next.as<LeakyReLU>();
    return leaky && ran<BatchNorm2d>(layer, x, then_leaky_relu(leaky->negative_slope()));
  }
  template <class Layer, class Then>
  static bool ran(const AnyModule& module, Tensor& x, const Then& then) {
    const Layer* const layer = module.as<Layer>();
    if (layer) x = detail::call_module(module, *layer, std::move(x), then);
    return layer != nullptr;
  }

  std::vector<AnyModule> modules_;
};

}  // namespace weft::nn
