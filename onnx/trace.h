// One forward as a list of operations, read from the tape. Private to onnx/.
#pragma once

#include <string>
#include <vector>

#include "weft/autograd/description.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/any_module.h"

namespace weft::onnx {

/// A result of a step or an input of the model; else a tensor from elsewhere, or nothing if that is
/// undefined.
struct Operand {
  int step = -1;
  int output = 0;
  int input = -1;
  Tensor tensor{};
};

struct Result {
  DType dtype = DType::f32;
  Shape shape{};
};

struct Step {
  autograd::Description what;
  const char* op = nullptr;  ///< the name that errors show
  const PathNode* path = nullptr;
  std::vector<Operand> operands{};
  std::vector<Result> results{};
};

struct Trace {
  std::vector<Tensor> inputs;           ///< as forward got them
  std::vector<std::uint32_t> versions;  ///< of the inputs' memory, before forward
  std::vector<Step> steps;  ///< those that the outputs depend on, in the order in which they ran
  std::vector<Operand> outputs;
  std::vector<Result> results;  ///< of the model
};

/// Runs model(inputs...). The inputs are copied first, since forward may write to them.
Trace trace(const nn::AnyModule& model, const std::vector<Tensor>& inputs);

}  // namespace weft::onnx
