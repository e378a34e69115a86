// Methods of Tensor that exist as functions, too.
#include "weft/autograd/ops.h"

namespace weft {

#define X(name) \
  Tensor Tensor::name() const { return weft::name(*this); }
WEFT_UNARY_METHODS(X)
#undef X
#define X(name)                                                                       \
  Tensor Tensor::name(const Tensor& other) const { return weft::name(*this, other); } \
  Tensor Tensor::name(double other) const { return weft::name(*this, other); }
WEFT_BINARY_METHODS(X)
#undef X

#define WEFT_METHOD(name) \
  Tensor Tensor::name() const { return weft::name(*this); }
WEFT_METHOD(logical_not)
WEFT_METHOD(isnan)
WEFT_METHOD(isinf)
WEFT_METHOD(isfinite)
#undef WEFT_METHOD

#define WEFT_METHOD(name)                                         \
  Tensor Tensor::name(const Dims& dims, OnlyBool keepdim) const { \
    return weft::name(*this, dims, keepdim);                      \
  }
WEFT_METHOD(mean)
WEFT_METHOD(max)
WEFT_METHOD(min)
WEFT_METHOD(logsumexp)
WEFT_METHOD(all)
WEFT_METHOD(any)
#undef WEFT_METHOD

Tensor Tensor::sum(const Dims& dims, OnlyBool keepdim, std::optional<DType> dtype) const {
  return weft::sum(*this, dims, keepdim, dtype);
}
Tensor Tensor::prod(const Dims& dims, OnlyBool keepdim, std::optional<DType> dtype) const {
  return weft::prod(*this, dims, keepdim, dtype);
}
bool Tensor::equal(const Tensor& other) const { return weft::equal(*this, other); }
bool Tensor::allclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return weft::allclose(*this, other, rtol, atol, equal_nan);
}

ValuesAndIndices Tensor::extreme(bool largest, std::int64_t dim, bool keepdim) const {
  return largest ? max_of_dim(*this, dim, keepdim) : min_of_dim(*this, dim, keepdim);
}
Tensor Tensor::argmax(std::optional<std::int64_t> dim, OnlyBool keepdim) const {
  return weft::argmax(*this, dim, keepdim);
}
Tensor Tensor::argmin(std::optional<std::int64_t> dim, OnlyBool keepdim) const {
  return weft::argmin(*this, dim, keepdim);
}
Tensor Tensor::var(const Dims& dims, double correction, OnlyBool keepdim) const {
  return weft::var(*this, dims, correction, keepdim);
}
Tensor Tensor::std(const Dims& dims, double correction, OnlyBool keepdim) const {
  return weft::std(*this, dims, correction, keepdim);
}
Tensor Tensor::softmax(std::int64_t dim) const { return weft::softmax(*this, dim); }
Tensor Tensor::log_softmax(std::int64_t dim) const { return weft::log_softmax(*this, dim); }
Tensor Tensor::cumsum(std::int64_t dim) const { return weft::cumsum(*this, dim); }
Tensor Tensor::cumprod(std::int64_t dim) const { return weft::cumprod(*this, dim); }
ValuesAndIndices Tensor::sort(std::int64_t dim, bool descending, bool stable) const {
  return weft::sort(*this, dim, descending, stable);
}
Tensor Tensor::argsort(std::int64_t dim, bool descending, bool stable) const {
  return weft::argsort(*this, dim, descending, stable);
}
ValuesAndIndices Tensor::topk(std::int64_t k, std::int64_t dim, bool largest, bool sorted) const {
  return weft::topk(*this, k, dim, largest, sorted);
}

Tensor Tensor::median() const { return weft::median(*this); }
ValuesAndIndices Tensor::median(std::int64_t dim, bool keepdim) const {
  return weft::median(*this, dim, keepdim);
}
Tensor Tensor::bincount(const Tensor& weights, std::int64_t minlength) const {
  return weft::bincount(*this, weights, minlength);
}
UniqueElements Tensor::unique(bool sorted, bool return_inverse, bool return_counts,
                              std::optional<std::int64_t> dim) const {
  return weft::unique(*this, sorted, return_inverse, return_counts, dim);
}

