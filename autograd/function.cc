#include "weft/autograd/function.h"

#include <algorithm>
#include <utility>

#include "weft/autograd/description.h"
#include "weft/autograd/root_gradient.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::autograd {

void Context::save_for_backward(std::span<const Tensor> tensors) {
  WEFT_CHECK(!node_.finished_ && node_.to_save_.empty(), InvalidArgument, node_.op(),
             "save_for_backward is called once, in forward");
  node_.to_save_.assign(tensors.begin(), tensors.end());
}

Tensor Context::saved(std::int64_t i) const {
  if (node_.freed()) node_.throw_freed();
  WEFT_CHECK(i >= 0 && i < saved_count(), InvalidArgument, node_.op(), "saved(", i,
             "): ", saved_count(), " tensors were saved");
  if (!node_.finished_) return node_.to_save_[i];
  const SavedTensor& saved = node_.saved_[i];
  // An undefined tensor may be saved: an optional operand that was not given.
  return saved.defined() ? saved.get(node_) : Tensor();
}

int Context::saved_count() const {
  return static_cast<int>(node_.finished_ ? node_.saved_.size() : node_.to_save_.size());
}

bool Context::needs_input_grad(std::int64_t input) const {
  WEFT_CHECK(input >= 0 && input < std::ssize(node_.input_places_), InvalidArgument, node_.op(),
             "needs_input_grad(", input, "): there are ", node_.input_places_.size(),
             " tensor inputs");
  if (call_) return call_->wants(input);
  return node_.records_ && node_.needs(input);
}

FunctionNode::FunctionNode(const char* name, Backward backward, std::span<const Tensor> inputs,
                           bool nests, bool differentiable)
    : Node(name),
      backward_(backward),
      records_(recording_any(inputs)),
      differentiable_(differentiable),
      inputs_(inputs.begin(), inputs.end()) {
  if (nests) set_nests();
  input_places_.reserve(inputs.size());
  for (const Tensor& x : inputs) {
    input_places_.push_back(place_of(x));
    if (records_) add_input(x);
  }
}

void FunctionNode::finish(std::span<Tensor> outputs) {
  const auto inputs = std::exchange(inputs_, {});
  const auto to_save = std::exchange(to_save_, {});
  finished_ = true;
  if (!records_) return;
  set_outputs(static_cast<int>(outputs.size()));
  saved_.reserve(to_save.size());
  for (const Tensor& x : to_save) {
    const auto result = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const Tensor& y) { return x.defined() && y.same(x); });
    const bool is_result = result != outputs.end();
    saved_.push_back(!x.defined() ? SavedTensor()
                     : is_result  ? save_output(x, static_cast<int>(result - outputs.begin()))
                                  : save(x));
  }
  output_places_.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Tensor& y = outputs[i];
    output_places_.push_back(place_of(y));
    if (!y.defined() || !is_floating(y.dtype())) continue;
    // A result that is an input, or the result of something else, keeps that history to itself.
    if (meta_of(y)) y = raw::alias(y);
    for (const Tensor& x : inputs) {
      if (y.same(x)) y = raw::alias(y);
    }
    attach(y, intrusive_ptr<Node>(this), static_cast<int>(i));
    for (const Tensor& x : inputs) {
      if (x.defined()) mark_view(y, x);
    }
  }
}

void FunctionNode::describe(Description& d) const { d.op.clear(); }

void FunctionNode::apply(Gradients& grads) {
  Pool<Tensor> of_outputs;
  of_outputs.reserve(output_places_.size());
  for (int i = 0; i < grads.outputs(); ++i) {
    const Place& place = output_places_[i];
    of_outputs.push_back(grads.y(i).defined() ? grads.y(i)
                                              : zeros(place.shape, {place.dtype, place.device}));
    make_own(of_outputs.back());
  }
  Context context(*this, data_, &grads);
  std::vector<Tensor> results = backward_(context, of_outputs);
  WEFT_CHECK(results.size() == input_places_.size(), InvalidArgument, op(), "backward returned ",
             results.size(), " gradients for ", input_places_.size(), " tensor inputs");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int input = static_cast<int>(i);
    if (!results[i].defined() || !grads.wants(input)) continue;
    const Place& place = input_places_[i];
    WEFT_CHECK(results[i].shape() == place.shape, Shape, op(), "backward's gradient ", i, ": got ",
               results[i].shape(), ", the input is ", place.shape);
    WEFT_CHECK(results[i].dtype() == place.dtype, Dtype, op(), "backward's gradient ", i, ": got ",
               results[i].dtype(), ", the input is ", place.dtype);
    WEFT_CHECK(results[i].device() == place.device, Device, op(), "backward's gradient ", i,
               " is on ", results[i].device(), ", the input on ", place.device);
    grads.set(input, std::move(results[i]));
  }
}

}  // namespace weft::autograd
