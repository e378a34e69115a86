#include "weft/optim/sgd.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/kernels/backend.h"

namespace weft::optim {

namespace {

std::vector<std::string> buffer_names(bool momentum) {
  if (momentum) return {"momentum_buffer"};
  return {};
}

}  // namespace

SGD::SGD(std::vector<Tensor> params, const SGDOptions& options)
    : Optimizer(buffer_names(options.momentum != 0)) {
  add(params, options);
}

SGD::SGD(std::vector<ParamGroup<SGDOptions>> groups)
    : Optimizer(buffer_names(std::any_of(groups.begin(), groups.end(),
                                         [](const auto& g) { return g.options.momentum != 0; }))) {
  for (const auto& g : groups) add(g.params, g.options);
}

void SGD::add(std::span<const Tensor> params, const SGDOptions& o) {
  WEFT_CHECK(o.momentum >= 0 && o.weight_decay >= 0, InvalidArgument, "SGD",
             "momentum and weight_decay must not be negative, got ", o.momentum, " and ",
             o.weight_decay);
  WEFT_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), InvalidArgument, "SGD",
             "nesterov needs momentum above 0 and dampening 0");
  add_group(params, o.lr, keeps(0) ? std::optional(o.momentum) : std::nullopt);
  options_.push_back(o);
}

NamedNumbers SGD::named_options(std::size_t group) const {
  const SGDOptions& o = options_[group];
  return {{"dampening", o.dampening},
          {"weight_decay", o.weight_decay},
          {"nesterov", o.nesterov},
          {"maximize", o.maximize}};
}

void SGD::update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                 const std::int64_t* step, std::span<const OptimSlot> slots) {
  const SGDOptions& o = options_[group];
  const SgdParams params{lr,         step,      momentum(group), o.dampening, o.weight_decay,
                         o.nesterov, o.maximize};
  kernel(stream.device, &KernelTable::optim, &OptimKernels::sgd, "SGD", dtype)(stream, dtype,
                                                                               params, slots);
}

}  // namespace weft::optim
