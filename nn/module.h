// Module: named parameters, buffers and children.
//
//   struct Encoder : nn::Module<Encoder> {
//     nn::Conv2d conv = child("conv", nn::Conv2d(1, 8, 3));
//     nn::Parameter scale = parameter("scale", ones({8, 1, 1}));
//     Tensor forward(const Tensor& x) const { return relu(conv(x)) * scale; }
//   };
//
// A member that was not registered with child() is neither trained nor saved. Calling such a member
// in forward throws InvalidArgument, if gradients are enabled and it has parameters that require
// one.
//
// A module is a handle on a shared node (name, tensors, children). So moving or copying a user's
// struct keeps everything connected: a copy is the same module, as in Python. nn::clone makes an
// independent copy, also of a user's struct, without code by the user.
//
// Several threads may call one module at once as long as nobody changes it: in evaluation mode,
// under NoGrad in every thread. The call then only reads parameters, buffers, modes and
// names. A const module can be called if its forward is const, as those of nn/ are. What else a
// call uses belongs to the thread: gradient mode, generator, module path and autocast, which keeps
// no converted weights without a tape. Not at the same time: train(), to(), load_state_dict(),
// adding or removing hooks, and other changes through any handle, and batch norm in training mode,
// which writes its running statistics.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/nn/forward_hooks.h"
#include "weft/nn/named_tensors.h"
#include "weft/tensor/tree.h"

namespace weft::nn {

/// A tensor that belongs to a module. A copy shares the tensor. Inside nn::clone a copy becomes the
/// clone's own tensor: this is why members must be Parameter, not Tensor.
class Parameter : public Tensor {
 public:
  Parameter() = default;
  explicit Parameter(Tensor tensor) : Tensor(std::move(tensor)) {}
  Parameter(const Parameter& other);
  Parameter(Parameter&&) = default;
  Parameter& operator=(const Parameter& other);
  Parameter& operator=(Parameter&&) = default;
};

/// Names that load_state_dict did not find, and names that it did not expect.
struct LoadResult {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
};

class Follower;
class ModuleBase;
using NamedModules = std::vector<std::pair<std::string, ModuleBase>>;

namespace detail {
struct ModuleNode;
/// What a call asks its module for: the name for the path, null without one, and the hooks, null
/// without any.
struct Called {
  const char* name;
  const std::shared_ptr<const HookList>* hooks;
};
template <class M>
M deep_copy(const M& module, std::optional<Device> device);
template <class Self, class... Args>
decltype(auto) call_module(const ModuleBase& handle, Self& self, Args&&... args);
}  // namespace detail

/// The part of a module that does not depend on its type. Also usable as a handle on any module of
/// a tree (apply).
class ModuleBase {
 public:
  ModuleBase(const ModuleBase& other);
  ModuleBase(ModuleBase&&) = default;
  ModuleBase& operator=(const ModuleBase& other);
  ModuleBase& operator=(ModuleBase&&) = default;

  /// The name under which the parent registered it; empty at the root. For a module with several
  /// names, a handle that child() returned has the name of that call; other handles have the first
  /// name.
  const std::string& name() const;
  /// The name of its type, such as "Conv2d".
  const std::string& type_name() const;
  void set_type_name(std::string name);

  /// Own tensors first, then those of the children, in order of registration; names are joined by
  /// dots. A tensor registered twice is listed once, under its first name.
  NamedTensors named_parameters(bool recurse = true) const;
  NamedTensors named_buffers(bool recurse = true) const;
  std::vector<Tensor> parameters() const;
  /// The number of elements of all parameters.
  std::int64_t parameter_count() const;

  bool is_training() const;
  /// Sets training or evaluation mode for this module and all modules below it.
  void train(bool training = true);
  void eval() { train(false); }

  /// Moves or converts parameters, their gradients and buffers in place, so handles stay valid. A
  /// dtype conversion changes floating tensors only. Throws Dtype unless the new dtype is floating.
  void to(Device device);
  void to(DType dtype);
  void to(Device device, DType dtype) {
    to(dtype);
    to(device);
  }
  /// Sets requires_grad of every parameter. When it is off, later operations compute no gradient of
  /// the parameters (and .grad() stays as it is) but still pass gradients on to their inputs: so
  /// one of two nets can be trained through the other.
  void requires_grad(bool requires_grad);
  /// Clears the gradients of all parameters.
  void zero_grad();

  /// This module, as "", and each one below it once, parents first; names are joined by dots.
  NamedModules named_modules() const;
  /// Calls f for this module and every module below it, children first, as PyTorch's apply: once
  /// for a child that its parent registered under two names. Throws InvalidArgument for an empty f.
  void apply(const std::function<void(ModuleBase&)>& f);
  // nn/forward_hooks.h says when hooks run. With prepend a hook comes before the others of its
  // kind. `hook`: a ForwardPreHook; a ForwardHook or ResultHook. They throw InvalidArgument for an
  // empty one.
  HookHandle register_forward_pre_hook(detail::NewPreHook hook, bool prepend = false);
  HookHandle register_forward_hook(detail::NewHook hook, bool prepend = false);
  HookHandle register_forward_error_hook(ForwardErrorHook hook);
  bool has_forward_hooks() const;  ///< of any kind

  /// Data that the module's class keeps for all handles, besides tensors and children; empty if
  /// there is none. A clone starts with a copy.
  std::any& shared_state() const;

  /// Parameters and buffers by name, sharing memory with the module. A tensor registered twice is
  /// listed under both names.
  NamedTensors state_dict() const;
  /// Copies values in, across devices and dtypes. Throws InvalidArgument, before anything is
  /// changed, for a name given twice and for values of another shape; with strict also for missing
  /// and unexpected names. The message lists the first few names of each kind. Returns the missing
  /// and the unexpected names.
  LoadResult load_state_dict(const NamedTensors& values, bool strict = true);

