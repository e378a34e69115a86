#include "weft/optim/adam.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/kernels/backend.h"

namespace weft::optim {

namespace {

AdamOptions to_adam(const AdamWOptions& o) {
  return {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.amsgrad, o.maximize};
}

template <class Options>
bool any_amsgrad(const std::vector<ParamGroup<Options>>& groups) {
  return std::ranges::any_of(groups, [](const auto& g) { return g.options.amsgrad; });
}

}  // namespace

Adam::Adam(std::vector<Tensor> params, const AdamOptions& options) : Adam(options.amsgrad) {
  add(params, options, false);
}

Adam::Adam(std::vector<ParamGroup<AdamOptions>> groups) : Adam(any_amsgrad(groups)) {
  for (const auto& g : groups) add(g.params, g.options, false);
}

AdamW::AdamW(std::vector<Tensor> params, const AdamWOptions& options) : Adam(options.amsgrad) {
  add(params, to_adam(options), true);
}

AdamW::AdamW(std::vector<ParamGroup<AdamWOptions>> groups) : Adam(any_amsgrad(groups)) {
  for (const auto& g : groups) add(g.params, to_adam(g.options), true);
}

void Adam::add(std::span<const Tensor> params, const AdamOptions& o, bool decoupled) {
  const char* name = decoupled ? "AdamW" : "Adam";
  const auto is_rate = [](double beta) { return beta >= 0 && beta < 1; };
  WEFT_CHECK(is_rate(o.beta1) && is_rate(o.beta2), InvalidArgument, name,
             "betas must be in [0, 1), got ", o.beta1, " and ", o.beta2);
  WEFT_CHECK(o.eps >= 0 && o.weight_decay >= 0, InvalidArgument, name,
             "eps and weight_decay must not be negative, got ", o.eps, " and ", o.weight_decay);
  add_group(params, o.lr, o.beta1);
  options_.push_back(o);
  decoupled_ = decoupled;
}

void Adam::check_momentum(double beta1) const {
  WEFT_CHECK(beta1 >= 0 && beta1 < 1, InvalidArgument, decoupled_ ? "AdamW" : "Adam",
             "beta1 must be in [0, 1), got ", beta1);
}

NamedNumbers Adam::named_options(std::size_t group) const {
  const AdamOptions& o = options_[group];
  return {{"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"decoupled_weight_decay", decoupled_},
          {"amsgrad", o.amsgrad},
          {"maximize", o.maximize}};  // beta1 is the momentum
}

void Adam::update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                  const std::int64_t* step, std::span<const OptimSlot> slots) {
  const AdamOptions& o = options_[group];
  const AdamParams params{lr,         step,      momentum(group), o.beta2, o.eps, o.weight_decay,
                          decoupled_, o.amsgrad, o.maximize};
  kernel(stream.device, &KernelTable::optim, &OptimKernels::adam, "Adam", dtype)(stream, dtype,
                                                                                 params, slots);
}

}  // namespace weft::optim
