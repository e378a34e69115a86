// What a model consists of and what one forward costs, as the package torchinfo shows it:
//
//   std::printf("%s", nn::summary(model, {32, 1, 28, 28}).to_string().c_str());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/nn/module.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

/// One call of a module.
struct SummaryRow {
  std::string path;                   ///< "encoder.conv1"; empty for a model without a name
  std::string type;                   ///< "Conv2d"
  std::vector<Shape> outputs;         ///< the tensors of the result
  std::int64_t parameters = 0;        ///< the module's own, without its children's
  std::int64_t trainable = 0;         ///< of those, what requires a gradient
  std::int64_t macs = 0;              ///< outside the modules called in turn
  std::int64_t activation_bytes = 0;  ///< of outputs in new memory; 0 if it called other modules
  bool recursive = false;  ///< all its parameters count in rows above, and no longer in this one
};

/// What nn::summary found. The totals of MACs and activations are sums over the rows; those of
/// parameters are of the whole model, also of what forward did not call.
struct Summary {
  Shape input;
  DType dtype = DType::f32;
  std::vector<SummaryRow> rows;  ///< in the order in which the calls began
  std::int64_t parameters = 0;
  std::int64_t trainable = 0;
  std::int64_t parameter_bytes = 0;
  std::int64_t macs = 0;
  std::int64_t activation_bytes = 0;

  std::int64_t frozen() const { return parameters - trainable; }
  /// A table of the rows, with the totals below.
  std::string to_string() const;
};

namespace detail {

/// Makes the calling thread's forward harmless, and listens to it, while it lives: evaluation mode,
/// no gradients, a generator of its own.
class SummaryScope {
 public:
  explicit SummaryScope(const ModuleBase& model);
  ~SummaryScope();
  SummaryScope(const SummaryScope&) = delete;
  SummaryScope& operator=(const SummaryScope&) = delete;

  /// Zeros where the model is and in its dtype.
  Tensor input(const Shape& shape) const;
  Summary result(const Tensor& input) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

/// Runs one forward of zeros of this shape, in evaluation mode, on the device and in the dtype of
/// the model's first floating parameter (without one: the thread's device, f32), and says what was
/// called. The model is as before: modes, statistics, gradients, and the state of the random
/// generator.
/// A MAC is one multiplication with its addition in a convolution or matrix product, wherever it
/// stands; biases, normalisation and element-wise work count nothing, as in fvcore's
/// FlopCountAnalysis (fvcore/nn/jit_handles.py: conv_flop_count, linear_flop_jit). So Conv2d has
/// N Ho Wo out in/groups kh kw, ConvTranspose2d N H W in out/groups kh kw of its input's H and W,
/// Linear N in out. As in torchinfo, a module called again has a row for each call, MACs in each
/// and its parameters in the first alone; a parameter of two modules counts in the one called
/// first. Throws what forward throws.
template <class M>
Summary summary(M&& model, const Shape& shape) {
  const detail::SummaryScope scope(model);
  const Tensor x = scope.input(shape);
  model(x);
  return scope.result(x);
}

}  // namespace weft::nn
