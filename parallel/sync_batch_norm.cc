#include "weft/parallel/sync_batch_norm.h"

#include <any>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "sync_batch_norm";

// Values [C] shaped to broadcast over [N,C,H,W], in x's dtype.
Tensor per_channel(const Tensor& values, const Tensor& x) {
  return raw::to(raw::reshape(values, {1, values.shape(0), 1, 1}), x.dtype());
}

// Statistics over all ranks: f64 [C], and count []; undefined if no rank has a value.
struct Statistics {
  Tensor mean, var, count;
};

// Combines n values of mean m and variance v per rank. With the mean M of all values, the variance
// is the sum over the ranks of n (v + (m - M)^2), divided by the number of all values.
Statistics statistics_of_all(comm::ProcessGroup& group, const Tensor& x) {
  const std::int64_t channels = x.shape(1), values = x.shape(0) * x.shape(2) * x.shape(3);
  const TensorOptions f64(DType::f64, x.device());
  const Dims pixels = {0, 2, 3};
  const Tensor mine = zeros({2 * channels + 1}, f64);
  if (values > 0) {
    // In f64: large means, rounded to f32, would not be the same on all ranks.
    const raw::Moments m = raw::moments(kOp, x, pixels, false);
    raw::copy_(raw::narrow(mine, 0, 0, channels), raw::reshape(m.mean, m.shape));
    raw::copy_(raw::narrow(mine, 0, channels, channels),
               raw::div(raw::reshape(m.squares, m.shape), static_cast<double>(values)));
    raw::fill_(raw::narrow(mine, 0, 2 * channels, 1), static_cast<double>(values));
  }
  const Tensor all = empty({group.size(), 2 * channels + 1}, f64);
  group.all_gather(all, mine).wait();
  const Tensor means = raw::narrow(all, 1, 0, channels);
  const Tensor vars = raw::narrow(all, 1, channels, channels);
  const Tensor counts = raw::narrow(all, 1, 2 * channels, 1);
  Statistics s;
  s.count = raw::sum(counts);
  if (values <= 1) {  // else there are enough, and the host need not wait for the device
    const double total = s.count.item<double>();
    WEFT_CHECK(total != 1, Shape, kOp,
               "expected more than 1 value per channel when training, all ranks together have 1; "
               "here x ",
               x.shape());
    if (total == 0) return {};
  }
  const Tensor shares = raw::div(counts, s.count);
  s.mean = raw::sum(raw::mul(means, shares), {0});
  const Tensor deviations = raw::sub(means, s.mean);
  s.var = raw::sum(raw::mul(raw::add(vars, raw::mul(deviations, deviations)), shares), {0});
  return s;
}

struct SyncBatchNorm : autograd::Function<SyncBatchNorm> {
  static constexpr bool nests_backward = false;

  struct Saved {
    std::shared_ptr<comm::ProcessGroup> group;
    Tensor count;
    bool affine;
  };

  static Tensor forward(autograd::Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, const std::shared_ptr<comm::ProcessGroup>& group,
                        const Statistics& all, double eps) {
    const raw::NormResult result = raw::batch_norm(
        x, weight, bias, {raw::to(all.mean, x.dtype()), raw::to(all.var, x.dtype()), {}},
        {.eps = eps, .training = false});
    std::vector<Tensor> saved = {x, result.mean, result.invstd};
    if (weight.defined()) saved.push_back(weight);
    ctx.save_for_backward(saved);
    ctx.data = Saved{group, all.count, weight.defined()};
    return result.y;
  }

  // The gradient of batch norm with constant statistics, plus the part that goes through the
  // statistics:
  //   grad_x = weight invstd (g - sum g / n - d invstd^2 sum(g d) / n),  d = x - mean
  // with the sums over all ranks; grad_bias = sum g and grad_weight = invstd sum(g d) are this
  // rank's, as the other parameters' gradients.
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const auto& [group, count, affine] = std::any_cast<const Saved&>(ctx.data);
    const Tensor x = ctx.saved(0), mean = ctx.saved(1), invstd = ctx.saved(2);
    const Tensor weight = affine ? ctx.saved(3) : Tensor();
    raw::NormGradients g = raw::batch_norm_backward(grads[0], x, weight, mean, invstd, false);
    if (!ctx.needs_input_grad(0)) return {Tensor(), g.weight, g.bias};

