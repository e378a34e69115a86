// Writes ONNX files, from which other programs, such as onnxruntime, read a model.
//
//   onnx::save(model, {x}, "model.onnx");
//
// One forward is traced on the tape, by the operations that it runs. So any module can be saved,
// also a user's own struct, without code of its own.
#pragma once

#include <string>
#include <vector>

#include "weft/nn/any_module.h"

namespace weft::onnx {

/// As torch.onnx.export's arguments of these names.
struct ExportOptions {
  /// One for each input or output; without them "input" or "input_0", "input_1" .., and the same
  /// with "output".
  std::vector<std::string> input_names{};
  std::vector<std::string> output_names{};
  /// true: the first dimension of every input, and each size that depends on it, is the symbol
  /// "batch", so the file takes any number of rows. false: all sizes are those of the example.
  bool dynamic_batch = true;
};

/// Writes the model, in evaluation mode, as an ONNX file of opset 17 (IR version 8). Parameters and
/// buffers are in it under their names in the state dict. `inputs` are an example: their shapes,
/// without the batch, and their dtypes are those of the file.
///
/// forward runs twice, for two batches of different sizes and values: rows of the example, and
/// other values of floating inputs. What is the same in both is a constant of the file. As in
/// torch.onnx.export, the file knows only the operations that ran: not the branches that were not
/// taken, nor loops over another length. Modes, gradients and random numbers stay as they were.
///
/// Throws Unsupported, naming the operation and the module, for an operation that ONNX lacks or
/// that this exporter does not know; for a tensor computed from an input, or written to, outside
/// the tape (under NoGrad, or by weft::raw), which is found by comparing the two batches; for one
/// that was recorded before or in another thread; and where the operations or their numbers depend
/// on the batch or on values. Throws InvalidArgument for wrong names, for inputs without a batch,
/// for an integer input whose example holds one value only, and for a model of 2 GB and more, the
/// limit of the format.
void save(const nn::AnyModule& model, const std::vector<Tensor>& inputs, const std::string& path,
          const ExportOptions& options = {});

}  // namespace weft::onnx
