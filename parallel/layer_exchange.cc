#include "weft/parallel/layer_exchange.h"

#include <algorithm>
#include <any>
#include <cmath>
#include <cstring>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/attention.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "parallelize";

using Tensors = std::span<Tensor>;

// x [.., n k, ..] -> [n, .., k, ..], and back.
Tensor parts_first(const Tensor& x, std::int64_t dim, int n) {
  const Tensor parts = x.unflatten(dim, {n, x.shape(dim) / n});
  Dims order = {dim};
  for (std::int64_t d = 0; d < parts.dim(); ++d) {
    if (d != dim) order.push_back(d);
  }
  return parts.permute(order);
}
Tensor parts_joined(const Tensor& parts, std::int64_t dim) {
  Dims order;
  for (std::int64_t d = 1; d < parts.dim(); ++d) {
    if (d == dim + 1) order.push_back(0);
    order.push_back(d);
  }
  return parts.permute(order).flatten(dim, dim + 1);
}

// The dimension of a Shard, counted from the front.
std::int64_t dim_of(const Layout& layout, const Tensor& x) {
  return normalize_dim(std::get<Shard>(layout).dim, x.dim(), kOp);
}
bool is_whole(const Layout& layout) { return std::holds_alternative<Replicate>(layout); }
// Whether the features, the last dimension, are cut.
bool cuts_features(const Layout& layout, const Tensor& x) {
  return !is_whole(layout) && dim_of(layout, x) == x.dim() - 1;
}

// Calls `there` with the arguments, and `back` with the results.
template <class There, class Back>
void on_call(nn::ModuleBase module, There there, Back back) {
  module.register_forward_pre_hook([there](nn::ModuleBase&, Tensors args) { there(args); });
  module.register_forward_hook([back](nn::ModuleBase&, Tensors results) { back(results); }, true);
}

// Adds the hook even if the parameter is frozen now.
template <class Hook>
void add_hook(const Tensor& parameter, Hook hook) {
  const bool trained = parameter.requires_grad();
  parameter.set_requires_grad(true);
  autograd::add_grad_hook(parameter, std::move(hook));
  parameter.set_requires_grad(trained);
}

}  // namespace

// --- Exchanges -----------------------------------------------------------------------------------

Tensor LayerExchange::whole_input(const Tensor& x, const Layout& layout) const {
  if (is_whole(layout)) return ranks.copy_to(x);
  return parts_joined(ranks.all_gather(x), dim_of(layout, x));
}

Tensor LayerExchange::sum(const std::string& name, const Tensor& y, const Layout& layout) const {
  if (is_whole(layout)) return ranks.reduce_from(y);
  const std::int64_t dim = dim_of(layout, y);
  const int n = group->size();
  WEFT_CHECK(dim < y.dim() - 1 && y.shape(dim) % n == 0, Shape, kOp, name, "'s result ", y.shape(),
             " cannot be ", to_string(layout),
             ": expected another dimension than the last one, which divides into ", n,
             " parts, one for each rank");
  return ranks.reduce_scatter(parts_first(y, dim, n));
}

void LayerExchange::column(const PartLayer& layer) {
  const nn::Cut& rows = layer.parameters[0].second;
  const auto self = shared_from_this();
  on_call(
      layer.module,
      [self, name = layer.name, input = layer.input, features = rows.whole[1]](Tensors args) {
        self->check_argument(name, input, features, args[0]);
        args[0] = self->whole_input(args[0], input);
      },
      [self, name = layer.name, output = layer.output, rows](Tensors results) {
        Tensor& y = results[0];
        if (is_whole(output)) {
          const std::int64_t most = rows.rows_of(0).count;
          if (y.shape(-1) < most) y = pad(y, {0, most - y.shape(-1)});
          y = self->ranks.gather_from(y, -1);
          if (y.shape(-1) > rows.whole[0]) y = y.narrow(-1, 0, rows.whole[0]);
        }
        self->last_ = {name, output, y.shape()};
      });
}

void LayerExchange::heads(const PartLayer& layer) {
  std::any_cast<nn::AttentionHeads&>(layer.module.shared_state()).part = drawn(-3);
  const auto self = shared_from_this();
  on_call(
      layer.module,
      [self, name = layer.name, input = layer.input,
       features = layer.parameters[0].second.whole[1]](Tensors args) {
        const std::vector<Tensor> before(args.begin(), args.end());
        for (std::size_t i = 0; i < args.size(); ++i) {
          const auto same = [&](const Tensor& x) { return x.same(before[i]); };
          const auto k =
              static_cast<std::size_t>(std::ranges::find_if(before, same) - before.begin());
          if (k < i) {
            args[i] = args[k];  // a tensor that attends to itself stays one tensor
            continue;
          }
          self->check_argument(name, input, features, args[i]);
          args[i] = self->whole_input(args[i], input);
        }
      },
      [self, name = layer.name, output = layer.output](Tensors results) {
        WEFT_CHECK(results.size() < 2 || !results[1].defined(), Unsupported, kOp, name,
                   " has only this rank's heads: their weights cannot be returned; call it with "
                   ".need_weights = false");
        self->last_ = {name, output, results[0].shape()};
      });
}

