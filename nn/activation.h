// Activations as layers, for Sequential.
#pragma once

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/softmax.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// max(x, 0), any shape.
class ReLU : public Module<ReLU> {
 public:
  Tensor forward(Tensor x) const { return relu(std::move(x)); }
};

/// min(max(x, 0), 6), any shape. As torch.nn.functional.relu6, like the next two: at the ends of
/// its slope, and at NaN, the gradient is 0.
Tensor relu6(const Tensor& x);
/// relu6(x + 3) / 6
Tensor hardsigmoid(const Tensor& x);
/// x relu6(x + 3) / 6 (Howard et al., "Searching for MobileNetV3", 2019)
Tensor hardswish(const Tensor& x);
/// x where x > 0, weight x elsewhere (He et al., "Delving Deep into Rectifiers", 2015). weight:
/// [1] or [], or [C] for x [N,C,..]. Throws Shape.
Tensor prelu(const Tensor& x, const Tensor& weight);

class ReLU6 : public Module<ReLU6> {
 public:
  Tensor forward(const Tensor& x) const { return relu6(x); }
};

class Hardsigmoid : public Module<Hardsigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return hardsigmoid(x); }
};

class Hardswish : public Module<Hardswish> {
 public:
  Tensor forward(const Tensor& x) const { return hardswish(x); }
};

/// prelu with a trained weight [num_parameters], which starts as `init`. Throws InvalidArgument
/// unless num_parameters is positive.
class PReLU : public Module<PReLU> {
 public:
  explicit PReLU(std::int64_t num_parameters = 1, double init = 0.25);
  Tensor forward(const Tensor& x) const { return prelu(x, weight); }

  Parameter weight;
};

/// 1 / (1 + exp(-x)), any shape.
class Sigmoid : public Module<Sigmoid> {
 public:
  Tensor forward(const Tensor& x) const { return sigmoid(x); }
};

/// x where x > 0, negative_slope x elsewhere, any shape. Throws InvalidArgument for a slope below
/// 0.
class LeakyReLU : public Module<LeakyReLU> {
 public:
  explicit LeakyReLU(double negative_slope = 0.01);
  Tensor forward(Tensor x) const { return leaky_relu(std::move(x), negative_slope_); }
  double negative_slope() const { return negative_slope_; }

 private:
  double negative_slope_;
};

/// tanh(x), any shape.
class Tanh : public Module<Tanh> {
 public:
  Tensor forward(const Tensor& x) const { return tanh(x); }
};

/// x P(N(0,1) <= x) = x/2 (1 + erf(x / sqrt 2)), any shape; with approximate = "tanh":
/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Throws InvalidArgument unless approximate is
/// "none" or "tanh".
class GELU : public Module<GELU> {
 public:
  explicit GELU(const std::string& approximate = "none");
  Tensor forward(const Tensor& x) const { return tanh_ ? gelu_tanh(x) : gelu(x); }

 private:
  bool tanh_;
};

/// x / (1 + exp(-x)), also called swish; any shape.
class SiLU : public Module<SiLU> {
 public:
  Tensor forward(const Tensor& x) const { return silu(x); }
};

/// x where x > 0, alpha (exp(x) - 1) elsewhere, any shape.
class ELU : public Module<ELU> {
 public:
  explicit ELU(double alpha = 1);
  Tensor forward(const Tensor& x) const { return elu(x, alpha_); }

 private:
  double alpha_;
};

/// log(1 + exp(beta x)) / beta, and x itself where beta x > threshold; any shape. Throws
/// InvalidArgument unless beta > 0.
class Softplus : public Module<Softplus> {
 public:
  explicit Softplus(double beta = 1, double threshold = 20);
  Tensor forward(const Tensor& x) const { return softplus(x, beta_, threshold_); }

 private:
  double beta_, threshold_;
};

/// exp(x) / sum exp(x) over dimension `dim`; a negative dim counts from the end.
class Softmax : public Module<Softmax> {
 public:
  explicit Softmax(std::int64_t dim);
  Tensor forward(const Tensor& x) const { return softmax(x, dim_); }

 private:
  std::int64_t dim_;
};

/// log(softmax(x)) over dimension `dim`; a negative dim counts from the end.
class LogSoftmax : public Module<LogSoftmax> {
 public:
  explicit LogSoftmax(std::int64_t dim);
  Tensor forward(const Tensor& x) const { return log_softmax(x, dim_); }

 private:
  std::int64_t dim_;
};

}  // namespace weft::nn
