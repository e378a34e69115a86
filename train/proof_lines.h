// The lines that a Proof writes, one JSON object each; train/proof/records.h reads them all, and
// train/recorded_run.h what a replay needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/base/dtype.h"
#include "weft/optim/optimizer.h"
#include "weft/tensor/tensor.h"

namespace weft::train {

/// 16 hexadecimal digits: the hash, the hash of a text, the hash of a tensor.
std::string hex(std::uint64_t hash);
std::string hex_hash(std::string_view text);
std::string hex_hash(const Tensor& x);

/// The first line. The thread's settings and the processor's level are added.
struct RunLine {
  std::string program = {};
  DType dtype = DType::f32;
  int rank = 0, ranks = 1;
  std::int64_t batches = 1;  ///< in a step of all ranks
  std::string backend = {};
  std::int64_t dataset_size = 0, batch_size = 0;
  bool shuffle = false;
};
std::string to_line(const RunLine& run);

/// The first line of a step. The inputs are not known for a program without a train::Step.
struct BatchLine {
  std::int64_t step = 0, epoch = 0;
  std::vector<std::int64_t> indices = {};
  std::string generator = {};                           ///< its state's hash, before the step
  std::optional<std::vector<std::string>> inputs = {};  ///< hashes of the body's inputs
  std::optional<std::vector<std::size_t>> saved = {};   ///< which of them are in a file
  std::string state = {};  ///< the generator's, if it is not as the last step has left it
};
std::string to_line(const BatchLine& batch);

std::string module_line(const std::string& name, const std::string& type);
/// kind: "parameter" or "buffer". part: the rank has a part of it.
std::string declared_line(const char* kind, const std::string& name, const Tensor& x, bool part);
std::string optimizer_line(std::size_t number, const optim::Optimizer& optimizer,
                           const std::vector<std::string>& parameters);
/// call: the number of the module's call in the step. index: of the tensor in its result.
struct OutputPlace {
  std::string module = {}, type = {};
  std::int64_t call = 0;
  std::size_t index = 0;
  bool training = false;
};
std::string output_line(std::int64_t step, const OutputPlace& place, const Tensor& x);
/// event: the number of the update in the step. The line also has the options of each group.
std::string update_line(std::int64_t step, std::size_t event, std::size_t number,
                        const optim::Optimizer& optimizer);
/// An undefined gradient is written as missing.
std::string gradient_line(std::int64_t step, std::size_t event, const std::string& name,
                          const Tensor& gradient, bool part);
/// The gradient after the backwards of this micro-batch and of those before it.
std::string micro_batch_line(std::int64_t step, std::size_t event, std::int64_t number,
                             const std::string& name, const Tensor& gradient);
/// kind: "weight" or "buffer", as they are after the step.
std::string state_line(const char* kind, std::int64_t step, const std::string& name,
                       const Tensor& x, bool part);
std::string loss_line(std::int64_t step, const std::vector<std::pair<std::string, double>>& values);
std::string end_line(std::int64_t step);

}  // namespace weft::train