void LayerExchange::row(const PartLayer& layer) {
  const auto self = shared_from_this();
  on_call(
      layer.module,
      [self, name = layer.name, input = layer.input,
       features = layer.parameters[0].second.whole[1]](Tensors args) {
        self->check_argument(name, input, features, args[0]);
        if (is_whole(input)) args[0] = self->ranks.split_to(args[0], -1);
      },
      // Adds the bias after the sum; the module's own bias is zeros.
      [self, name = layer.name, output = layer.output,
       bias = own_parameter(layer.module, "bias")](Tensors results) {
        Tensor& y = results[0];
        y = self->sum(name, y, output);
        // A part of the sequence gives a part of the bias's gradient; copy_to() sums these.
        if (bias.defined()) {
          y = y + (is_whole(output) ? bias : self->ranks.copy_to(bias)).to(y.dtype());
        }
        self->last_ = {name, output, y.shape()};
      });
}

// Looks up the words of this rank's rows; other words look up row 0, and then become zeros.
void LayerExchange::words(const PartLayer& layer) {
  const nn::Cut& rows = layer.parameters[0].second;
  const auto [first, count] = rows.rows_of(group->rank());
  struct Call {
    Tensor others;
    Shape shape;
  };
  const auto call = std::make_shared<Call>();
  const auto self = shared_from_this();
  on_call(
      layer.module,
      [=, name = layer.name, all = rows.whole[0]](Tensors args) {
        self->check_argument(name, Replicate{}, 0, args[0]);
        const Tensor index = args[0].to(DType::i64);
        const auto low = static_cast<double>(first), high = static_cast<double>(first + count);
        const Tensor wrong = (index < 0) | (index >= static_cast<double>(all));
        WEFT_CHECK(!index.device().is_cpu() || !wrong.any().item<bool>(), InvalidArgument, kOp,
                   name, " has ", all, " rows, and an index is none of them");
        *call = {(index < low) | (index >= high), index.shape()};
        if (count == 0) {
          args[0] = empty({0}, {DType::i64, index.device()});
        } else {  // on CUDA the lookup itself reports a wrong index
          args[0] = where(wrong, index, where(call->others, 0, index - low));
        }
      },
      [=, name = layer.name, output = layer.output](Tensors results) {
        Tensor& y = results[0];
        if (count == 0) {  // the zero sum makes it depend on the weight, as elsewhere
          call->shape.push_back(y.shape(-1));
          y = zeros(call->shape, {y.dtype(), y.device()}) + y.sum();
        } else {
          y = masked_fill(y, std::exchange(call->others, {}).unsqueeze(-1), 0);
        }
        y = self->sum(name, y, output);
        self->last_ = {name, output, y.shape()};
      });
}

void LayerExchange::sequence(const PartLayer& layer) {
  const auto self = shared_from_this();
  for (const auto& [path, module] : layer.module.named_modules()) {
    if (module.type_name() == "Dropout") {
      module.shared_state() = drawn(std::get<Shard>(layer.input).dim);
    }
  }
  for (const auto& [parameter, cut] : layer.parameters) {
    add_hook(parameter, [self](const Tensor& grad) {
      const NoGrad no_grad;
      return self->ranks.all_reduce(grad);
    });
  }
  on_call(
      layer.module,
      [self, name = layer.name, layout = layer.input](Tensors args) {
        if (!args.empty() && args[0].defined()) self->check_argument(name, layout, 0, args[0]);
      },
      [self, name = layer.name, layout = layer.output](Tensors results) {
        if (results.empty() || !results[0].defined()) return;
        self->last_ = {name, layout, results[0].shape()};
      });
}

void LayerExchange::attach(const PartLayer& layer) {
  switch (layer.kind) {
    case PartLayer::Kind::column: return column(layer);
    case PartLayer::Kind::heads: return heads(layer);
    case PartLayer::Kind::row: return row(layer);
    case PartLayer::Kind::words: return words(layer);
    case PartLayer::Kind::sequence: return sequence(layer);
    case PartLayer::Kind::dropout:
      layer.module.shared_state() = drawn(std::get<Shard>(layer.input).dim);
  }
}

// --- Comparisons ---------------------------------------------------------------------------------

LayerExchange::Fingerprint LayerExchange::fingerprint_of(const Tensor& tensor) {
  constexpr std::int64_t kMost = 4096;
  const NoGrad no_grad;
  const Tensor x = tensor.detach().flatten();
  const std::int64_t step = std::max<std::int64_t>(1, x.numel() / kMost);
  const Tensor some = x.slice(0, 0, x.numel(), step).to(Device(), DType::f64);
  Generator generator(1);
  Fingerprint result = {};
  result[0] = is_floating(x.dtype()) ? x.norm().item<double>() : 0;
  result[1] = some.norm().item<double>();
  for (std::size_t i = 2; i < result.size(); ++i) {
    const Tensor direction = uniform(some.shape(), -1, 1, {DType::f64, Device()}, &generator);
    result[i] = (some * direction).sum().item<double>();
  }
  return result;
}

