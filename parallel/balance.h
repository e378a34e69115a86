// Where to cut a chain of layers into the stages of a pipeline, and what the stages cost.
//
//   const auto seconds = parallel::layer_seconds(layers, sample);
//   parallel::Pipeline pipe(parallel::cut(layers, parallel::balanced(seconds, 2)), {.chunks = 8});
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weft/nn/any_module.h"
#include "weft/nn/sequential.h"
#include "weft/parallel/pipeline.h"
#include "weft/parallel/simulate.h"
#include "weft/tensor/tensor.h"

namespace weft::parallel {

/// Divides layers with these costs into `parts` stages, in order and with at least one layer each,
/// so that the most expensive stage is as cheap as possible; returns the number of layers of each.
/// Of equally good divisions it takes the first. Throws InvalidArgument for fewer costs than parts,
/// a cost that is below 0 or not a number, and costs whose sum is infinite.
std::vector<std::size_t> balanced(std::span<const double> costs, std::size_t parts);

/// Seconds of each layer's forward and backward for one micro-batch like `sample`, on the sample's
/// device: the median of as many passes as fit into `seconds`, at least three. Copies of the layers
/// run, so the layers do not change. torchgpipe's balance_by_time.
std::vector<double> layer_seconds(const nn::Sequential& layers, const Tensor& sample,
                                  double seconds = 1.0);

/// Bytes that each layer needs in training: its activations for `micro_batches` simultaneous ones
/// like `sample`, and param_scale times its parameters, for parameters, gradients and optimiser
/// state: 2 for SGD, 3 with momentum, 4 for Adam. torchgpipe's balance_by_size.
std::vector<double> layer_bytes(const nn::Sequential& layers, const Tensor& sample,
                                int micro_batches, double param_scale);

/// The costs of each stage's actions in a pipeline for a micro-batch `inputs`, for simulate(). They
/// are measured while all devices are busy, as they are in a pipeline: medians over about
/// `seconds`, at least five passes. Copies of the stages run, so the stages do not change.
StageCosts stage_costs(const Pipeline& pipeline, std::span<const Tensor> inputs,
                       double seconds = 1.0);

/// Cuts the chain into stages of `sizes` layers. Throws InvalidArgument unless the sizes add up.
std::vector<nn::AnyModule> cut(const nn::Sequential& layers, std::span<const std::size_t> sizes);

}  // namespace weft::parallel
