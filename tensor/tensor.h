// Tensor: a strided view of a storage, with a slot that autograd fills.
#pragma once

#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/dtype.h"
#include "weft/core/base/lazy.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/allocator.h"
#include "weft/kernels/view.h"
#include "weft/tensor/more_methods.h"

namespace weft {

// Element-wise operations that are methods, too. A new operation need not be one: this header is
// included everywhere.
// clang-format off: the lists read as tables
#define WEFT_UNARY_METHODS(X)                                                           \
  X(neg) X(abs) X(sign) X(square) X(sqrt) X(rsqrt) X(reciprocal) X(exp) X(log) X(log1p) \
  X(expm1) X(erf) X(tan) X(sin) X(cos) X(tanh) X(sigmoid) X(relu) X(gelu) X(gelu_tanh)  \
  X(log_sigmoid) X(silu) X(floor) X(ceil) X(round) X(trunc)
#define WEFT_BINARY_METHODS(X)                                                          \
  X(add) X(sub) X(mul) X(div) X(pow) X(maximum) X(minimum) X(remainder) X(floor_divide) \
  X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(logical_and) X(logical_or) X(logical_xor)
// clang-format on

struct ValuesAndIndices;
struct UniqueElements;

/// Autograd's data of a tensor; tensor/ only owns and deletes it.
class AutogradMeta : public Pooled {
 public:
  virtual ~AutogradMeta() = default;
};

struct TensorImpl final : RefCounted, Pooled {
  TensorImpl(intrusive_ptr<Storage> memory, std::int64_t start, const Shape& sizes,
             const Strides& steps, DType type)
      : storage(std::move(memory)), offset(start), shape(sizes), strides(steps), dtype(type) {}

  intrusive_ptr<Storage> storage;
  std::int64_t offset;  // elements from the start of the storage
  Shape shape;
  Strides strides;  // elements
  DType dtype;
  Lazy<AutogradMeta> autograd;
};

/// A handle: copies share the same tensor. Methods on an undefined tensor throw InvalidArgument.
///
/// Methods marked (records) take part in automatic differentiation; they are declared here, so that
/// there is one Tensor type, and defined in autograd/. The same operations without a tape are in
/// weft::raw (tensor/ops.h). tensor/more_methods.h has those that the library itself hardly calls.
class Tensor : public MoreMethods {
 public:
  Tensor() = default;
  explicit Tensor(intrusive_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  /// x = y makes x another handle on y's tensor; x[0] = y and x[0] = 5 write into x.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  const Tensor& operator=(const Tensor& y) && { return assign(y); }
  template <class T>
    requires(std::integral<T> || std::floating_point<T>)
  const Tensor& operator=(T y) && {
    return assign(static_cast<double>(y));
  }
  template <class T>
    requires(std::integral<T> || std::floating_point<T>)
  Tensor& operator=(T) & = delete;  // row = 5.0 with a row = x[0]: row.fill_(5.0)

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const = delete;  // ambiguous: defined() or item<bool>()

  const Shape& shape() const { return get().shape; }
  /// A negative dim counts from the end. Throws Shape.
  [[nodiscard]] std::int64_t shape(std::int64_t dim) const;
  const Strides& strides() const { return get().strides; }
  [[nodiscard]] int dim() const { return get().shape.size(); }
  [[nodiscard]] std::int64_t numel() const { return weft::numel(get().shape); }
  DType dtype() const { return get().dtype; }
  Device device() const { return get().storage->device(); }
  const intrusive_ptr<Storage>& storage() const { return get().storage; }
  std::int64_t offset() const { return get().offset; }
  bool is_contiguous() const;     ///< row-major
  bool is_channels_last() const;  ///< 4-D, stored as N,H,W,C
  bool is_dense() const;          ///< no gaps and no overlap, in any dimension order
  bool same(const Tensor& other) const { return impl_ == other.impl_; }

  /// Address of element 0; device memory on CUDA. Throws Dtype if T is not dtype().
  template <class T>
  T* data() const {
    return static_cast<T*>(checked_data(dtype_of<T>));
  }
  void* raw_data() const;
  View view_of() const;

  /// The value of a one-element tensor, converted. Waits for the device. Throws Shape.
  template <class T>
  T item() const;
  /// The elements in row-major order, converted. Waits for the device.
  template <class T>
  std::vector<T> to_vector() const;

  // Views (records). Dimensions may be negative. Throw Shape.
  // What has an overload for a temporary, also after std::move, gives the tensor up. If no other
  // handle shares it, only the result uses its memory then, and the next operation may overwrite
  // it: relu(fc(x).reshape({-1, 64, 24, 24})).
  /// One entry may be -1; copies only if strides force it.
  Tensor reshape(const Shape& shape) const&;
  Tensor reshape(const Shape& shape) &&;
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const&;
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) &&;
  Tensor unflatten(std::int64_t dim, const Shape& sizes) const&;
  Tensor unflatten(std::int64_t dim, const Shape& sizes) &&;
  Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;
  Tensor t() const;  ///< transpose of a matrix; a vector or scalar stays as it is
  Tensor permute(const Dims& dims) const;
  /// Elements [start, end) at `step` > 0; negative bounds count from the end and are clamped.
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end,
               std::int64_t step = 1) const&;
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step = 1) &&;
  Tensor select(std::int64_t dim, std::int64_t index) const&;
  Tensor select(std::int64_t dim, std::int64_t index) &&;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const&;
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) &&;
  Tensor squeeze() const;
  Tensor squeeze(std::int64_t dim) const;
  Tensor unsqueeze(std::int64_t dim) const;
  Tensor expand(const Shape& shape) const;  ///< -1 keeps a dimension
  Tensor operator[](std::int64_t index) const& { return select(0, index); }
  Tensor operator[](std::int64_t index) && { return std::move(*this).select(0, index); }

  // Copies (records).
  Tensor contiguous() const;  ///< itself if already row-major
  Tensor clone() const;       ///< keeps a dense layout
  Tensor to(Device device) const;
  Tensor to(DType dtype) const;
  Tensor to(Device device, DType dtype) const;

  // Element by element (records): x.exp(), x.add(y), x.add(2), x.lt(y). All that follows is as the
  // function of the same name in the headers of autograd/ops.h.
