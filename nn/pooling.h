// Pooling layers, also of one image without a batch.
#pragma once

#include <optional>

#include "weft/autograd/pooling.h"
#include "weft/nn/conv.h"
#include "weft/nn/module.h"
#include "weft/nn/pair.h"

namespace weft::nn {

/// stride: by default the kernel's size.
struct PoolOptions {
  std::optional<Pair> stride{};
  Pair padding = 0;
  Pair dilation = 1;
  bool ceil_mode = false;
};

/// x [N,C,H,W] -> [N,C,Ho,Wo], the largest value of each window. Ho as in Conv2d, rounded up with
/// ceil_mode. Throws InvalidArgument when padding exceeds half the kernel, and for a kernel, stride
/// or dilation that is not positive.
class MaxPool2d : public Module<MaxPool2d> {
 public:
  explicit MaxPool2d(Pair kernel, const PoolOptions& options = {});
  Tensor forward(const Tensor& x) const { return max_pool2d(x, params_); }

 private:
  Pool2dParams params_;
};

/// MaxPool2d(return_indices=True) of PyTorch: auto [y, indices] = pool(x). Shapes, indices and
/// errors as max_pool2d_with_indices.
class MaxPool2dWithIndices : public Module<MaxPool2dWithIndices> {
 public:
  explicit MaxPool2dWithIndices(Pair kernel, const PoolOptions& options = {});
  ValuesAndIndices forward(const Tensor& x) const { return max_pool2d_with_indices(x, params_); }

 private:
  Pool2dParams params_;
};

/// x [N,C,H,W], or without N, -> [N,C,size.h,size.w]: each value at its index, h size.w + w in the
/// image that is written, and zeros elsewhere. As torch's max_unpool2d; of two values with the same
/// index the one that scatter keeps stays. Throws Shape unless x and the indices have one shape,
/// InvalidArgument for a size below 1, and as scatter for an index that is outside of the image.
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Pair size);

/// stride: by default the kernel's size.
struct UnpoolOptions {
  std::optional<Pair> stride{};
  Pair padding = 0;
};

/// Puts the values that a MaxPool2dWithIndices with the same options has taken back into an image
/// of zeros. The image's size is (H - 1) stride - 2 padding + kernel, unless another size that this
/// kernel could have pooled is given. Throws InvalidArgument as MaxPool2d, and for any other size.
class MaxUnpool2d : public Module<MaxUnpool2d> {
 public:
  explicit MaxUnpool2d(Pair kernel, const UnpoolOptions& options = {});
  Tensor forward(const Tensor& x, const Tensor& indices, std::optional<Pair> size = {}) const;

 private:
  Pair kernel_, stride_, padding_;
};

/// stride: by default the kernel's size.
struct AvgPoolOptions {
  std::optional<Pair> stride{};
  Pair padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< padding counts as zeros; else only points of the image count
  std::optional<std::int64_t> divisor{};  ///< divides the sum, instead of the window's size
};

/// x [N,C,H,W] -> [N,C,Ho,Wo], the average of each window. Ho as in Conv2d, rounded up with
/// ceil_mode. Throws InvalidArgument when padding exceeds half the kernel, for a kernel or stride
/// that is not positive, and for divisor 0.
class AvgPool2d : public Module<AvgPool2d> {
 public:
  explicit AvgPool2d(Pair kernel, const AvgPoolOptions& options = {});
  Tensor forward(const Tensor& x) const { return avg_pool2d(x, params_); }

 private:
  AvgPool2dParams params_;
};

/// x [N,C,H,W] -> [N,C,size.h,size.w] for any H and W. Output i is the average of the positions
/// from floor(i H / size.h) up to, but without, ceil((i+1) H / size.h). Throws InvalidArgument for
/// a size that is not positive, Shape for an image without pixels.
class AdaptiveAvgPool2d : public Module<AdaptiveAvgPool2d> {
 public:
  explicit AdaptiveAvgPool2d(Pair size);
  Tensor forward(const Tensor& x) const { return adaptive_avg_pool2d(x, size_); }

 private:
  Pair size_;
};

/// x [N,C,H,W] -> [N,C,size.h,size.w] for any H and W. Output i is the largest value of the
/// positions from floor(i H / size.h) up to, but without, ceil((i+1) H / size.h). Throws
/// InvalidArgument for a size that is not positive, Shape for an image without pixels.
class AdaptiveMaxPool2d : public Module<AdaptiveMaxPool2d> {
 public:
  explicit AdaptiveMaxPool2d(Pair size);
  Tensor forward(const Tensor& x) const { return adaptive_max_pool2d(x, size_); }

 private:
  Pair size_;
};

}  // namespace weft::nn
