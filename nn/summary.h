// The modules of a model and the cost of one forward, in the form of the package torchinfo:
//
//   std::printf("%s", nn::summary(model, {32, 1, 28, 28}).to_string().c_str());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/nn/module.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

/// One call of a module.
struct SummaryRow {
  std::string path;                   ///< "encoder.conv1"; empty for a model without a name
  std::string type;                   ///< "Conv2d"
  std::vector<Shape> outputs;         ///< shapes of the tensors in the result
  std::int64_t parameters = 0;        ///< the module's own, without its children's
  std::int64_t trainable = 0;         ///< those of them that require a gradient
  std::int64_t macs = 0;              ///< without those of the modules it calls
  std::int64_t activation_bytes = 0;  ///< of outputs in new memory; 0 if it called other modules
  bool recursive = false;  ///< all its parameters are counted in rows above, none in this one
};

/// The result of nn::summary. The totals of MACs and activations are sums over the rows. The totals
/// of parameters are those of the whole model, with modules that forward did not call.
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

/// While it exists, the calling thread runs the model in evaluation mode, without gradients and
/// with a generator of its own, and hooks record the calls of the modules.
class SummaryScope {
 public:
  explicit SummaryScope(const ModuleBase& model);
  ~SummaryScope();
  SummaryScope(const SummaryScope&) = delete;
  SummaryScope& operator=(const SummaryScope&) = delete;

  /// Zeros on the model's device, with its dtype unless one is given.
  Tensor input(const Shape& shape, std::optional<DType> dtype) const;
  Summary result(const Tensor& input) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

/// Runs one forward with zeros of this shape in evaluation mode, and lists the calls of modules.
/// The zeros have the device and dtype of the model's first floating parameter (without one: the
/// thread's device, f32); another `dtype` is for models that read numbers of words. The model stays
/// as it was: modes, statistics, gradients, and the state of the random generator. A MAC is one
/// multiplication with its addition in any convolution or matrix product. Biases, normalisation and
/// element-wise work do not count, as in fvcore's FlopCountAnalysis (fvcore/nn/jit_handles.py:
/// conv_flop_count, linear_flop_jit). So Linear has N in out, Conv2d N Ho Wo out in/groups kh kw,
/// ConvTranspose2d N H W in out/groups kh kw with the H and W of its input. As in torchinfo, a
/// module that is called again has a row for each call, with its MACs in each row and its
/// parameters in the first one only. A parameter of two modules counts in the one called first.
/// Throws what forward throws.
template <class M>
Summary summary(M&& model, const Shape& shape, std::optional<DType> dtype = {}) {
  const detail::SummaryScope scope(model);
  const Tensor x = scope.input(shape, dtype);
  model(x);
  return scope.result(x);
}

}  // namespace weft::nn