  /// The module tree in PyTorch's layout, with the number of own parameters after each line that
  /// has some.
  std::string to_string() const;

 protected:
  explicit ModuleBase(std::string type_name);

  /// Registers a trainable tensor under `name`. Throws InvalidArgument when the name is taken,
  /// empty or contains a dot.
  Parameter parameter(const std::string& name, Tensor value);
  /// Registers a tensor that is saved but not trained. Throws as parameter().
  Parameter buffer(const std::string& name, Tensor value);
  /// Registers a module and returns it: `nn::Linear fc = child("fc", nn::Linear(4, 2));` Throws as
  /// parameter().
  template <class M>
  M child(const std::string& name, M module) {
    add_child(name, module);
    return module;
  }
  /// The same module may be added under several names.
  void add_child(const std::string& name, ModuleBase& module);
  /// The text that to_string shows between the parentheses.
  void set_description(std::string text);

  /// Copies training or evaluation mode from `other`, for this module only.
  void take_mode_of(const ModuleBase& other);
  void check_not_moved_from() const {
    if (!node_) [[unlikely]]
      throw_moved_from();
  }

 private:
  friend struct detail::ModuleNode;
  friend class Follower;
  template <class M>
  friend M detail::deep_copy(const M& module, std::optional<Device> device);
  template <class Self, class... Args>
  friend decltype(auto) detail::call_module(const ModuleBase& handle, Self& self, Args&&... args);
  using Name = std::shared_ptr<const std::string>;

  ModuleBase(std::shared_ptr<detail::ModuleNode> node, Name name)
      : node_(std::move(node)), name_(std::move(name)) {}
  detail::ModuleNode& node() const {
    check_not_moved_from();
    return *node_;
  }
  [[noreturn]] static void throw_moved_from();
  HookHandle add_hook(std::shared_ptr<const detail::Hook> hook, bool prepend);
  /// Throws InvalidArgument when a module without a name is a member that its owner forgot to
  /// register with child().
  detail::Called called() const;
  void check_not_forgotten() const;

  std::shared_ptr<detail::ModuleNode> node_;  // null after a move
  Name name_;                                 // name registered through this handle, or null
};

/// The same as module.to_string(), like the function for tensors.
inline std::string to_string(const ModuleBase& module) { return module.to_string(); }
inline std::ostream& operator<<(std::ostream& out, const ModuleBase& module) {
  return out << module.to_string();
}

namespace detail {

/// Deep-copies a tree of nodes, onto `device` if one is given. While the scope exists, copies that
/// this thread makes of modules and parameters of that tree refer to the new nodes.
class CloneScope {
 public:
  explicit CloneScope(const std::shared_ptr<ModuleNode>& root, std::optional<Device> device = {});
  ~CloneScope();
  CloneScope(const CloneScope&) = delete;
  CloneScope& operator=(const CloneScope&) = delete;
  /// Throws InvalidArgument naming a parameter or module that the copy still shares with the
  /// original (held as a plain Tensor, or behind a shared pointer).
  void check_complete() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Whether the calling thread is inside nn::clone.
bool cloning();

template <class Self, class... Args>
concept HasForward =
    requires(Self& self, Args&&... args) { self.forward(std::forward<Args>(args)...); };

// The string is never freed, so that it outlives every trace.
template <class Self>
const char* trace_name() {
  static const std::string& name =
      *new std::string(weft::detail::type_name<std::remove_const_t<Self>>());
  return name.c_str();
}

/// Calls self.forward(args...), and the hooks, with the handle's name on the path that errors and
/// trace spans show.
template <class Self, class... Args>
decltype(auto) call_module(const ModuleBase& handle, Self& self, Args&&... args) {
  const Called called = handle.called();
  PathScope scope(called.name);
  const Span span("forward", thread_state().tracer ? trace_name<Self>() : nullptr);
  if (called.hooks) [[unlikely]]
    return call_with_hooks(*called.hooks, handle, self, std::forward<Args>(args)...);
  return self.forward(std::forward<Args>(args)...);
}

}  // namespace detail

/// Base of every module. Self is the derived struct, whose forward(...) may have any parameters and
/// result.
template <class Self>
class Module : public ModuleBase {
 public:
  Module() : ModuleBase(weft::detail::type_name<Self>()) {}

  /// Runs forward with this module's name on the path that errors and trace spans show.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return detail::call_module(*this, static_cast<Self&>(*this), std::forward<Args>(args)...);
  }
  /// The same for a const module, whose forward has to be const.
  template <class... Args>
    requires detail::HasForward<const Self, Args...>
  decltype(auto) operator()(Args&&... args) const {
    return detail::call_module(*this, static_cast<const Self&>(*this), std::forward<Args>(args)...);
  }
};

namespace detail {
template <class M>
M deep_copy(const M& module, std::optional<Device> device) {
  module.ModuleBase::check_not_moved_from();
  CloneScope scope(module.node_, device);
  M copy(module);
  scope.check_complete();
  return copy;
}
}  // namespace detail

/// An independent deep copy: own parameters and buffers on the same device, same mode. Throws
/// InvalidArgument when the copy would still share a parameter or module with the original.
template <class M>
M clone(const M& module) {
  return detail::deep_copy(module, std::nullopt);
}

/// A deep copy on another device; it takes memory on that device only. Throws as clone().
template <class M>
M replicate(const M& module, Device device) {
  return detail::deep_copy(module, std::optional(device));
}

}  // namespace weft::nn
