// Rows of optim/ and parallel/.
#include <memory>

#include "weft/comm/group/process_group.h"
#include "weft/nn/activation.h"
#include "weft/nn/attention.h"
#include "weft/nn/batch_norm.h"
#include "weft/nn/dropout.h"
#include "weft/nn/layer_norm.h"
#include "weft/nn/linear.h"
#include "weft/nn/sequential.h"
#include "weft/optim/adam.h"
#include "weft/optim/lr_scheduler.h"
#include "weft/optim/reduce_lr_on_plateau.h"
#include "weft/optim/rmsprop.h"
#include "weft/optim/sequential_lr.h"
#include "weft/optim/sgd.h"
#include "weft/parallel/balance.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/collectives.h"
#include "weft/parallel/context_parallel.h"
#include "weft/parallel/data_parallel.h"
#include "weft/parallel/deferred_batch_norm.h"
#include "weft/parallel/distributed_optimizer.h"
#include "weft/parallel/gradient_buckets.h"
#include "weft/parallel/horovod.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/scatter_gather.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/parallel/step_schedule.h"
#include "weft/parallel/sync_batch_norm.h"
#include "weft/parallel/tensor_parallel.h"
#include "weft/parallel/vocab_loss.h"
#include "weft/tensor/creation.h"
#include "weft/tests/sizes/sizes.h"

namespace weft::testing {
namespace {

std::vector<Tensor> parameters() { return {leaf({2})}; }

optim::SGD sgd() { return optim::SGD(parameters(), {.lr = 0.1, .momentum = 0.9}); }

/// Takes some steps from the beginning, and some from step `last_epoch` on.
template <class Scheduler>
Result run(Scheduler&& scheduler, Size last_epoch) {
  for (int i = 0; i < 3; ++i) scheduler.step();
  optim::NamedTensors state = scheduler.state_dict();
  for (auto& [name, value] : state) {
    if (name.ends_with("last_epoch")) value = from_vector(std::vector{last_epoch.value}, {});
  }
  scheduler.load_state_dict(state);
  for (int i = 0; i < 3; ++i) scheduler.step();
  return {};
}

WEFT_SIZES(
    Optimizers,
    {
        {"optim::Optimizer::parameters(group)", {{0}}, RUNS(sgd().parameters(s[0]))},
        {"optim::Optimizer::lr(group)", {{0}}, RUNS(sgd().lr(s[0]))},
        {"optim::Optimizer::set_lr(group)", {{0}}, RUNS(sgd().set_lr(s[0], 0.1))},
        {"optim::Optimizer::initial_lr(group)",
         {{0}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           optimizer.set_initial_lr(0, 0.1);
           optimizer.initial_lr(s[0]);
           return {};
         }},
        {"optim::Optimizer::set_initial_lr(group)", {{0}}, RUNS(sgd().set_initial_lr(s[0], 0.1))},
        {"optim::Optimizer::has_initial_lr(group)", {{0}}, RUNS(sgd().has_initial_lr(s[0]))},
        {"optim::Optimizer::momentum(group)", {{0}}, RUNS(sgd().momentum(s[0]))},
        {"optim::Optimizer::options(group)", {{0}}, RUNS(sgd().options(s[0]))},
        {"optim::Optimizer::set_momentum(group)", {{0}}, RUNS(sgd().set_momentum(s[0], 0.5))},
        {"optim::Optimizer::momentum(group) / Adam",
         {{0}},
         RUNS(optim::Adam(parameters()).momentum(s[0]))},
        {"optim::Optimizer::set_momentum(group) / Adam",
         {{0}},
         RUNS(optim::Adam(parameters()).set_momentum(s[0], 0.5))},
        {"optim::Optimizer::momentum(group) / RMSprop",
         {{0}},
         RUNS(optim::RMSprop(parameters(), {.momentum = 0.9}).momentum(s[0]))},
        {"optim::Optimizer::set_momentum(group) / RMSprop",
         {{0}},
         RUNS(optim::RMSprop(parameters(), {.momentum = 0.9}).set_momentum(s[0], 0.5))},
        {"optim::StepLROptions{step_size}",
         {{2}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::StepLR(optimizer, {.step_size = s[0]}), s[1]);
         }},
        {"optim::MultiStepLROptions{milestones}",
         {{2, 4}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::MultiStepLR(optimizer, {.milestones = s.list(0)}), s[1]);
         }},
        {"optim::CosineAnnealingLROptions{T_max}",
         {{2}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::CosineAnnealingLR(optimizer, {.T_max = s[0]}), s[1]);
         }},
        {"optim::CosineAnnealingWarmRestartsOptions{T_0, T_mult}",
         {{2}, {2}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::CosineAnnealingWarmRestarts(optimizer, {.T_0 = s[0], .T_mult = s[1]}),
                      s[2]);
         }},
        {"optim::LinearLROptions{total_iters}",
         {{5}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::LinearLR(optimizer, {.total_iters = s[0]}), s[1]);
         }},
        {"optim::OneCycleLROptions{total_steps}",
         {{50}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           return run(optim::OneCycleLR(optimizer, {.max_lr = {1}, .total_steps = s[0]}), s[1]);
         }},
        {"optim::ReduceLROnPlateauOptions{patience, cooldown}",
         {{1}, {1}, {1}, {1}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           optim::ReduceLROnPlateau scheduler(optimizer, {.patience = s[0], .cooldown = s[1]});
           for (int i = 0; i < 5; ++i) scheduler.step(1);
           optim::NamedTensors state = scheduler.state_dict();
           for (auto& [name, value] : state) {
             if (name == "cooldown_counter") value = from_vector(std::vector{s[2].value}, {});
             if (name == "num_bad_epochs") value = from_vector(std::vector{s[3].value}, {});
           }
           scheduler.load_state_dict(state);
           for (int i = 0; i < 5; ++i) scheduler.step(1);
           return {};
         }},
        {"optim::SequentialLROptions{milestones}",
         {{2, 4}, {7}},
         [](const Sizes& s) -> Result {
           optim::SGD optimizer = sgd();
           optim::SequentialLROptions options;
           for (int i = 0; i < 3; ++i) {
             options.schedulers.push_back(std::make_shared<optim::LinearLR>(optimizer));
           }
           options.milestones = s.list(0);
           return run(optim::SequentialLR(optimizer, std::move(options)), s[1]);
         }},
    });

