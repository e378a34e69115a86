// The results of a pipeline's last stage for a whole batch: the way without a loss. With a tape
// their backward runs the rest of the schedule.
#include <algorithm>
#include <any>
#include <cstddef>
#include <iterator>
#include <utility>

#include "weft/autograd/function.h"
#include "weft/autograd/grad.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/pipeline_batch.h"
#include "weft/parallel/pipeline_ranks.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

using TensorList = std::vector<Tensor>;
using Kind = Action::Kind;

namespace {

constexpr const char* kOp = "pipeline";

// Puts a forward on the tape; its backward rule runs the backwards of the schedule.
struct Apply : autograd::Function<Apply> {
  static TensorList forward(autograd::Context& ctx, const TensorList& /*inputs*/,
                            const Tensor& /*records*/,
                            const std::shared_ptr<PipelineBatch>& batch) {
    ctx.data = batch;
    return batch->forward();
  }
  static TensorList backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    TensorList of_inputs =
        std::any_cast<const std::shared_ptr<PipelineBatch>&>(ctx.data)->backward(grads);
    of_inputs.emplace_back();
    return of_inputs;
  }
};

}  // namespace

TensorList Pipeline::operator()(std::span<const Tensor> inputs) {
  const bool records = thread_state().grad_enabled;
  WEFT_CHECK(!records || !(ranks_ || replicas_), Unsupported, kOp,
             "among several ranks a batch with gradients goes by step(), with its loss; without "
             "them call it in the scope of a NoGrad");
  const auto begin = [&] {
    const std::int64_t rows = rows_of("input", inputs, {});
    try_stages(inputs, rows);
    return std::make_shared<PipelineBatch>(state_, inputs, rows);
  };
  if (!records) {
    return or_abort([&] {
      const auto batch = begin();
      return ranks_ ? ranks_->forward(*batch) : batch->forward();
    });
  }
  const auto batch = begin();
  // Parameters inside may need gradients even if no input does.
  const Tensor leaf = zeros({0}, {DType::f32, devices().back()}).set_requires_grad();
  return Apply::apply(TensorList(inputs.begin(), inputs.end()), leaf, batch);
}

Tensor Pipeline::operator()(const Tensor& x) {
  TensorList outputs = (*this)({&x, 1});
  WEFT_CHECK(outputs.size() == 1, InvalidArgument, kOp, "the last stage gave ", outputs.size(),
             " tensors, expected one: call it with a list");
  return std::move(outputs[0]);
}

TensorList PipelineBatch::forward() {
  run([](Kind kind) {
    return kind == Kind::forward || kind == Kind::send_activation ||
           kind == Kind::receive_activation;
  });
  return joined_outputs();
}

TensorList PipelineBatch::joined_outputs() {
  TensorList whole;
  const std::size_t count = cells_.back()[0]->outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    TensorList parts;
    std::vector<std::int64_t>& rows = output_rows_.emplace_back();
    for (const auto& cell : cells_.back()) {
      const Tensor& part = cell->outputs[i];
      WEFT_CHECK(part.defined(), InvalidArgument, kOp, "result ", i,
                 " of the last stage is undefined; a batch is put together of tensors");
      parts.push_back(raw::alias(part));
      rows.push_back(part.dim() == 0 ? -1 : part.shape(0));
    }
    whole.push_back(parts[0].dim() == 0 ? raw::stack(parts, 0) : raw::cat(parts, 0));
  }
  for (const auto& cell : cells_.back()) {
    if (cell->recomputed) cell->outputs.clear();
  }
  return whole;
}

TensorList PipelineBatch::backward(std::span<const Tensor> grads) {
  WEFT_CHECK(!std::exchange(used_, true), InvalidArgument, kOp,
             "an earlier backward freed what the stages had kept; run the forward again");
  for (std::size_t i = 0; i < grads.size(); ++i) {
    std::int64_t begin = 0;
    for (std::size_t m = 0; m < sizes_.size(); ++m) {
      const std::int64_t rows = output_rows_[i][m];
      TensorList& own = cells_.back()[m]->grads;
      if (!grads[i].defined()) {
        own.emplace_back();
      } else if (rows < 0) {
        own.push_back(raw::select(grads[i], 0, static_cast<std::int64_t>(m)));
      } else {
        own.push_back(raw::narrow(grads[i], 0, begin, rows));
      }
      begin += std::max<std::int64_t>(rows, 0);
    }
  }
  run([](Kind kind) { return kind != Kind::forward; });
  TensorList whole;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    TensorList parts;
    for (const TensorList& of_part : input_grads_) parts.push_back(of_part[i]);
    if (std::ranges::none_of(parts, &Tensor::defined)) {
      whole.emplace_back();
      continue;
    }
    for (std::size_t m = 0; m < parts.size(); ++m) {  // a micro-batch may not have used this input
      if (parts[m].defined()) continue;
      Shape shape = inputs_[i].shape();
      if (!shape.empty()) shape[0] = sizes_[m];
      parts[m] = zeros(shape, {inputs_[i].dtype(), state_->device(0)});
    }
    whole.push_back(
        raw::to(inputs_[i].dim() == 0 ? sum_of(parts) : raw::cat(parts, 0), inputs_[i].device()));
  }
  return whole;
}

void PipelineBatch::grad_of_inputs(const TensorList& outputs, const TensorList& grads,
                                   const TensorList& inputs) {
  TensorList wanted;
  std::ranges::copy_if(inputs, std::back_inserter(wanted),
                       [](const Tensor& x) { return x.defined() && x.requires_grad(); });
  if (outputs.empty() || wanted.empty()) return;
  const TensorList results = autograd::grad(outputs, wanted, grads, {.allow_unused = true});
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i].set_grad(results[i]);
}

}  // namespace weft::parallel
