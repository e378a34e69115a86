// The parts of the example programs that decide the time of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/nn/sequential.h"
#include "weft/optim/optimizer.h"
#include "weft/parallel/parallel_styles.h"
#include "weft/tensor/tensor.h"
#include "weft/tools/simulate/scaling.h"

namespace weft::simulator {

struct Program {
  std::string name;
  nn::Sequential layers;  ///< the model
  Shape row;              ///< shape of one image, or {length} of a text's numbers
  bool classifies =
      true;  ///< true: cross entropy of 10 classes; false: mean squared error of the input
  std::int64_t characters = 0;  ///< above 0: a text, of which each character is predicted
  std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)> make_optimizer;
  double optimizer_passes = 3;  ///< Work::optimizer_passes
  std::size_t first_part = 0;   ///< Costs::first_part
  std::int64_t batch_size = 64;
  /// Whether a layer is a unit of its own for fully_shard; the root has the others.
  std::function<bool(std::size_t layer)> own_unit = [](std::size_t) { return true; };
  /// Whether tensor parallelism cuts a parameter of a layer, named as there; null: it cuts none.
  std::function<bool(std::size_t layer, const std::string& name)> is_cut = nullptr;
  /// The number of sums over the ranks after forward and after backward of a layer that is cut.
  std::function<std::pair<int, int>(std::size_t layer)> sums = nullptr;
  /// How tensor parallelism cuts the layers of a text; empty: it does not.
  parallel::ParallelPlan plan = {};
  std::int64_t heads = 0;  ///< of each attention; with a plan the number of ranks must divide it
  /// The numbers of rows with which layers are timed.
  std::vector<std::int64_t> sizes = {2, 8, 32, 64, 128, 256};

  /// `count` rows and their targets, on the thread's device.
  std::pair<Tensor, Tensor> batch(std::int64_t count) const;
  Tensor loss(const Tensor& output, const Tensor& target) const;
};

const std::vector<std::string>& program_names();
/// On the thread's device. Throws InvalidArgument for another name.
Program make_program(const std::string& name);

/// The work that the layers of a program give a device.
Work work_of(const Program& program);

}  // namespace weft::simulator