    const Tensor sums = empty({2, x.shape(1)}, {DType::f64, x.device()});
    raw::copy_(raw::select(sums, 0, 0), g.bias);
    raw::copy_(raw::select(sums, 0, 1), g.weight);
    group->all_reduce(sums).wait();
    const Tensor means = raw::mul(raw::div(sums, count), invstd);
    const Tensor scaled = affine ? raw::mul(means, weight) : means;
    const Tensor d = raw::sub(x, per_channel(mean, x));
    raw::binary_(BinaryOp::mul, d, per_channel(raw::mul(raw::select(scaled, 0, 1), invstd), x));
    raw::add_scaled_(g.x, -1, d);
    raw::binary_(BinaryOp::sub, g.x, per_channel(raw::select(scaled, 0, 0), x));
    return {g.x, g.weight, g.bias};
  }
};

// running += momentum (batch - running)
void follow(const Tensor& running, const Tensor& batch, const Tensor& momentum) {
  const Tensor before = raw::to(running, DType::f64);
  raw::copy_(running, raw::add(before, raw::mul(raw::sub(batch, before), momentum)));
}

// weft::batch_norm in training, over the batches of all ranks.
Tensor sync_batch_norm(const std::shared_ptr<comm::ProcessGroup>& group, const Tensor& x,
                       const Tensor& weight, const Tensor& bias, const RunningStats& running,
                       const BatchNormParams& params, const BatchNormEpilogue& then) {
  const Tensor& known = weight.defined() ? weight : running.mean;
  WEFT_CHECK(x.dim() == 4 && (!known.defined() || x.shape(1) == known.numel()), Shape, kOp,
             "input: got ", x.shape(), ", expected [N,",
             known.defined() ? std::to_string(known.numel()) : "C", ",H,W]");
  if (group->size() == 1) return batch_norm(x, weight, bias, running, params, then);
  const DType computed = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto converted = [&](const Tensor& p) { return p.defined() ? p.to(computed) : p; };
  const Tensor values = x.to(computed);
  const Statistics all = statistics_of_all(*group, values);
  if (!all.count.defined()) return batch_norm(x, weight, bias, running, params, then);
  if (running.mean.defined()) {
    raw::add_(running.num_batches, 1);
    const Tensor momentum = params.cumulative
                                ? raw::div(1, raw::to(running.num_batches, DType::f64))
                                : scalar(params.momentum, {DType::f64, x.device()});
    follow(running.mean, all.mean, momentum);
    follow(running.var, raw::mul(all.var, raw::div(all.count, raw::sub(all.count, 1))), momentum);
  }
  Tensor y =
      SyncBatchNorm::apply(values, converted(weight), converted(bias), group, all, params.eps)
          .to(x.dtype());
  if (then.add.defined()) y = y + then.add;
  if (!then.negative_slope) return y;
  return *then.negative_slope == 0 ? relu(std::move(y))
                                   : leaky_relu(std::move(y), *then.negative_slope);
}

}  // namespace

void convert_sync_batchnorm(nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group) {
  WEFT_CHECK(group, InvalidArgument, "convert_sync_batchnorm", "there is no process group");
  nn::replace_batch_norms(module, "Sync",
                          [group = std::move(group)](const Tensor& x, const auto&... arguments) {
                            return sync_batch_norm(group, x, arguments...);
                          });
}

SyncBatchNorm2d::SyncBatchNorm2d(std::int64_t channels, std::shared_ptr<comm::ProcessGroup> group,
                                 const nn::BatchNormOptions& options)
    : nn::BatchNorm2d(channels, options) {
  convert_sync_batchnorm(*this, std::move(group));
}

}  // namespace weft::parallel
