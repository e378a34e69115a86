#include "weft/parallel/horovod.h"

#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/named_state.h"
#include "weft/parallel/same_model.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "horovod";

std::vector<Tensor> values_of(const optim::NamedTensors& named) {
  std::vector<Tensor> tensors;
  for (const auto& [name, x] : named) tensors.push_back(x);
  return tensors;
}

}  // namespace

Horovod::Horovod(std::shared_ptr<comm::ProcessGroup> group, const HorovodOptions& options)
    : group_(std::move(group)) {
  WEFT_CHECK(group_, InvalidArgument, kOp, "there is no process group");
  collectives_ = std::make_shared<NamedCollectives>(own_group(), options.fusion_threshold,
                                                    options.stall_warning);
  local_rank_ = options.local_rank.value_or(group_->rank());
}

Horovod::Horovod(comm::ProcessGroup& group, const HorovodOptions& options)
    : Horovod(std::shared_ptr<comm::ProcessGroup>(std::shared_ptr<void>(), &group), options) {}

std::shared_ptr<comm::ProcessGroup> Horovod::own_group() const { return group_->duplicate(); }

NamedWork Horovod::allreduce_async(const std::string& name, const Tensor& x,
                                   comm::ReduceOp op) const {
  WEFT_CHECK(op != comm::ReduceOp::avg || is_floating(x.dtype()), Dtype, "allreduce", "'", name,
             "' is ", x.dtype(), ", of which there is no mean; give an op, as ReduceOp::sum");
  return {
      collectives_,
      collectives_->ask({.kind = NamedRequest::Kind::allreduce, .name = name, .op = op, .x = x})};
}

NamedWork Horovod::allgather_async(const std::string& name, const Tensor& x) const {
  WEFT_CHECK(x.dim() > 0, Shape, "allgather", "'", name,
             "' is a scalar; give a tensor of one element, [1]");
  return {collectives_,
          collectives_->ask({.kind = NamedRequest::Kind::allgather, .name = name, .x = x})};
}

void Horovod::broadcast_parameters(const optim::NamedTensors& tensors, int root_rank) const {
  std::string text = "tensors\n";
  for (const auto& [name, x] : tensors) {
    text += detail::concat(name, ' ', x.dtype(), ' ', x.shape(), '\n');
  }
  check_same_lines(*group_, "broadcast_parameters", text, "gives other tensors",
                   "Give those of the same model on every rank");
  broadcast_coalesced(*group_, values_of(tensors), root_rank);
}

void Horovod::broadcast_optimizer_state(optim::Optimizer& optimizer, int root_rank) const {
  // Every rank calls state_dict(), since a ZeroRedundancyOptimizer collects its state from all
  // ranks.
  const optim::NamedTensors state = broadcast_named(*group_, optimizer.state_dict(), root_rank);
  if (rank() != root_rank) optimizer.load_state_dict(state);
}

Horovod horovod_init(const comm::InitOptions& init, HorovodOptions options) {
  const std::shared_ptr<comm::ProcessGroup> group = comm::init_process_group(init);
  if (!options.local_rank && init.init_method == "env://") {
    options.local_rank = comm::launch_environment().local_rank;
  }
  return Horovod(group, options);
}

}  // namespace weft::parallel