// Rounding changes a projection by less than 1 percent of the norm, other values some by more.
bool LayerExchange::alike(const Fingerprint& a, const Fingerprint& b, double slack) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool finite = std::isfinite(a[i]);
    if (finite != std::isfinite(b[i])) return false;
    const std::size_t norm = std::min<std::size_t>(i, 1);
    const double most = 0.01 * std::max(a[norm], b[norm]) + slack;
    if (finite && std::abs(a[i] - b[i]) > most) return false;
  }
  return true;
}

// The fingerprints of all ranks, in the order of the ranks.
std::vector<LayerExchange::Fingerprint> LayerExchange::gathered(
    std::span<const Fingerprint> own) const {
  const std::string_view mine(reinterpret_cast<const char*>(own.data()), own.size_bytes());
  std::vector<Fingerprint> result;
  for (const std::string& bytes : group->all_gather_object(mine)) {
    std::vector<Fingerprint> theirs(bytes.size() / sizeof(Fingerprint));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    result.insert(result.end(), theirs.begin(), theirs.end());
  }
  return result;
}

void LayerExchange::check_argument(const std::string& name, const Layout& layout,
                                   std::int64_t features, const Tensor& x) {
  if (group->size() == 1) return;
  const std::string before = last_ ? "; the layer of the plan before it, " + last_->name +
                                         ", gives " + to_string(last_->layout)
                                   : "";
  if (features > 0 && x.dim() > 0) {
    const std::int64_t expected = cuts_features(layout, x) ? features / group->size() : features;
    WEFT_CHECK(x.shape(-1) == expected, InvalidArgument, kOp, name, " takes ", to_string(layout),
               " with a last dimension of ", expected, ", got ", x.shape(), before);
  }
  // Compared in the first call without a tape, as in an evaluation, and the first with one.
  const std::string call = name + (thread_state().grad_enabled ? " with a tape" : "");
  if (checked_.contains(call)) return;
  const Fingerprint own = fingerprint_of(x);
  const std::vector<Fingerprint> all = gathered(std::span(&own, 1));
  const bool same =
      std::ranges::all_of(all, [&](const Fingerprint& one) { return alike(one, all[0]); });
  WEFT_CHECK(same || !is_whole(layout), InvalidArgument, kOp, name,
             " takes Replicate, but the ranks have got different tensors, here ", x.shape(), before,
             "; all ranks need the same batches, and each layer the layout that it is given");
  // Parts may happen to be equal: an error only if they are the whole result of the layer before.
  WEFT_CHECK(!same || is_whole(layout) || !last_ || !is_whole(last_->layout) ||
                 !(x.shape() == last_->shape),
             InvalidArgument, kOp, name, " takes ", to_string(layout),
             ", but all ranks have got the same tensor, ", x.shape(), before);
  checked_.insert(call);
}

void LayerExchange::watch(const std::string& name, const Tensor& parameter) {
  if (group->size() == 1) return;
  const std::size_t i = watched_.size();
  watched_.push_back({name});
  add_hook(parameter, [self = shared_from_this(), i](const Tensor& grad) {
    if (self->watched_[i].done) return Tensor();
    if (!std::exchange(self->comparing_, true)) {
      autograd::at_backward_end([self](const std::exception_ptr& error) {
        self->comparing_ = false;
        if (!error) return self->compare_gradients();
        for (Watched& one : self->watched_) one.gradient = {};
      });
    }
    // A parameter that several checkpoints use comes here several times.
    const Fingerprint more = fingerprint_of(grad);
    for (std::size_t k = 0; k < more.size(); ++k) self->watched_[i].gradient[k] += more[k];
    return Tensor();
  });
}

void LayerExchange::compare_gradients() {
  std::vector<Fingerprint> own;
  for (Watched& one : watched_) own.push_back(std::exchange(one.gradient, {}));
  const std::vector<Fingerprint> all = gathered(own);
  // Some gradients are nothing but rounding errors, such as that of a bias before a batch norm.
  double largest = 0;
  for (const Fingerprint& one : all) {
    if (std::isfinite(one[0])) largest = std::max(largest, one[0]);
  }
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    const Fingerprint& roots = all[i];
    for (std::size_t k = i; k < all.size(); k += watched_.size()) {
      WEFT_CHECK(
          alike(all[k], roots, 1e-6 * largest), InvalidArgument, kOp, "the gradient of ",
          watched_[i].name, " is another one on rank ", k / watched_.size(), ", norm ", all[k][0],
          ", than on rank 0, ", roots[0],
          ", though each has the whole parameter: its module computes with a part of what "
          "the model computes with. Name it in the plan, for example with SequenceParallel, or "
          "cut what it computes with by ranks().split_to()");
    }
    watched_[i].done = watched_[i].done || (roots[0] > 0 && std::isfinite(roots[0]));
  }
}

}  // namespace weft::parallel
