// The right solutions, as if learners had written them.
#include <string>

#include "weft/learn/01_allreduce/solution.h"
#include "weft/learn/02_ring_allreduce/solution.h"
#include "weft/learn/03_tree_and_doubling/reference/reference.h"
#include "weft/learn/03_tree_and_doubling/solution.h"
#include "weft/learn/04_distributed_sampler/solution.h"
#include "weft/learn/05_average_gradients/reference/reference.h"
#include "weft/learn/05_average_gradients/solution.h"
#include "weft/learn/06_overlap/reference/reference.h"
#include "weft/learn/06_overlap/solution.h"
#include "weft/learn/08_scatter_gather/solution.h"
#include "weft/learn/09_schedules/solution.h"
#include "weft/learn/10_checkpointing/solution.h"
#include "weft/learn/11_zero/reference/reference.h"
#include "weft/learn/11_zero/solution.h"
#include "weft/learn/12_fsdp_unit/reference/reference.h"
#include "weft/learn/13_parallel_linear/reference/reference.h"
#include "weft/learn/13_parallel_linear/solution.h"
#include "weft/weft.h"

namespace weft::learn {

using Tensors = std::vector<Tensor>;

void all_reduce(Messages& me, std::span<float> x) {
  comm::direct_all_reduce(me.backend(), {x.data(), std::ssize(x), DType::f32}, comm::ReduceOp::sum,
                          me.deadline());
}

void ring_all_reduce(Messages& me, std::span<float> x) {
  comm::ring_all_reduce(me.backend(), {x.data(), std::ssize(x), DType::f32}, comm::ReduceOp::sum,
                        me.deadline());
}

void tree_all_reduce(Messages& me, std::span<float> x) { reference::tree_all_reduce(me, x); }

void doubling_all_reduce(Messages& me, std::span<float> x) {
  reference::doubling_all_reduce(me, x);
}

std::vector<std::int64_t> samples_of(std::int64_t size, const Share& share) {
  data::DistributedSampler sampler(size, {.num_replicas = share.ranks,
                                          .rank = share.rank,
                                          .seed = share.seed,
                                          .drop_last = share.drop_last});
  std::vector<std::int64_t> order;
  sampler.order(std::to_string(share.seed + share.epoch), order);
  return order;
}

void average_gradients(comm::ProcessGroup& group, const Tensors& parameters) {
  reference::average_gradients(group, parameters);
}

std::function<void()> overlap(comm::ProcessGroup& group, const Tensors& parameters) {
  return reference::overlap(group, parameters);
}

Tensors scatter(const Tensor& x, const std::vector<Device>& devices) {
  return parallel::scatter(x, std::span<const Device>(devices));
}
Tensor gather(const Tensors& parts, Device device) { return parallel::gather(parts, device); }

parallel::Schedule one_f_one_b(int stages, int micro_batches) {
  return parallel::one_f_one_b(stages, micro_batches);
}

Tensor checkpoint(const Block& block, const Tensor& x) { return autograd::checkpoint(block, x); }

void zero_step(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
               Tensors& momentum, double lr) {
  reference::zero_step(group, parameters, gradients, momentum, lr);
}

void cut(comm::ProcessGroup& group, Unit& unit) { reference::cut(group, unit); }
void gather(comm::ProcessGroup& group, Unit& unit) { reference::gather(group, unit); }
void reduce(comm::ProcessGroup& group, Unit& unit) { reference::reduce(group, unit); }

Tensor column_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                       const Tensor& bias) {
  return reference::column_parallel(ranks, x, weight, bias);
}
Tensor row_parallel(const parallel::Collectives& ranks, const Tensor& x, const Tensor& weight,
                    const Tensor& bias) {
  return reference::row_parallel(ranks, x, weight, bias);
}

}  // namespace weft::learn