/// Runs f(group) as the only rank.
template <class F>
Result alone(const F& f) {
  comm::run_ranks(1, [&](comm::ProcessGroup& group) { f(group); });
  return {};
}

nn::Sequential layers() { return {nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2)}; }

std::vector<nn::AnyModule> stages() { return {nn::Linear(2, 2), nn::Linear(2, 2)}; }
nn::AnyModule stage_of(std::size_t) { return nn::Linear(2, 2); }

const std::vector<Device> kTwice = {Device(), Device()};

WEFT_SIZES(
    Engines,
    {
        {"parallel::balanced(parts)",
         {{2}},
         [](const Sizes& s) -> Result {
           const double costs[] = {1, 2, 3};
           parallel::balanced(costs, s[0]);
           return {};
         }},
        {"parallel::layer_bytes(micro_batches)",
         {{2}},
         RUNS(parallel::layer_bytes(layers(), ramp({4, 2}), s[0], 2))},
        {"parallel::cut(sizes)",
         {{1, 2}},
         [](const Sizes& s) -> Result {
           const std::size_t sizes[] = {s(0, 0), s(0, 1)};
           parallel::cut(layers(), sizes);
           return {};
         }},
        {"parallel::GradientSize{bytes}",
         {{8}, {16}},
         [](const Sizes& s) -> Result {
           const parallel::GradientSize gradients[] = {{.bytes = s[0]}, {.bytes = s[0]}};
           const std::int64_t limits[] = {s[1]};
           parallel::plan_buckets(gradients, limits);
           return {};
         }},
        {"parallel::plan_buckets(limits, order)",
         {{8, 16}, {0, 1, 2}},
         [](const Sizes& s) -> Result {
           const std::vector<parallel::GradientSize> gradients(3, {.bytes = 8});
           const std::size_t order[] = {s(1, 0), s(1, 1), s(1, 2)};
           parallel::plan_buckets(gradients, s.list(0), order);
           return {};
         }},
        {"parallel::Coalesced::broadcast(root)", {{0}}, GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::Coalesced({ramp({2}), ramp({3})}).broadcast(group, s[0]);
         }))},
        {"parallel::broadcast_coalesced(root, limit)",
         {{0}, {1}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           const Tensor tensors[] = {ramp({2}), ramp({3})};
           parallel::broadcast_coalesced(group, tensors, s[0], s[1]);
         }))},
        {"parallel::Collectives::broadcast(root)",
         {{0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::Collectives(group.duplicate()).broadcast(leaf({2}), s[0]).sum().backward();
         }))},
        {"parallel::Collectives::split_to(dim)", {{0}}, GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::Collectives(group.duplicate()).split_to(leaf({2, 3}), s[0]).sum().backward();
         }))},
        {"parallel::Collectives::gather_from(dim)",
         {{0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::Collectives(group.duplicate())
               .gather_from(leaf({2, 3}), s[0])
               .sum()
               .backward();
         }))},
        {"parallel::DataParallelOptions{dim}",
         {{0}},
         [](const Sizes& s) -> Result {
           parallel::DataParallel dp(nn::ReLU(), {.devices = {Device()}, .dim = s[0]});
           return dp(leaf({4, 2}));
         }},
        {"parallel::scatter_gradients(dim)",
         {{0}},
         [](const Sizes& s) -> Result {
           const Tensor outputs[] = {ramp({2, 3}), ramp({2, 3})};
           return parallel::scatter_gradients(ramp({4, 3}), outputs, s[0]);
         }},
        {"parallel::DataParallel::replica(i)",
         {{0}},
         [](const Sizes& s) -> Result {
           parallel::DataParallel dp(nn::Linear(2, 2), {.devices = {Device()}});
           return dp.replica(s[0]).parameters();
         }},
        {"parallel::convert_deferred_batch_norm(chunks)",
         {{1}},
         [](const Sizes& s) -> Result {
           nn::BatchNorm1d norm(2);
           parallel::convert_deferred_batch_norm(norm, s[0]);
           return {norm(leaf({4, 2})), norm(leaf({4, 2}))};
         }},
        {"parallel::DistributedOptimizerOptions{backward_passes_per_step, fusion_threshold}",
         {{1}, {8}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           const parallel::Horovod hvd(group);
           nn::Sequential model = layers();
           parallel::DistributedOptimizer optimizer(
               hvd, optim::SGD(model.parameters(), {.lr = 0.1}), model.named_parameters(),
               {.backward_passes_per_step = s[0], .fusion_threshold = s[1]});
           for (int i = 0; i < 2; ++i) {
             optimizer.zero_grad();
             model(ramp({4, 2})).sum().backward();
             optimizer.step();
           }
         }))},
        {"parallel::HorovodOptions{fusion_threshold, local_rank}",
         {{8}, {0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           const parallel::Horovod hvd(
               group, {.fusion_threshold = s[0], .local_rank = static_cast<int>(s[1])});
           const auto one = hvd.allreduce_async("one", ramp({2}));
           const auto two = hvd.allreduce_async("two", ramp({3}));
           one.wait(), two.wait();
         }))},
        {"parallel::Horovod::broadcast_parameters(root_rank)",
         {{0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::Horovod(group).broadcast_parameters(layers().state_dict(), s[0]);
         }))},
        {"parallel::Horovod::broadcast_optimizer_state(root_rank)",
         {{0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           optim::SGD optimizer = sgd();
           parallel::Horovod(group).broadcast_optimizer_state(optimizer, s[0]);
         }))},
        {"parallel::Shard{dim}", {{1}}, GIVES(alone([&](comm::ProcessGroup& group) {
           nn::Linear layer(2, 3);
           parallel::parallelize(layer, group,
                                 {{"", parallel::ColwiseParallel{.input = parallel::Shard{s[0]}}}});
           layer(ramp({4, 2}));
           nn::Linear sums(2, 3);
           parallel::parallelize(
               sums, group,
               {{"", parallel::RowwiseParallel{parallel::Replicate{}, parallel::Shard{s[0]}}}});
           sums(ramp({4, 5, 2}));
         }))},
        {"parallel::SequenceParallel{sequence_dim}",
         {{0}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           nn::Sequential layer{nn::LayerNorm(2), nn::Dropout(0.5)};
           parallel::parallelize(layer, group, {{"", parallel::SequenceParallel{s[0]}}});
           layer(ramp({4, 2}));
         }))},
        {"parallel::DropoutParallel{dim}", {{0}}, GIVES(alone([&](comm::ProcessGroup& group) {
           nn::Dropout layer(0.5);
           parallel::parallelize(layer, group, {{"", parallel::DropoutParallel{s[0]}}});
           layer(ramp({4, 2}));
         }))},
        {"parallel::context_parallel(sequence_dim)",
         {{1}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           nn::Sequential model{nn::MultiheadAttention(2, 1), nn::Dropout(0.5)};
           parallel::context_parallel(model, group, s[0]);
           model(ramp({3, 4, 2}));
         }))},
        {"parallel::part_of_sequence(dim)", {{1}}, GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::part_of_sequence(ramp({2, 3}), group, s[0]);
         }))},
        {"parallel::cross_entropy(classes)", {{3}}, GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::cross_entropy(parallel::Collectives(group.duplicate()), ramp({2, 3}),
                                   zeros({2}, DType::i64), s[0]);
         }))},
        {"parallel::VocabCrossEntropyOptions{ignore_index}",
         {{-100}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::cross_entropy(parallel::Collectives(group.duplicate()), ramp({2, 3}),
                                   zeros({2}, DType::i64), 3, {.ignore_index = s[0]});
         }))},
        {"parallel::PipelineOptions{chunks}",
         {{2}},
         [](const Sizes& s) -> Result {
           parallel::Pipeline pipe(stages(), {.devices = kTwice, .chunks = s[0]});
           return pipe(ramp({4, 2}));
         }},
        {"parallel::Pipeline::Pipeline(stages)",
         {{2}},
         RUNS(parallel::Pipeline(static_cast<std::size_t>(s[0]), stage_of, {.devices = kTwice})
                  .stages())},
        {"parallel::Pipeline::is_here(stage)",
         {{1}},
         RUNS(parallel::Pipeline(stages(), {.devices = kTwice}).is_here(s[0]))},
        {"parallel::Pipeline::schedule(micro_batches)",
         {{2}},
         RUNS(parallel::Pipeline(stages(), {.devices = kTwice}).schedule(s[0]))},
        {"parallel::part_sizes(rows, n)",
         {{5}, {4}},
         [](const Sizes& s) -> Result {
           const double weights[] = {1, 2, 3, 4};
           std::int64_t sum = 0;
           for (const std::int64_t size : parallel::part_sizes(s[0], 4, weights)) sum += size;
           EXPECT_EQ(sum, s[0].value);
           parallel::part_sizes(s[0], s[1]);
           return {};
         }},
        {"parallel::ScatterOptions{dim}",
         {{0}},
         GIVES(parallel::scatter(leaf({4, 4}), kTwice, {.dim = s[0]}))},
        {"parallel::gather(dim)",
         {{0}},
         GIVES(parallel::gather(std::vector<Tensor>{leaf({2, 3}), leaf({2, 3})}, Device(), s[0]))},
        {"parallel::SyncBatchNorm2d::SyncBatchNorm2d(channels)",
         {{2}},
         GIVES(alone([&](comm::ProcessGroup& group) {
           parallel::SyncBatchNorm2d norm(s[0], group.duplicate());
           norm(leaf({2, 2, 3, 3})).sum().backward();
         }))},
    });

