// Convolution layers over images, also of one without a batch.
#pragma once

#include "weft/autograd/conv.h"
#include "weft/autograd/named_padding.h"
#include "weft/nn/conv_padding.h"
#include "weft/nn/module.h"
#include "weft/nn/pair.h"

namespace weft::nn {

/// PyTorch's defaults. Only ConvTranspose2d uses output_padding.
struct ConvOptions {
  Pair stride = 1;
  ConvPadding<Pair> padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  Pair output_padding = 0;
};

/// PyTorch's defaults.
struct Conv1dOptions {
  std::int64_t stride = 1;
  ConvPadding<std::int64_t> padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

/// Like Conv2d, for sequences: x [N,in,L] -> [N,out,Lo], Lo = floor((L + 2 p - d (k-1) - 1) / s) +
/// 1. weight [out,in/groups,k], bias [out].
class Conv1d : public Module<Conv1d> {
 public:
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options = {});
  Tensor forward(const Tensor& x) const {
    return same_ ? conv1d(x, weight, bias, "same", params_) : conv1d(x, weight, bias, params_);
  }

  Parameter weight, bias;

 private:
  Conv1dParams params_;
  bool same_;
};

/// Cross-correlation. x [N,in,H,W] -> [N,out,Ho,Wo], Ho = floor((H + 2 p - d (k-1) - 1) / s) + 1,
/// with kernel k, stride s, padding p and dilation d. weight [out,in/groups,kh,kw], bias [out];
/// initial values: init::default_weight_and_bias. Throws Shape for another number of channels or a
/// kernel larger than the padded image. The constructor throws InvalidArgument for groups that do
/// not divide in and out, for a negative padding, for "same" with a stride, for an output_padding,
/// and for another number that is not positive.
class Conv2d : public Module<Conv2d> {
 public:
  Conv2d(std::int64_t in, std::int64_t out, Pair kernel, const ConvOptions& options = {});
  Tensor forward(const Tensor& x, Activation then = Activation::none) const {
    return same_ ? conv2d(x, weight, bias, "same", params_, then)
                 : conv2d(x, weight, bias, params_, then);
  }

  Parameter weight, bias;

 private:
  Conv2dParams params_;
  bool same_;
};

/// Transposed convolution: the gradient of Conv2d with respect to its input, as a layer. x
/// [N,in,H,W] -> [N,out,Ho,Wo], Ho = (H-1) s - 2 p + d (k-1) + output_padding + 1. weight
/// [in,out/groups,kh,kw], bias [out]. Throws like Conv2d, but an output_padding is allowed if it is
/// smaller than stride or dilation.
class ConvTranspose2d : public Module<ConvTranspose2d> {
 public:
  ConvTranspose2d(std::int64_t in, std::int64_t out, Pair kernel, const ConvOptions& options = {});
  Tensor forward(const Tensor& x, Activation then = Activation::none) const;

  Parameter weight, bias;

 private:
  Conv2dParams params_;
};

}  // namespace weft::nn
