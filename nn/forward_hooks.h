// Hooks on the calls of modules: functions that see the tensors in the arguments and in the result
// of a call, and may replace them.
//
//   nn::HookHandle handle = model.layer1.register_forward_hook(
//       [&](nn::ModuleBase&, std::span<Tensor> results) { features = results[0]; });
//   ...
//   handle.remove();
//
// As in PyTorch: hooks run in the order in which they were registered, each sees what the one
// before has put in place, and all run within the module's path, first those before the forward,
// then the others. After a throw no more of them run, only the error hooks (in PyTorch those with
// always_call). Hooks that are added or removed during a call take effect in the next one. A hook
// returns nothing: where a PyTorch hook would return a new value, assign to results[i], or to
// args[i] before the forward.
//
// nn::clone and nn::replicate give the copy the same functions, which are called with the copy's
// modules and stay when the original's handle removes its own. What a function captures is not
// copied, even where copy.deepcopy would copy it: all copies share it. The replicas of DataParallel
// have the hooks that the module has at the time of the call, and call them on the threads of their
// devices, several at once.
//
// Do not capture `this` or a reference to a member: a module's struct is a handle that may move,
// for example when it becomes a child, and the address would dangle. Do not capture the module by
// value either: it would own the hook that owns it, and neither would ever be freed. Use the
// argument `module`, and keep state in a std::shared_ptr that the hook captures.
//
// The tensors are those that tensor/tree.h finds, undefined ones too, in its order. Assign to one
// to replace it; this throws InvalidArgument where the call has no place for another tensor: in a
// result that is a reference, and in spans and references to structures that cannot be copied. An
// argument or a result without tensors is passed on unseen. A forward that changes an argument of
// its caller changes a copy if a hook has replaced a tensor. Adding and removing hooks changes the
// module: do neither while other threads call it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/tensor/tree.h"

namespace weft::nn {

class ModuleBase;
namespace detail {
struct ModuleNode;
struct Hook;
using HookList = std::vector<std::shared_ptr<const Hook>>;
}  // namespace detail

/// Runs before the forward; args: the tensors in the arguments.
using ForwardPreHook = std::function<void(ModuleBase& module, std::span<Tensor> args)>;
/// Runs after it. While there is such a hook, a module cannot work in the memory of its arguments.
using ForwardHook = std::function<void(ModuleBase& module, std::span<const Tensor> args,
                                       std::span<Tensor> results)>;
/// The same without the arguments, which cost memory until the end of the call.
using ResultHook = std::function<void(ModuleBase& module, std::span<Tensor> results)>;
/// Runs after a call that throws, also if a hook has thrown, even the first one: it ends what
/// others have begun. An error that it throws itself is lost, since the caller gets the first one.
using ForwardErrorHook = std::function<void(ModuleBase& module)>;

/// Removes a hook. Letting the handle go leaves the hook where it is.
class HookHandle {
 public:
  HookHandle() = default;
  /// Does nothing if the hook has been removed, or the module is gone.
  void remove();

 private:
  friend class ModuleBase;
  HookHandle(std::weak_ptr<detail::ModuleNode> node, std::shared_ptr<const detail::Hook> hook)
      : node_(std::move(node)), hook_(std::move(hook)) {}

  std::weak_ptr<detail::ModuleNode> node_;
  std::shared_ptr<const detail::Hook> hook_;
};

namespace detail {

/// Whether F can be called with a module and Args, and whether it returns nothing then.
template <class F, class... Args>
concept CallableHook = std::is_invocable_v<F&, ModuleBase&, Args...>;
template <class F, class... Args>
concept VoidHook =
    CallableHook<F, Args...> && std::is_void_v<std::invoke_result_t<F&, ModuleBase&, Args...>>;

/// What register_forward_pre_hook takes. A std::function alone would drop what F returns.
struct NewPreHook {
  NewPreHook() = default;
  template <class F>
  NewPreHook(F f) {
    constexpr bool callable = CallableHook<F, std::span<Tensor>>;
    static_assert(callable,
                  "a forward pre-hook takes (nn::ModuleBase& module, std::span<Tensor> args)");
    if constexpr (callable) {
      static_assert(VoidHook<F, std::span<Tensor>>,
                    "a forward pre-hook returns nothing: assign to args[i] to replace an argument");
      call = std::move(f);
    }
  }

