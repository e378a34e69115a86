#include "weft/nn/forward_hooks.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/nn/module.h"
#include "weft/nn/module_node.h"

namespace weft::nn {

namespace detail {

/// One of the functions is set, the others are empty.
struct Hook {
  ForwardPreHook before = {};
  ForwardHook after = {};
  ForwardErrorHook after_error = {};
  bool wants_args = false;
};

namespace {

// Calls f, which may replace tensors, and returns whether it has. The call's own arguments or
// result keep the old tensors alive, so comparing addresses is enough.
template <class F>
bool replaced_by(std::span<Tensor> tensors, const F& f) {
  std::vector<const TensorImpl*> before;
  for (const Tensor& x : tensors) before.push_back(x.impl());
  f();
  return !std::ranges::equal(tensors, before, {}, [](const Tensor& x) { return x.impl(); });
}

}  // namespace

bool run_pre_hooks(const HookList& hooks, const ModuleBase& handle, std::span<Tensor> args) {
  ModuleBase module(handle);
  return replaced_by(args, [&] {
    for (const auto& hook : hooks)
      if (hook->before) hook->before(module, args);
  });
}

bool run_hooks(const HookList& hooks, const ModuleBase& handle, std::span<const Tensor> args,
               std::span<Tensor> results) {
  ModuleBase module(handle);
  return replaced_by(results, [&] {
    for (const auto& hook : hooks)
      if (hook->after) hook->after(module, args, results);
  });
}

void run_error_hooks(const HookList& hooks, const ModuleBase& handle) noexcept {
  for (const auto& hook : hooks) {
    if (!hook->after_error) continue;
    try {
      ModuleBase module(handle);
      hook->after_error(module);
    } catch (...) {
    }
  }
}

bool want_args(const HookList& hooks) {
  return std::ranges::any_of(hooks, [](const auto& hook) { return hook->wants_args; });
}

void throw_no_place(const ModuleBase& handle, const char* where) {
  WEFT_THROW(InvalidArgument, handle.type_name(), "a hook has replaced a tensor of ", where,
             ", which is a reference or refers to others' tensors: forward must take and return "
             "values that can be copied");
}

}  // namespace detail

using detail::Hook;
using detail::HookList;

void HookHandle::remove() {
  const auto node = node_.lock();
  if (!node || !node->hooks) return;
  HookList rest;
  std::ranges::copy_if(*node->hooks, std::back_inserter(rest),
                       [&](const auto& hook) { return hook != hook_; });
  node->hooks = rest.empty() ? nullptr : std::make_shared<const HookList>(std::move(rest));
}

HookHandle ModuleBase::add_hook(std::shared_ptr<const Hook> hook, bool prepend) {
  HookList hooks = node().hooks ? *node().hooks : HookList();
  hooks.insert(prepend ? hooks.begin() : hooks.end(), hook);
  node().hooks = std::make_shared<const HookList>(std::move(hooks));
  return HookHandle(node_, std::move(hook));
}

HookHandle ModuleBase::register_forward_pre_hook(detail::NewPreHook hook, bool prepend) {
  WEFT_CHECK(hook.call, InvalidArgument, "register_forward_pre_hook", "the function is empty");
  return add_hook(std::make_shared<const Hook>(Hook{.before = std::move(hook.call)}), prepend);
}

HookHandle ModuleBase::register_forward_hook(detail::NewHook hook, bool prepend) {
  if (hook.with_args)
    return add_hook(
        std::make_shared<const Hook>(Hook{.after = std::move(hook.with_args), .wants_args = true}),
        prepend);
  WEFT_CHECK(hook.without_args, InvalidArgument, "register_forward_hook", "the function is empty");
  const auto after = [f = std::move(hook.without_args)](ModuleBase& module, std::span<const Tensor>,
                                                        std::span<Tensor> results) {
    f(module, results);
  };
  return add_hook(std::make_shared<const Hook>(Hook{.after = after}), prepend);
}

HookHandle ModuleBase::register_forward_error_hook(ForwardErrorHook hook) {
  WEFT_CHECK(hook, InvalidArgument, "register_forward_error_hook", "the function is empty");
  return add_hook(std::make_shared<const Hook>(Hook{.after_error = std::move(hook)}), false);
}

bool ModuleBase::has_forward_hooks() const { return node().hooks != nullptr; }

}  // namespace weft::nn