#define WEFT_DECLARE(name) Tensor name() const;
  WEFT_UNARY_METHODS(WEFT_DECLARE)
#undef WEFT_DECLARE
#define WEFT_DECLARE(name)                \
  Tensor name(const Tensor& other) const; \
  Tensor name(double other) const;
  WEFT_BINARY_METHODS(WEFT_DECLARE)
#undef WEFT_DECLARE
  Tensor logical_not() const;
  Tensor isnan() const;
  Tensor isinf() const;
  Tensor isfinite() const;
  bool equal(const Tensor& other) const;
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8,
                bool equal_nan = false) const;

  // Reductions (records). No dims: all of them.
  Tensor sum(const Dims& dims = {}, OnlyBool keepdim = false,
             std::optional<DType> dtype = {}) const;
  Tensor mean(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor prod(const Dims& dims = {}, OnlyBool keepdim = false,
              std::optional<DType> dtype = {}) const;
  Tensor max(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor min(const Dims& dims = {}, OnlyBool keepdim = false) const;
  /// For one dimension, given as an integer: x.max(1), which has indices, while x.max({1}) has
  /// none.
  template <Integer Dim>
  ValuesAndIndices max(Dim dim, OnlyBool keepdim = false) const;
  template <Integer Dim>
  ValuesAndIndices min(Dim dim, OnlyBool keepdim = false) const;
  Tensor argmax(std::optional<std::int64_t> dim = {}, OnlyBool keepdim = false) const;
  Tensor argmin(std::optional<std::int64_t> dim = {}, OnlyBool keepdim = false) const;
  Tensor var(const Dims& dims = {}, double correction = 1, OnlyBool keepdim = false) const;
  Tensor std(const Dims& dims = {}, double correction = 1, OnlyBool keepdim = false) const;
  // x.var(0, 1) is no list of two dimensions; x.var({0, 1}) is one, and x.var({0}, 1) and the older
  // x.var(0, true) have a correction.
  Tensor var(std::integral auto, Integer auto, OnlyBool = false) const = delete;
  Tensor std(std::integral auto, Integer auto, OnlyBool = false) const = delete;
  Tensor logsumexp(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor all(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor any(const Dims& dims = {}, OnlyBool keepdim = false) const;
  Tensor softmax(std::int64_t dim) const;
  Tensor log_softmax(std::int64_t dim) const;
  ValuesAndIndices sort(std::int64_t dim = -1, bool descending = false, bool stable = false) const;
  Tensor argsort(std::int64_t dim = -1, bool descending = false, bool stable = false) const;
  ValuesAndIndices topk(std::int64_t k, std::int64_t dim = -1, bool largest = true,
                        bool sorted = true) const;
  Tensor median() const;
  ValuesAndIndices median(std::int64_t dim, bool keepdim = false) const;
  Tensor cumsum(std::int64_t dim) const;
  Tensor cumprod(std::int64_t dim) const;
  Tensor bincount(const Tensor& weights = {}, std::int64_t minlength = 0) const;
  UniqueElements unique(bool sorted = true, bool return_inverse = false, bool return_counts = false,
                        std::optional<std::int64_t> dim = {}) const;

  // Products, selecting and arranging (records).
  Tensor matmul(const Tensor& other) const;
  Tensor dot(const Tensor& other) const;
  Tensor index_select(std::int64_t dim, const Tensor& index) const;
  Tensor gather(std::int64_t dim, const Tensor& index) const;
  Tensor index_add(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor scatter_add(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, double value) const;
  Tensor nonzero() const;
  Tensor masked_select(const Tensor& mask) const;
  /// x[mask]: the elements where the mask is true; the mask covers the first dimensions of x.
  Tensor operator[](const Tensor& mask) const;
  std::vector<Tensor> chunk(std::int64_t count, std::int64_t dim = 0) const;
  std::vector<Tensor> split(std::int64_t size, std::int64_t dim = 0) const;
  std::vector<Tensor> split(const Dims& sizes, std::int64_t dim) const;
  Tensor repeat(const Dims& counts) const;
  Tensor flip(const Dims& dims) const;
  Tensor roll(std::int64_t shift, std::optional<std::int64_t> dim = {}) const;
  Tensor tril(std::int64_t diagonal = 0) const;
  Tensor triu(std::int64_t diagonal = 0) const;

  // Autograd (defined in autograd/).
  bool requires_grad() const;
  /// Throws InvalidArgument for a tensor that is not a leaf, Dtype for an integer one.
  const Tensor& set_requires_grad(bool requires_grad = true) const;
  bool is_leaf() const;
  /// Undefined until a backward has reached this leaf. A handle: later gradients are added to the
  /// same memory, except with create_graph.
  Tensor grad() const;
  /// `grad`, of this leaf's shape, dtype and device, becomes .grad(): the same memory, or a copy in
  /// that of set_grad_storage. If undefined, as zero_grad(). Throws InvalidArgument unless a leaf.
  void set_grad(const Tensor& grad) const;
  /// A view of the same memory that is not on the tape.
  Tensor detach() const;
  /// Computes dL/dleaf into .grad() of every leaf, where L is this one-element tensor; with
  /// `gradient`, this tensor may have any shape and `gradient` is dL/dthis of that shape.
  void backward(const Tensor& gradient = {}, bool retain_graph = false,
                bool create_graph = false) const;

  TensorImpl* impl() const { return impl_.get(); }

 private:
  ValuesAndIndices extreme(bool largest, std::int64_t dim, bool keepdim) const;
  /// `method`: the caller's name, for the message.
  const TensorImpl& get(const char* method = __builtin_FUNCTION()) const {
    if (!impl_) [[unlikely]]
      throw_undefined(method);
    return *impl_;
  }
  [[noreturn]] static void throw_undefined(const char* method);
  void* checked_data(DType expected) const;

  intrusive_ptr<TensorImpl> impl_;
};

/// The results of sort and topk, and of max, min and median over one dimension.
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;  ///< i64, the position of each value; of max and min the first one
};

/// The results of unique. inverse and counts are undefined unless asked for.
struct UniqueElements {
  Tensor values, inverse, counts;
};

template <Integer Dim>
ValuesAndIndices Tensor::max(Dim dim, OnlyBool keepdim) const {
  return extreme(true, static_cast<std::int64_t>(dim), keepdim);
}
template <Integer Dim>
ValuesAndIndices Tensor::min(Dim dim, OnlyBool keepdim) const {
  return extreme(false, static_cast<std::int64_t>(dim), keepdim);
}
template <class P>
  requires(std::integral<P> || std::floating_point<P>)
Tensor MoreMethods::norm(P p, const Dims& dims, bool keepdim) const {
  return p_norm(static_cast<double>(p), dims, keepdim);
}
template <class P, std::integral Dim>
  requires(std::integral<P> || std::floating_point<P>)
Tensor MoreMethods::norm(P p, Dim dim, bool keepdim) const {
  return p_norm(static_cast<double>(p), dim, keepdim);
}

/// Like numpy prints an array: brackets for the shape, `...` above 1000 elements, then dtype and
/// device unless they are f32 and cpu.
std::string to_string(const Tensor& x);
std::ostream& operator<<(std::ostream& out, const Tensor& x);

}  // namespace weft