/// Uses a schedule in all ways.
Result use(const parallel::Schedule& schedule) {
  parallel::with_communication(schedule);
  parallel::parse_schedule(to_string(schedule));
  const parallel::StageCosts costs = parallel::equal_costs(schedule.stages, 1, 1, 1);
  draw(parallel::simulate(schedule, costs));
  return {};
}

Result use(const parallel::StepSchedule& step) {
  parallel::parse_step(to_string(step));
  draw(parallel::simulate(step, equal_costs(step, 1, 2, 1, 1)));
  return {};
}

WEFT_SIZES(
    Schedules,
    {
        {"parallel::gpipe(stages, micro_batches)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::gpipe(s[0], s[1])); }},
        {"parallel::one_f_one_b(stages, micro_batches)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::one_f_one_b(s[0], s[1])); }},
        {"parallel::interleaved_one_f_one_b(devices, stages_per_device, micro_batches)",
         {{2}, {2}, {3}},
         [](const Sizes& s) { return use(parallel::interleaved_one_f_one_b(s[0], s[1], s[2])); }},
        {"parallel::zero_bubble_h1(stages, micro_batches)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::zero_bubble_h1(s[0], s[1])); }},
        {"parallel::zero_bubble_v(devices, micro_batches)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::zero_bubble_v(s[0], s[1])); }},
        {"parallel::dual_pipe_v(devices, micro_batches)",
         {{2}, {4}},
         [](const Sizes& s) { return use(parallel::dual_pipe_v(s[0], s[1])); }},
        {"parallel::make_schedule(stages, micro_batches, devices)",
         {{4}, {3}, {2}},
         [](const Sizes& s) {
           return use(parallel::make_schedule("interleaved", s[0], s[1], parallel::Recompute::never,
                                              s[2]));
         }},
        {"parallel::Schedule{stages, micro_batches}",
         {{2}, {3}},
         [](const Sizes& s) {
           parallel::Schedule schedule = parallel::gpipe(2, 3);
           schedule.stages = s[0];
           schedule.micro_batches = s[1];
           return use(schedule);
         }},
        {"parallel::Action{stage, micro_batch}",
         {{0}, {0}},
         [](const Sizes& s) {
           using Kind = parallel::Action::Kind;
           parallel::Schedule schedule = parallel::gpipe(2, 3);
           schedule.devices[0][0] = {Kind::forward, s[0], s[1]};
           to_string(parallel::counterpart({Kind::send_activation, s[0], s[1]}));
           to_string(parallel::counterpart({Kind::receive_activation, s[0], s[1]}));
           return use(schedule);
         }},
        {"parallel::equal_costs(stages)",
         {{2}},
         RUNS(parallel::simulate(parallel::gpipe(2, 3), parallel::equal_costs(s[0], 1, 1, 1)))},
        {"parallel::draw(columns)",
         {{80}},
         RUNS(draw(parallel::simulate(parallel::gpipe(2, 3), parallel::equal_costs(2, 1, 1, 1)), 1,
                   s[0]))},
        {"parallel::TimedAction{device}",
         {{0}},
         [](const Sizes& s) -> Result {
           parallel::Timeline timeline =
               parallel::simulate(parallel::gpipe(2, 3), parallel::equal_costs(2, 1, 1, 1));
           timeline.actions[0].device = s[0];
           draw(timeline);
           return {};
         }},
        {"parallel::ddp_step(units, ranks)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::ddp_step(s[0], s[1])); }},
        {"parallel::zero1_step(units, ranks)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::zero1_step(s[0], s[1])); }},
        {"parallel::fsdp_step(units, ranks)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::fsdp_step(s[0], s[1])); }},
        {"parallel::tensor_parallel_step(units, ranks)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::tensor_parallel_step(s[0], s[1])); }},
        {"parallel::make_step(units, ranks)",
         {{2}, {3}},
         [](const Sizes& s) { return use(parallel::make_step("zero2", s[0], s[1])); }},
        {"parallel::StepSchedule{units}",
         {{2}},
         [](const Sizes& s) {
           parallel::StepSchedule step = parallel::fsdp_step(2, 2);
           step.units = s[0];
           return use(step);
         }},
        {"parallel::StepAction{unit}",
         {{0}},
         [](const Sizes& s) {
           parallel::StepSchedule step = parallel::ddp_step(2, 2);
           step.ranks[0][0].unit = s[0];
           return use(step);
         }},
        {"parallel::TimedStepAction{rank}",
         {{0}},
         [](const Sizes& s) -> Result {
           const parallel::StepSchedule step = parallel::ddp_step(2, 2);
           parallel::StepTimeline timeline =
               parallel::simulate(step, equal_costs(step, 1, 2, 1, 1));
           timeline.actions[0].rank = s[0];
           draw(timeline);
           return {};
         }},
    });

}  // namespace
}  // namespace weft::testing
