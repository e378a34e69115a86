#include "weft/parallel/horovod.h"

#include <locale>
#include <sstream>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/same_model.h"
#include "weft/parallel/tensor_layout.h"
#include "weft/tensor/creation.h"

namespace weft::parallel {
namespace {

constexpr const char* kOp = "horovod";

std::string layouts_of(const optim::NamedTensors& tensors) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const auto& [name, x] : tensors) out << TensorLayout{name, x.dtype(), x.shape()};
  return out.str();
}

optim::NamedTensors tensors_of(const std::string& layouts) {
  optim::NamedTensors tensors;
  std::istringstream in(layouts);
  in.imbue(std::locale::classic());
  for (TensorLayout layout; in >> layout;) {
    tensors.emplace_back(layout.name, empty(layout.shape, {layout.dtype, Device()}));
  }
  return tensors;
}

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
  const bool is_root = rank() == root_rank;
  optim::NamedTensors state = is_root ? optimizer.state_dict() : optim::NamedTensors();
  const std::string layouts = group_->broadcast_object(layouts_of(state), root_rank);
  // In host memory on all sides; load_state_dict() takes it to the parameters.
  if (!is_root) state = tensors_of(layouts);
  for (auto& [name, x] : state) x = x.to(Device());
  broadcast_coalesced(*group_, values_of(state), root_rank);
  if (!is_root) optimizer.load_state_dict(state);
}

Horovod horovod_init(const comm::InitOptions& init, HorovodOptions options) {
  const std::shared_ptr<comm::ProcessGroup> group = comm::init_process_group(init);
  if (!options.local_rank && init.init_method == "env://") {
    options.local_rank = comm::launch_environment().local_rank;
  }
  return Horovod(group, options);
}

}  // namespace weft::parallel