Tensor Tensor::matmul(const Tensor& other) const { return weft::matmul(*this, other); }
Tensor Tensor::dot(const Tensor& other) const { return weft::dot(*this, other); }
Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  return weft::index_select(*this, dim, index);
}
Tensor Tensor::gather(std::int64_t dim, const Tensor& index) const {
  return weft::gather(*this, dim, index);
}
Tensor Tensor::index_add(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return weft::index_add(*this, dim, index, source);
}
Tensor Tensor::scatter_add(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return weft::scatter_add(*this, dim, index, source);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return weft::scatter(*this, dim, index, source);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, double value) const {
  return weft::scatter(*this, dim, index, value);
}
Tensor Tensor::nonzero() const { return weft::nonzero(*this); }
Tensor Tensor::masked_select(const Tensor& mask) const { return weft::masked_select(*this, mask); }
std::vector<Tensor> Tensor::chunk(std::int64_t count, std::int64_t dim) const {
  return weft::chunk(*this, count, dim);
}
std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t dim) const {
  return weft::split(*this, size, dim);
}
std::vector<Tensor> Tensor::split(const Dims& sizes, std::int64_t dim) const {
  return weft::split(*this, sizes, dim);
}
Tensor Tensor::repeat(const Dims& counts) const { return weft::repeat(*this, counts); }
Tensor Tensor::flip(const Dims& dims) const { return weft::flip(*this, dims); }
Tensor Tensor::roll(std::int64_t shift, std::optional<std::int64_t> dim) const {
  return weft::roll(*this, shift, dim);
}
Tensor Tensor::tril(std::int64_t diagonal) const { return weft::tril(*this, diagonal); }
Tensor Tensor::triu(std::int64_t diagonal) const { return weft::triu(*this, diagonal); }

#define WEFT_METHOD(name)                                              \
  Tensor MoreMethods::name(const Dims& dims, OnlyBool keepdim) const { \
    return weft::name(self(), dims, keepdim);                          \
  }
WEFT_METHOD(amax)
WEFT_METHOD(amin)
WEFT_METHOD(norm)
#undef WEFT_METHOD
Tensor MoreMethods::p_norm(double p, const Dims& dims, bool keepdim) const {
  return weft::p_norm(self(), p, dims, keepdim);
}
Tensor MoreMethods::masked_fill(const Tensor& mask, double value) const {
  return weft::masked_fill(self(), mask, value);
}
Tensor MoreMethods::masked_fill(const Tensor& mask, const Tensor& value) const {
  return weft::masked_fill(self(), mask, value);
}
Tensor MoreMethods::clamp(std::optional<double> min, std::optional<double> max) const {
  return weft::clamp(self(), min, max);
}
Tensor MoreMethods::clamp(const Tensor& min, const Tensor& max) const {
  return weft::clamp(self(), min, max);
}
Tensor MoreMethods::clamp_min(double min) const { return weft::clamp_min(self(), min); }
Tensor MoreMethods::clamp_min(const Tensor& min) const { return weft::clamp_min(self(), min); }
Tensor MoreMethods::clamp_max(double max) const { return weft::clamp_max(self(), max); }
Tensor MoreMethods::clamp_max(const Tensor& max) const { return weft::clamp_max(self(), max); }
Tensor MoreMethods::fmod(const Tensor& other) const { return weft::fmod(self(), other); }
Tensor MoreMethods::fmod(double other) const { return weft::fmod(self(), other); }
Tensor MoreMethods::addcmul(const Tensor& a, const Tensor& b, double value) const {
  return weft::addcmul(self(), a, b, value);
}
Tensor MoreMethods::addcdiv(const Tensor& a, const Tensor& b, double value) const {
  return weft::addcdiv(self(), a, b, value);
}
Tensor MoreMethods::outer(const Tensor& other) const { return weft::outer(self(), other); }
std::vector<Tensor> MoreMethods::unbind(std::int64_t dim) const {
  return weft::unbind(self(), dim);
}
Tensor MoreMethods::diag(std::int64_t diagonal) const { return weft::diag(self(), diagonal); }
Tensor MoreMethods::repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim) const {
  return weft::repeat_interleave(self(), repeats, dim);
}
Tensor MoreMethods::repeat_interleave(const Tensor& repeats,
                                      std::optional<std::int64_t> dim) const {
  return weft::repeat_interleave(self(), repeats, dim);
}

}  // namespace weft
