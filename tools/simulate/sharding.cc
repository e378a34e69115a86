#include "weft/tools/simulate/sharding.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/simulate/scaling.h"
#include "weft/train/charts.h"

namespace weft::simulator {
namespace {

using weft::detail::concat;

constexpr double kNumber = 4;  // bytes
// How many numbers a block keeps for its backward, per token and column. Korthikanti et al. 2022
// (arXiv 2205.05198, table 2) count 34 bytes of 16-bit numbers: without the 2 bytes of dropout's
// masks, which is not used here, these are 16 numbers. The scores are not kept, since attention
// works in blocks. Two of the 16 are the inputs of attention and perceptron: tensor parallelism
// gathers them, and the tape keeps them whole.
constexpr double kKept = 16, kKeptWhole = 2;
// The number of kernels in a block's forward.
constexpr double kKernels = 12;
// Adam reads w, g and both moments, and writes all but g.
constexpr double kPasses = 7;

double all_reduce(double bytes, int n, const Cluster& cluster) {
  if (n == 1) return 0;
  double least = all_reduce_link(AllReduce::ring, n, cluster).seconds(bytes);
  for (const AllReduce algorithm : kAllReduces) {
    least = std::min(least, all_reduce_link(algorithm, n, cluster).seconds(bytes));
  }
  return least;
}
// An all-gather or a reduce-scatter: rings between the nodes, each of the devices with the same
// place in their nodes, and rings within the nodes. A tree is not possible, since every device
// ends, or begins, with different data.
double half_all_reduce(double bytes, int n, const Cluster& cluster) {
  if (n == 1) return 0;
  const int local = std::min(n, cluster.per_node);
  const int nodes = (n + cluster.per_node - 1) / cluster.per_node;
  const auto part = [](int count) { return (count - 1.0) / count; };
  return cluster.base + (local - 1) * cluster.inside.latency +
         (nodes - 1) * cluster.between.latency + part(local) * cluster.inside.transfer(bytes) +
         part(nodes) * cluster.between.transfer(bytes) / cluster.ports;
}

// The same cluster for groups with one device of each node: they share only the nodes' ports.
Cluster one_of_each_node(Cluster cluster) {
  cluster.between.bytes_per_second *= static_cast<double>(cluster.ports) / cluster.per_node;
  cluster.per_node = cluster.ports = 1;
  return cluster;
}

}  // namespace

double TransformerSize::block_parameters() const {
  const auto w = static_cast<double>(width);
  return 12 * w * w + 13 * w;
}
double TransformerSize::root_parameters() const {
  const auto w = static_cast<double>(width), tokens = static_cast<double>(vocabulary);
  return tokens * w + static_cast<double>(context) * w + 2 * w + tokens * w + tokens;
}
double TransformerSize::parameters() const {
  return static_cast<double>(layers) * block_parameters() + root_parameters();
}

const char* to_string(Sharding way) {
  switch (way) {
    case Sharding::ddp: return "DDP";
    case Sharding::zero1: return "ZeRO-1";
    case Sharding::zero2: return "ZeRO-2";
    case Sharding::fsdp: return "FSDP";
    case Sharding::tp_ddp: return "TP + DDP";
    default: return "TP + FSDP";
  }
}

ShardedStep sharded_step(const TransformerSize& model, std::int64_t rows, int devices, Sharding way,
                         const Cluster& cluster) {
  WEFT_CHECK(std::min({model.layers, model.width, model.context, model.vocabulary, rows,
                       std::int64_t{devices}}) >= 1,
             InvalidArgument, "simulate", "a transformer of ", model.layers, " layers, width ",
             model.width, ", context ", model.context, ", ", model.vocabulary, " tokens, ", rows,
             " rows, ", devices, " devices: expected 1 or more of each");
  const bool tensor = way == Sharding::tp_ddp || way == Sharding::tp_fsdp;
  const bool cut = way == Sharding::fsdp || way == Sharding::tp_fsdp;
  const int tp = tensor ? std::min(devices, cluster.per_node) : 1, dp = devices / tp;
  WEFT_CHECK(dp * tp == devices, InvalidArgument, "simulate", devices,
             " devices: expected nodes of ", cluster.per_node);
  const Cluster ranks = tensor ? one_of_each_node(cluster) : cluster;
  const auto width = static_cast<double>(model.width), layers = static_cast<double>(model.layers);
  // Each device of a tensor parallel group has all rows of the group, and an n-th of every layer.
  const double tokens = static_cast<double>(rows * model.context) * tp;
  const double block = model.block_parameters() * kNumber / tp;
  const double root = model.root_parameters() * kNumber / tp, all = layers * block + root;
  const double activation = tokens * width * kNumber;  // of all columns, between two blocks

  const auto seconds = [&](double macs, double bytes, double kernels) {
    return std::max(
        {2 * macs / cluster.flops, bytes / cluster.bytes_per_second, kernels * cluster.launch});
  };
  const double scores = tokens * static_cast<double>(model.context) * width;
  const double kept = (kKept - kKeptWhole) / tp + (tp > 1 ? kKeptWhole : kKeptWhole / tp);
  const double block_forward = seconds((tokens * 12 * width * width + 2 * scores) / tp,
                                       block + 2 * kept * activation, kKernels);
  const double logits = tokens * static_cast<double>(model.vocabulary) * kNumber / tp;
  const double head =
      seconds(tokens * width * static_cast<double>(model.vocabulary) / tp, root + logits, 2);

  ShardedStep step{.way = way, .devices = devices};
  step.compute = 3 * (layers * block_forward + head);
  // In forward a sum after attention and one after the perceptron, and as many in backward; one for
  // the table's rows, and one before the head. With sequence parallelism gathers and scatters of
  // the same bytes.
  if (tp > 1) step.exposed += (layers * 4 + 2) * all_reduce(activation, tp, cluster);
  const double n = dp, message = half_all_reduce(block, dp, ranks);
  const double rest = half_all_reduce(root, dp, ranks);
  const double backward = 2 * block_forward;
  if (cut || way == Sharding::zero2) {
    // A block's messages run while its neighbours compute. Nothing runs beside the first gather,
    // the last reduce-scatter, and the root's messages.
    step.exposed += message + (layers - 1) * std::max(0.0, message - block_forward);
    const double behind = cut ? 2 * message : message;  // with FSDP also the next block's gather
    step.exposed += (layers - 1) * std::max(0.0, behind - backward) + message + 2 * rest;
    if (cut) step.exposed += std::max(0.0, message - 2 * head);  // the last block's second gather
  } else {
    // The blocks' gradients are reduced one after the other, those of the first block last.
    double done = 2 * head;
    for (std::int64_t i = 0; i < model.layers; ++i) {
      const double ready = 2 * head + static_cast<double>(i + 1) * backward;
      done = std::max(done, ready) + all_reduce(block, dp, ranks);
    }
    done += all_reduce(root, dp, ranks);
    step.exposed += dp == 1 ? 0 : done - 2 * head - layers * backward;
    if (way == Sharding::zero1) step.exposed += half_all_reduce(all, dp, ranks);
  }
  const bool whole_update = way == Sharding::ddp || way == Sharding::tp_ddp;
  const double updated = whole_update ? all : all / n;
  step.optimizer = cluster.launch + kPasses * updated / cluster.bytes_per_second;

  step.parameters = way == Sharding::zero2 || cut ? all / n : all;
  step.gathered = way == Sharding::zero2 ? all : cut ? root + 2 * block : 0;
  if (dp == 1) step.gathered = 0;
  const bool whole_gradients = whole_update || way == Sharding::zero1;
  step.gradients = whole_gradients || dp == 1 ? all : all / n + std::max(block, root);
  step.moments = 2 * updated;
  step.activations = layers * kept * activation + 2 * logits;
  return step;
}

std::vector<ShardedStep> sharded_steps(const TransformerSize& model, std::int64_t rows,
                                       const Cluster& cluster) {
  std::vector<ShardedStep> steps;
  for (int n = 1; n <= cluster.most_devices; n *= 2) {
    for (const Sharding way : kShardings) {
      steps.push_back(sharded_step(model, rows, n, way, cluster));
    }
  }
  return steps;
}

std::string to_text(const TransformerSize& model, std::int64_t rows, const Cluster& cluster,
                    const std::vector<ShardedStep>& steps) {
  char line[600];  // the largest sizes that the command line takes make long numbers
  std::snprintf(line, sizeof line, "%.3g", model.parameters() / 1e9);
  std::string text =
      concat("MODEL, nothing measured: a transformer of ", line, "e9 parameters in f32, ",
             model.layers, " blocks of width ", model.width, ", on ", cluster.name,
             ", weak scaling, ", rows, " rows of ", model.context, " tokens on each device\n");
  std::snprintf(line, sizeof line, "%-6s %7s %-9s %10s %10s %9s %10s %13s %9s %9s %9s %11s %8s\n",
                "", "devices", "way", "compute ms", "exposed ms", "update ms", "step ms",
                "tokens/s each", "params GB", "grads GB", "moments GB", "activate GB", "all GB");
  text += line;
  for (const ShardedStep& step : steps) {
    if (step.devices == 1 && step.way != Sharding::ddp) continue;  // all are the same
    std::snprintf(
        line, sizeof line,
        "%-6s %7d %-9s %10.1f %10.1f %9.1f %10.1f %13.0f %9.2f %9.2f %10.2f %11.2f %8.2f%s\n",
        "model", step.devices, step.devices == 1 ? "none" : to_string(step.way), step.compute * 1e3,
        step.exposed * 1e3, step.optimizer * 1e3, step.seconds() * 1e3,
        static_cast<double>(rows * model.context) / step.seconds(),
        (step.parameters + step.gathered) / 1e9, step.gradients / 1e9, step.moments / 1e9,
        step.activations / 1e9, step.bytes() / 1e9,
        step.bytes() > cluster.memory ? "  does not fit" : "");
    text += line;
  }
  return text;
}

nlohmann::json to_json(const std::vector<ShardedStep>& steps, double tokens) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ShardedStep& step : steps) {
    rows.push_back({{"kind", "model"},
                    {"devices", step.devices},
                    {"way", to_string(step.way)},
                    {"compute_ms", step.compute * 1e3},
                    {"exposed_ms", step.exposed * 1e3},
                    {"optimizer_ms", step.optimizer * 1e3},
                    {"step_ms", step.seconds() * 1e3},
                    {"tokens_per_second_each", tokens / step.seconds()},
                    {"parameters_bytes", step.parameters},
                    {"whole_parameters_bytes", step.gathered},
                    {"gradients_bytes", step.gradients},
                    {"optimizer_bytes", step.moments},
                    {"activations_bytes", step.activations}});
  }
  return rows;
}

std::string picture(const TransformerSize& model, std::int64_t rows, const Cluster& cluster,
                    const std::vector<ShardedStep>& steps) {
  const double tokens = static_cast<double>(rows * model.context);
  train::LogLogChart speed{
      concat("MODEL, not measured: ", model.layers, " blocks of width ", model.width,
             ", weak scaling"),
      concat("devices (", cluster.name, "), ", rows, " rows of ", model.context, " tokens on each"),
      "thousand tokens/s of each device",
      {}};
  train::LogLogChart memory{"MODEL, not measured: memory",
                            speed.x_name,
                            concat("GB of each device, which has ", cluster.memory / 1e9),
                            {}};
  for (const Sharding way : kShardings) {
    train::PointCurve fast{to_string(way), {}}, large = fast;
    for (const ShardedStep& step : steps) {
      if (step.way != way) continue;
      fast.points.emplace_back(step.devices, tokens / step.seconds() / 1e3);
      large.points.emplace_back(step.devices, step.bytes() / 1e9);
    }
    speed.curves.push_back(std::move(fast));
    memory.curves.push_back(std::move(large));
  }
  return train::log_log_picture(std::vector{speed, memory});
}

}  // namespace weft::simulator
