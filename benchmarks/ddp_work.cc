#include "weft/benchmarks/ddp_work.h"

#include <type_traits>
#include <utility>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/resnet.h"
#include "weft/nn/loss.h"
#include "weft/optim/adam.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/distributed_data_parallel.h"
#include "weft/tensor/ops.h"

namespace weft::bench {
namespace {

using parallel::DistributedDataParallelOptions;

parallel::Reduction reduce_later(comm::ProcessGroup& group, const Tensor& gradients) {
  raw::mul_(gradients, 1.0 / group.size());
  parallel::Reduction reduction;
  reduction.finish = [&group, gradients] { group.all_reduce(gradients).wait(); };
  return reduction;
}

template <class Optimizer, class Model, class OptimizerOptions, class Loss>
class DdpStep final : public DdpWork {
 public:
  DdpStep(Model model, const OptimizerOptions& optimizer, Loss loss, const WorkSpec& spec,
          std::shared_ptr<comm::ProcessGroup> group, const DdpWorkOptions& options)
      : optimizer_(model.parameters(), optimizer),
        ddp_(std::move(model), std::move(group),
             {.bucket_cap_mb = options.bucket_cap_mb,
              .comm_hook = options.overlap ? parallel::CommHook() : reduce_later}),
        loss_(std::move(loss)),
        data_(batches(spec.images, spec.classes, spec.count)) {}

  void step() override {
    const auto& [x, label] = data_[at_++ % data_.size()];
    optimizer_.zero_grad();
    loss_(ddp_, x, label).backward();
    optimizer_.step();
  }

  const parallel::ReducerStats& stats() const override { return ddp_.stats(); }

 private:
  Optimizer optimizer_;
  parallel::DistributedDataParallel<Model> ddp_;
  Loss loss_;
  std::vector<std::pair<Tensor, Tensor>> data_;
  std::size_t at_ = 0;
};

}  // namespace

std::unique_ptr<DdpWork> make_ddp_work(const WorkSpec& spec,
                                       std::shared_ptr<comm::ProcessGroup> group,
                                       const DdpWorkOptions& options) {
  manual_seed(0);
  const auto make = [&]<class Optimizer>(auto model, const auto& optimizer,
                                         auto loss) -> std::unique_ptr<DdpWork> {
    using Step = DdpStep<Optimizer, decltype(model), std::remove_cvref_t<decltype(optimizer)>,
                         decltype(loss)>;
    return std::make_unique<Step>(model, optimizer, loss, spec, group, options);
  };
  if (spec.model == "autoencoder") {
    return make.operator()<optim::Adam>(
        examples::Autoencoder(), optim::AdamOptions(),
        [](auto& ddp, const Tensor& x, const Tensor&) { return nn::mse_loss(ddp(x).first, x); });
  }
  WEFT_CHECK(spec.model == "resnet", InvalidArgument, "bench", spec.name,
             " is not timed by several ranks; autoencoder and resnet50 are");
  return make.operator()<optim::SGD>(
      examples::resnet(spec.depth, {.num_classes = spec.classes}),
      optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4},
      [](auto& ddp, const Tensor& x, const Tensor& label) {
        return nn::cross_entropy(ddp(x), label);
      });
}

}  // namespace weft::bench