  ForwardPreHook call;
};

/// What register_forward_hook takes, in one of the two members.
struct NewHook {
  NewHook() = default;
  template <class F>
  NewHook(F f) {
    constexpr bool of_both = CallableHook<F, std::span<const Tensor>, std::span<Tensor>>;
    constexpr bool of_results = CallableHook<F, std::span<Tensor>>;
    static_assert(of_both || of_results,
                  "a forward hook takes (nn::ModuleBase& module, std::span<Tensor> results) or "
                  "(nn::ModuleBase& module, std::span<const Tensor> args, std::span<Tensor> "
                  "results)");
    static_assert(!(of_both && of_results),
                  "this forward hook can be called with and without args: give it two parameters "
                  "(module, results) or three (module, args, results)");
    if constexpr (of_both && !of_results) {
      static_assert(VoidHook<F, std::span<const Tensor>, std::span<Tensor>>,
                    "a forward hook returns nothing: assign to results[i] to replace a result");
      with_args = std::move(f);
    } else if constexpr (of_results && !of_both) {
      static_assert(VoidHook<F, std::span<Tensor>>,
                    "a forward hook returns nothing: assign to results[i] to replace a result");
      without_args = std::move(f);
    }
  }

  ForwardHook with_args;
  ResultHook without_args;
};

/// Calls the hooks of one kind. Return whether a tensor was replaced.
bool run_pre_hooks(const HookList& hooks, const ModuleBase& handle, std::span<Tensor> args);
bool run_hooks(const HookList& hooks, const ModuleBase& handle, std::span<const Tensor> args,
               std::span<Tensor> results);
void run_error_hooks(const HookList& hooks, const ModuleBase& handle) noexcept;
/// Whether a hook wants the arguments after the forward.
bool want_args(const HookList& hooks);
[[noreturn]] void throw_no_place(const ModuleBase& handle, const char* where);

/// Whether other tensors can be put into a copy of T.
template <class T>
inline constexpr bool has_places =
    !std::is_const_v<T> && !std::is_array_v<T> && std::is_copy_constructible_v<T> &&
    weft::detail::owns_tensors<T>();

/// What forward gets in place of an argument: a copy if its tensors may be replaced.
template <class Arg, class U = std::remove_cvref_t<Arg>>
using Held = std::conditional_t<holds_tensors<U> && has_places<U>, U, Arg&&>;

template <class Arg>
Held<Arg> hold(const ModuleBase& handle, std::remove_reference_t<Arg>& arg, const Tensor*& next) {
  if constexpr (std::is_reference_v<Held<Arg>>) {
    for_each_tensor(arg, [&](const Tensor& x) {
      if (!x.same(*next++)) throw_no_place(handle, "an argument");
    });
    return std::forward<Arg>(arg);
  } else {
    Held<Arg> copy(std::forward<Arg>(arg));
    for_each_tensor(copy, [&](Tensor& x) { x = *next++; });
    return copy;
  }
}

template <class Result, class... Args, class Self>
Result call_before_hooks(const HookList& hooks, const ModuleBase& handle, Self& self,
                         std::vector<Tensor> inputs, Args&&... args) {
  if (!want_args(hooks)) inputs.clear();  // so that forward may work in their memory
  std::vector<Tensor> outputs;
  if constexpr (std::is_void_v<Result>) {
    self.forward(std::forward<Args>(args)...);
    run_hooks(hooks, handle, inputs, outputs);
  } else {
    Result result = self.forward(std::forward<Args>(args)...);
    for_each_tensor(result, [&](const Tensor& y) { outputs.push_back(y); });
    if (run_hooks(hooks, handle, inputs, outputs)) {
      if constexpr (!std::is_reference_v<Result> && has_places<Result>) {
        const Tensor* next = outputs.data();
        for_each_tensor(result, [&](Tensor& y) { y = *next++; });
      } else {
        throw_no_place(handle, "the result");
      }
    }
    return std::forward<Result>(result);
  }
}

/// self.forward(args...) with the hooks before and after it. The list is the caller's own: hooks
/// may change that of the module.
template <class Self, class... Args>
auto call_with_hooks(std::shared_ptr<const HookList> hooks, const ModuleBase& handle, Self& self,
                     Args&&... args) -> decltype(self.forward(std::forward<Args>(args)...)) try {
  using Result = decltype(self.forward(std::forward<Args>(args)...));
  std::vector<Tensor> inputs;
  (for_each_tensor(args, [&](const Tensor& x) { inputs.push_back(x); }), ...);
  if (!run_pre_hooks(*hooks, handle, inputs)) {
    return call_before_hooks<Result>(*hooks, handle, self, std::move(inputs),
                                     std::forward<Args>(args)...);
  }
  if constexpr (std::is_reference_v<Result>) {  // it may refer to an argument, which was copied
    throw_no_place(handle, "the result");
  } else {
    const Tensor* next = inputs.data();
    // In braces, which are evaluated from left to right.
    std::tuple<Held<Args>...> held{hold<Args>(handle, args, next)...};
    return std::apply(
        [&](auto&... copies) {
          return call_before_hooks<Result>(*hooks, handle, self, std::move(inputs),
                                           std::forward<Args>(copies)...);
        },
        held);
  }
} catch (...) {
  run_error_hooks(*hooks, handle);
  throw;
}

}  // namespace detail

}  // namespace weft::nn
