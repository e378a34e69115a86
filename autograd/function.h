// User-defined operations with a backward rule of their own, as torch.autograd.Function.
//
//   struct MyExp : autograd::Function<MyExp> {
//     static Tensor forward(autograd::Context& ctx, const Tensor& x) {
//       Tensor y = exp(x);
//       ctx.save_for_backward({y});
//       return y;
//     }
//     static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
//       return {grads[0] * ctx.saved(0)};
//     }
//   };
//   Tensor y = MyExp::apply(x);
#pragma once

#include <any>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/graph.h"
#include "weft/tensor/tree.h"

namespace weft::autograd {

class FunctionNode;

/// Carries data from forward to backward, as PyTorch's ctx.
class Context {
 public:
  /// Keeps inputs or results for backward. They are checked for in-place changes and freed with the
  /// tape. To be called once, in forward; else InvalidArgument.
  void save_for_backward(std::span<const Tensor> tensors);
  void save_for_backward(std::initializer_list<Tensor> tensors) {
    save_for_backward(std::span(tensors.begin(), tensors.size()));
  }
  /// The i-th saved tensor, in backward without history. Throws InvalidArgument if it was freed or
  /// changed in place, or if there is no i-th.
  Tensor saved(std::int64_t i) const;
  int saved_count() const;
  /// Whether dL/d(this tensor input) will be used; if not, backward may return an undefined tensor
  /// for it. For forward and backward.
  bool needs_input_grad(std::int64_t input) const;

  /// Anything else that backward needs. All calls of backward share it: if several threads use one
  /// retained tape, backward may only read it.
  std::any& data;

 private:
  friend class FunctionNode;
  Context(FunctionNode& node, std::any& data_of_node, const Gradients* call)
      : data(data_of_node), node_(node), call_(call) {}

  FunctionNode& node_;
  const Gradients* call_;  // null in forward
};

/// The recorded call of a Function.
class FunctionNode final : public Node {
 public:
  using Backward = std::vector<Tensor> (*)(Context&, std::span<const Tensor>);

  /// `nests`: backward() may start a backward of its own.
  /// `differentiable`: backward() is made of recorded operations.
  FunctionNode(const char* name, Backward backward, std::span<const Tensor> inputs, bool nests,
               bool differentiable);

  /// The context that forward gets.
  Context context() { return Context(*this, data_, nullptr); }
  /// Puts the results on the tape if an input requires a gradient.
  void finish(std::span<Tensor> outputs);
  void apply(Gradients& grads) override;
  bool differentiable() const override { return differentiable_; }
  void describe(Description& d) const override;

 private:
  friend class Context;
  struct Place {
    Shape shape;
    DType dtype = DType::f32;
    Device device;
  };
  template <class T>
  using Pool = std::vector<T, PoolAllocator<T>>;

  static Place place_of(const Tensor& x) {
    return x.defined() ? Place{x.shape(), x.dtype(), x.device()} : Place{};
  }
  void release_saved() override { saved_.clear(); }

  Backward backward_;
  std::any data_;
  bool records_, differentiable_;
  bool finished_ = false;
  Pool<Tensor> inputs_;   // until finish(): a result may be one of them
  Pool<Tensor> to_save_;  // until finish()
  Pool<SavedTensor> saved_;
  Pool<Place> input_places_, output_places_;
};

namespace detail {

using TensorList = std::vector<Tensor, PoolAllocator<Tensor>>;

template <class T>
const char* name_of_function() {
  static const std::string& name = *new std::string(weft::detail::type_name<T>());
  return name.c_str();
}

template <class Derived>
constexpr bool nests() {
  if constexpr (requires { Derived::nests_backward; }) {
    return Derived::nests_backward;
  } else {
    return true;
  }
}

template <class Derived>
constexpr bool differentiable() {
  if constexpr (requires { Derived::differentiable_backward; }) {
    return Derived::differentiable_backward;
  } else {
    return false;
  }
}

}  // namespace detail

/// Derived defines two static functions:
///   Result forward(Context&, args...)
///   std::vector<Tensor> backward(Context&, std::span<const Tensor> grads)
/// Every tensor among args is an input, also inside a structure that tensor/tree.h walks. Every
/// tensor in Result is a result; Result is a Tensor or such a structure. Other arguments are passed
/// on as they are. backward gets dL/d(result) for each result (zeros if there is no gradient) and
/// returns dL/d(input) for each input (undefined means zero), both in the order of the walk. A
/// wrong number of gradients throws InvalidArgument; one that does not match its input throws
/// Shape, Dtype or Device.
///
/// Both functions run without recording. Use EnableGrad to record inside backward, for example to
/// recompute. If backward never starts an autograd::backward(), declare
///   static constexpr bool nests_backward = false;
/// so that final leaf hooks need not wait for it. If it computes with recorded operations alone
/// (not those of raw::), and from its arguments and saved inputs and results alone, declare
///   static constexpr bool differentiable_backward = true;
/// so that it may run where GradOptions::create_graph asks for a second derivative. It then records
/// there, and ctx.saved() has its history.
template <class Derived>
struct Function {
  template <class... Args>
  static auto apply(Args&&... args) {
    detail::TensorList inputs, outputs;
    (for_each_tensor(args, [&](const Tensor& x) { inputs.push_back(x); }), ...);
    const auto node = make_intrusive<FunctionNode>(
        detail::name_of_function<Derived>(), &Derived::backward, inputs, detail::nests<Derived>(),
        detail::differentiable<Derived>());
    auto result = [&] {
      const Scoped no_grad(&ThreadState::grad_enabled, false);
      Context context = node->context();
      return Derived::forward(context, std::forward<Args>(args)...);
    }();
    for_each_tensor(result, [&](Tensor& y) { outputs.push_back(std::move(y)); });
    node->finish(outputs);
    for_each_tensor(result, [at = outputs.begin()](Tensor& y) mutable { y = std::move(*at++); });
    return result;
  }
};

}  // namespace weft::autograd
