// One forward as a list of operations, read from the tape. Private to onnx/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/autograd/description.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/any_module.h"

namespace weft::onnx {

inline constexpr const char* kStale =
    "cannot be said in ONNX: a tensor that depends on the input was written to by something that "
    "the tape does not record, such as an in-place method under NoGrad or weft::raw";

/// A result of a step or an input of the model; otherwise a tensor from elsewhere, which may be
/// undefined. The tensor is a copy of what the operation read, or the tensor itself if it belongs
/// to the model's state or shares memory with an input.
struct Operand {
  int step = -1;
  int output = 0;
  int input = -1;
  Tensor tensor{};
  std::uint32_t version = 0;  ///< of the tensor's memory, when the operation read it
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
  std::map<std::string, Operand> tensors{};  ///< of the description
  bool stale = false;  ///< an operand was written to by something that the tape does not know
  std::vector<Result> results{};
};

struct Trace {
  std::vector<Tensor> inputs;           ///< as they were passed to forward
  std::vector<std::uint32_t> versions;  ///< of the inputs' memory, before forward
  std::vector<Step> steps;  ///< those that the outputs depend on, in the order in which they ran
  std::vector<Operand> outputs;
  std::vector<Result> results;  ///< of the model
};

/// Runs model(inputs...). The inputs are copied first, since forward may write to them. `state` is
/// the model's. Throws Unsupported, naming the operation and the module, if a result depends on
/// what was recorded before or in another thread, or was written to by what the tape does not
/// record.
Trace trace(const nn::AnyModule& model, const std::vector<Tensor>& inputs,
            const nn::NamedTensors& state);

}  // namespace weft::onnx
