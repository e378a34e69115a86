#include "weft/optim/rmsprop.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/kernels/backend.h"

namespace weft::optim {

namespace {

std::vector<std::string> buffer_names(bool momentum, bool centered) {
  return {"square_avg", momentum ? "momentum_buffer" : "", centered ? "grad_avg" : ""};
}

template <class Has>
bool any_of(const std::vector<ParamGroup<RMSpropOptions>>& groups, Has has) {
  return std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return has(g.options); });
}

}  // namespace

RMSprop::RMSprop(std::vector<Tensor> params, const RMSpropOptions& options)
    : Optimizer(buffer_names(options.momentum != 0, options.centered)) {
  add(params, options);
}

RMSprop::RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups)
    : Optimizer(buffer_names(any_of(groups, [](const auto& o) { return o.momentum != 0; }),
                             any_of(groups, [](const auto& o) { return o.centered; }))) {
  for (const auto& g : groups) add(g.params, g.options);
}

void RMSprop::add(std::span<const Tensor> params, const RMSpropOptions& o) {
  WEFT_CHECK(o.alpha >= 0 && o.eps >= 0 && o.weight_decay >= 0 && o.momentum >= 0, InvalidArgument,
             "RMSprop", "alpha, eps, weight_decay and momentum must not be negative, got ", o.alpha,
             ", ", o.eps, ", ", o.weight_decay, " and ", o.momentum);
  add_group(params, o.lr, keeps(1) ? std::optional(o.momentum) : std::nullopt);
  options_.push_back(o);
}

NamedNumbers RMSprop::named_options(std::size_t group) const {
  const RMSpropOptions& o = options_[group];
  return {{"alpha", o.alpha},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"centered", o.centered},
          {"maximize", o.maximize}};
}

void RMSprop::update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                     const std::int64_t*, std::span<const OptimSlot> slots) {
  const RMSpropOptions& o = options_[group];
  const RmspropParams params{lr,         o.alpha,   o.eps, o.weight_decay, momentum(group),
                             o.centered, o.maximize};
  kernel(stream.device, &KernelTable::optim, &OptimKernels::rmsprop, "RMSprop", dtype)(
      stream, dtype, params, slots);
}

}  // namespace weft::optim
