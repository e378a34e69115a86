#include "weft/optim/adadelta.h"

#include "weft/core/base/error.h"
#include "weft/kernels/backend.h"

namespace weft::optim {

namespace {

const std::vector<std::string> kBuffers{"square_avg", "acc_delta", ""};

}  // namespace

Adadelta::Adadelta(std::vector<Tensor> params, const AdadeltaOptions& options)
    : Optimizer(kBuffers) {
  add(params, options);
}

Adadelta::Adadelta(std::vector<ParamGroup<AdadeltaOptions>> groups) : Optimizer(kBuffers) {
  for (const auto& g : groups) add(g.params, g.options);
}

void Adadelta::add(std::span<const Tensor> params, const AdadeltaOptions& o) {
  WEFT_CHECK(o.rho >= 0 && o.rho <= 1, InvalidArgument, "Adadelta", "rho: got ", o.rho,
             ", expected 0 to 1");
  WEFT_CHECK(o.eps >= 0 && o.weight_decay >= 0, InvalidArgument, "Adadelta",
             "eps and weight_decay must not be negative, got ", o.eps, " and ", o.weight_decay);
  add_group(params, o.lr);
  options_.push_back(o);
}

NamedNumbers Adadelta::named_options(std::size_t group) const {
  const AdadeltaOptions& o = options_[group];
  return {
      {"rho", o.rho}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"maximize", o.maximize}};
}

void Adadelta::update(const Stream& stream, DType dtype, std::size_t group, const double* lr,
                      const std::int64_t*, std::span<const OptimSlot> slots) {
  const AdadeltaOptions& o = options_[group];
  const AdadeltaParams params{lr, o.rho, o.eps, o.weight_decay, o.maximize};
  kernel(stream.device, &KernelTable::optim, &OptimKernels::adadelta, "Adadelta", dtype)(
      stream, dtype, params, slots);
}

}  // namespace weft::optim
