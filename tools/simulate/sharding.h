// A transformer on large clusters, with each way to divide it: a model without any measurement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/tools/simulate/presets.h"

namespace weft::simulator {

/// Sizes of a model like examples::CharTransformer: tables of tokens and positions, blocks, and a
/// head with weights of its own.
struct TransformerSize {
  std::int64_t layers = 24, width = 2048, context = 1024, vocabulary = 50257;
  double block_parameters() const;  ///< 12 width^2 and 13 width: products, norms and biases
  double root_parameters() const;   ///< what is in no block
  double parameters() const;
};

/// What each device has only a part of, besides its own rows. The last two also divide each layer
/// among the devices of a node (tensor parallelism, also along the sequence); the rows are divided
/// among the nodes.
enum class Sharding { ddp, zero1, zero2, fsdp, tp_ddp, tp_fsdp };
inline constexpr Sharding kShardings[] = {Sharding::ddp,  Sharding::zero1,  Sharding::zero2,
                                          Sharding::fsdp, Sharding::tp_ddp, Sharding::tp_fsdp};
/// "TP + FSDP"
const char* to_string(Sharding way);

/// A step in f32 with Adam, on one device of many.
struct ShardedStep {
  Sharding way;
  int devices = 1;
  double compute = 0;    ///< seconds, forward and backward
  double exposed = 0;    ///< seconds of messages during which nothing is computed
  double optimizer = 0;  ///< seconds
  // The most bytes of each. gathered: whole parameters, besides the device's parts.
  double parameters = 0, gathered = 0, gradients = 0, moments = 0, activations = 0;
  double seconds() const { return compute + exposed + optimizer; }
  double bytes() const { return parameters + gathered + gradients + moments + activations; }
};

/// A step with `rows` sequences of the whole context for each device. A block's forward takes as
/// long as its arithmetic or its memory traffic, whichever is longer, and its backward twice that.
/// An all-gather or a reduce-scatter takes half of the time of an all-reduce by ring or hierarchy,
/// whichever is faster. A block's messages run while its neighbour computes, and DDP's all-reduces
/// while the blocks before compute; messages within a layer are waited for. Throws InvalidArgument
/// for sizes below 1.
ShardedStep sharded_step(const TransformerSize& model, std::int64_t rows, int devices, Sharding way,
                         const Cluster& cluster);

/// Every way with 1, 2, 4 ... devices.
std::vector<ShardedStep> sharded_steps(const TransformerSize& model, std::int64_t rows,
                                       const Cluster& cluster);

std::string to_text(const TransformerSize& model, std::int64_t rows, const Cluster& cluster,
                    const std::vector<ShardedStep>& steps);
nlohmann::json to_json(const std::vector<ShardedStep>& steps, double tokens);
/// As SVG text: tokens per second and bytes of each device, over the number of devices.
std::string picture(const TransformerSize& model, std::int64_t rows, const Cluster& cluster,
                    const std::vector<ShardedStep>& steps);

}  // namespace weft::simulator
