// AnyModule: holds a module of any type that maps tensors to tensors.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/nn/module.h"
#include "weft/tensor/tree.h"

namespace weft::nn {

namespace detail {

inline constexpr std::size_t kMaxModuleInputs = 8;

template <std::size_t>
using TensorAt = Tensor;

/// Whether forward takes n tensors.
template <class M, std::size_t n>
inline constexpr bool takes_tensors = []<std::size_t... i>(std::index_sequence<i...>) {
  return requires(M& m, TensorAt<i>... x) { m.forward(std::move(x)...); };
}(std::make_index_sequence<n>());

template <class M>
inline constexpr bool takes_tensors_one_by_one = []<std::size_t... n>(std::index_sequence<n...>) {
  return (takes_tensors<M, n> || ...);
}(std::make_index_sequence<kMaxModuleInputs + 1>());

template <class M>
concept TakesTensors = takes_tensors_one_by_one<M> ||
                       requires(M& m, std::vector<Tensor> x) { m.forward(std::move(x)); };

/// The tensors of a result (tensor/tree.h).
template <class Result>
std::vector<Tensor> list_of(Result&& result) {
  using R = std::remove_cvref_t<Result>;
  if constexpr (std::same_as<R, std::vector<Tensor>>) {
    return std::forward<Result>(result);
  } else {
    static_assert(walkable<R>,
                  "forward's result may hold tensors that nothing can find: give its type a "
                  "tensors() (tensor/tree.h)");
    std::vector<Tensor> list;
    for_each_tensor(result, [&](const Tensor& x) { list.push_back(x); });
    return list;
  }
}

[[noreturn]] void throw_wrong_inputs(const std::string& type, std::size_t given);
[[noreturn]] void throw_wrong_results(const std::string& type, std::size_t given);

}  // namespace detail

/// Holds any module whose forward takes tensors and returns tensors: a stage of a pipeline, an
/// element of Sequential. It is a handle on that module, with the same names, parameters, state and
/// mode. Copies share the module; nn::clone and nn::replicate copy it. Its forward may take up to
/// eight tensors (by value or by reference) or a std::vector<Tensor>, and may return a tensor, a
/// structure that tensor/tree.h walks, or nothing.
///   nn::AnyModule stage = nn::Sequential{nn::Linear(4, 8), nn::ReLU()};
///   std::vector<Tensor> y = stage(std::vector{x});
class AnyModule : public ModuleBase {
 public:
  template <class M>
    requires(std::derived_from<M, ModuleBase> && !std::derived_from<M, AnyModule> &&
             detail::TakesTensors<M>)
  AnyModule(M module)
      : ModuleBase(static_cast<const ModuleBase&>(module)),
        impl_(std::make_shared<Impl<M>>(std::move(module))) {}

  AnyModule(const AnyModule& other)
      : ModuleBase(other), impl_(detail::cloning() ? other.impl_->copy() : other.impl_) {}
  AnyModule(AnyModule&&) = default;
  AnyModule& operator=(const AnyModule& other) { return *this = AnyModule(other); }
  AnyModule& operator=(AnyModule&&) = default;

  /// Throws InvalidArgument when forward does not take that many tensors.
  std::vector<Tensor> operator()(std::span<const Tensor> inputs) const {
    return impl().call_list(*this, inputs);
  }
  /// One tensor in, one tensor out. Throws InvalidArgument also when forward does not return
  /// exactly one tensor.
  Tensor operator()(Tensor x) const { return impl().call(*this, std::move(x)); }

  /// The held module if its type is M, else null.
  template <class M>
  M* as() const {
    return impl().type() == typeid(M) ? &static_cast<Impl<M>&>(impl()).module : nullptr;
  }

 private:
  // Calls go through the handle: it has the name under which the parent registered it.
  struct Interface {
    virtual ~Interface() = default;
    virtual std::vector<Tensor> call_list(const ModuleBase& handle,
                                          std::span<const Tensor> inputs) = 0;
    virtual Tensor call(const ModuleBase& handle, Tensor x) = 0;
    virtual const std::type_info& type() const = 0;
    virtual std::shared_ptr<Interface> copy() const = 0;
  };
  template <class M>
  struct Impl;

  Interface& impl() const {
    check_not_moved_from();
    return *impl_;
  }

  friend AnyModule pass_through(AnyModule module, std::size_t count);
  struct PassThrough;

  std::shared_ptr<Interface> impl_;
};

/// `module` with `count` more inputs and results: the last `count` inputs are not used and are
/// returned unchanged after the results. It is the same module, with the same names, parameters,
/// state and mode. For the stages of a pipeline between the one that makes a skip connection and
/// the one that uses it:
///   parallel::Pipeline pipe({net.down, nn::pass_through(net.middle), net.up});
/// where down returns {y, skip}, middle takes y, and up takes middle's result and skip. A call with
/// fewer tensors throws InvalidArgument.
AnyModule pass_through(AnyModule module, std::size_t count = 1);

template <class M>
struct AnyModule::Impl final : Interface {
  explicit Impl(M m) : module(std::move(m)) {}

  std::vector<Tensor> call_list(const ModuleBase& handle, std::span<const Tensor> inputs) override {
    if constexpr (detail::takes_tensors_one_by_one<M>) {
      return call_n(handle, inputs, std::make_index_sequence<detail::kMaxModuleInputs + 1>());
    } else {
      return with(handle, std::vector<Tensor>(inputs.begin(), inputs.end()));
    }
  }

  Tensor call(const ModuleBase& handle, Tensor x) override {
    if constexpr (detail::takes_tensors<M, 1>) {
      if constexpr (std::convertible_to<decltype(module.forward(std::move(x))), Tensor>) {
        return detail::call_module(handle, module, std::move(x));
      }
    }
    std::vector<Tensor> results = call_list(handle, {&x, 1});
    if (results.size() != 1) detail::throw_wrong_results(handle.type_name(), results.size());
    return std::move(results[0]);
  }

  const std::type_info& type() const override { return typeid(M); }
  std::shared_ptr<Interface> copy() const override { return std::make_shared<Impl>(module); }

  M module;

 private:
  template <class... Inputs>
  std::vector<Tensor> with(const ModuleBase& handle, Inputs&&... inputs) {
    if constexpr (std::is_void_v<decltype(module.forward(std::forward<Inputs>(inputs)...))>) {
      detail::call_module(handle, module, std::forward<Inputs>(inputs)...);
      return {};
    } else {
      return detail::list_of(detail::call_module(handle, module, std::forward<Inputs>(inputs)...));
    }
  }

  // Calls forward with as many arguments as there are inputs.
  template <std::size_t... n>
  std::vector<Tensor> call_n(const ModuleBase& handle, std::span<const Tensor> inputs,
                             std::index_sequence<n...>) {
    std::vector<Tensor> results;
    const bool called = ((inputs.size() == n && call_exactly<n>(handle, inputs, results)) || ...);
    if (!called) detail::throw_wrong_inputs(handle.type_name(), inputs.size());
    return results;
  }

  template <std::size_t n>
  bool call_exactly(const ModuleBase& handle, std::span<const Tensor> inputs,
                    std::vector<Tensor>& results) {
    if constexpr (detail::takes_tensors<M, n>) {
      [&]<std::size_t... i>(std::index_sequence<i...>) {
        results = with(handle, Tensor(inputs[i])...);
      }(std::make_index_sequence<n>());
      return true;
    } else {
      return false;
    }
  }
};

}  // namespace weft::nn
