#include "weft/parallel/scatter_gather.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/shape.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {

namespace {

// More than any schedule has micro-batches, but a list of this length is still small.
constexpr std::size_t kMostParts = std::size_t{1} << 24;

}  // namespace

std::vector<std::int64_t> part_sizes(std::int64_t rows, std::size_t n,
                                     std::span<const double> weights) {
  WEFT_CHECK(rows >= 0, InvalidArgument, "scatter", "got ", rows, " rows");
  WEFT_CHECK(n >= 1 && n <= kMostParts, InvalidArgument, "scatter", "got ", n,
             " parts, expected 1 to ", kMostParts);
  std::vector<std::int64_t> sizes;
  if (weights.empty()) {
    const std::int64_t each = ceil_div(rows, static_cast<std::int64_t>(n));
    for (std::int64_t left = rows; left > 0; left -= sizes.back()) {
      sizes.push_back(std::min(each, left));
    }
  } else {
    const bool fits = std::ranges::all_of(
        weights, [](double weight) { return std::isfinite(weight) && weight > 0; });
    WEFT_CHECK(weights.size() == n && fits, InvalidArgument, "scatter", "got ", weights.size(),
               " weights for ", n, " devices; expected a number above 0 for each");
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0;
    std::int64_t begin = 0;
    for (const double weight : weights) {
      sum += weight;
      if (begin == rows) break;
      // A large number of rows is rounded in f64: `due` may be 2^63, which is no int64.
      const double due = std::round(static_cast<double>(rows) * (sum / all));
      const bool fits = due < static_cast<double>(rows);
      const std::int64_t end = fits ? std::max(begin + 1, static_cast<std::int64_t>(due)) : rows;
      sizes.push_back(end - begin);
      begin = end;
    }
  }
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

namespace detail {

void Rows::see(const Tensor& x) {
  if (!x.defined() || x.dim() == 0) return;
  const std::int64_t rows = x.shape(dim_);
  WEFT_CHECK(!count_ || *count_ == rows, Shape, "scatter", "a tensor ", x.shape(), " has ", rows,
             " rows in dimension ", dim_, ", one before it ", *count_);
  count_ = rows;
}

std::vector<Tensor> scatter_tensor(const Tensor& x, std::span<const Device> devices,
                                   std::span<const std::int64_t> sizes, int dim) {
  std::vector<Tensor> parts;
  if (!x.defined()) {
    parts.resize(sizes.size());
  } else if (x.dim() == 0 || sizes.size() == 1) {
    for (std::size_t i = 0; i < sizes.size(); ++i) parts.push_back(x.to(devices[i]));
  } else {
    Dims dims;
    for (const std::int64_t size : sizes) dims.push_back(size);
    parts = split(x, dims, dim);
    for (std::size_t i = 0; i < sizes.size(); ++i) parts[i] = parts[i].to(devices[i]);
  }
  return parts;
}

namespace {

// Each part is copied once, from its device straight to its place in the result.
struct Gather : autograd::Function<Gather> {
  static constexpr bool nests_backward = false;

  struct Place {
    Device device;
    std::int64_t rows = 0;
  };
  struct Plan {
    int dim = 0;
    std::vector<Place> places;
  };

  static Tensor forward(autograd::Context& ctx, std::span<const Tensor> parts, Device device,
                        int dim) {
    Plan plan{normalize_dim(dim, parts[0].dim(), "gather"), {}};
    Shape shape = parts[0].shape();
    shape[plan.dim] = 0;
    for (const Tensor& part : parts) {
      Shape expected = parts[0].shape();
      if (part.dim() == parts[0].dim()) expected[plan.dim] = part.shape(plan.dim);
      WEFT_CHECK(part.shape() == expected && part.dtype() == parts[0].dtype(), Shape, "gather",
                 "a part is ", part.shape(), ' ', part.dtype(), ", the first is ", parts[0].shape(),
                 ' ', parts[0].dtype(), "; only dimension ", plan.dim, " may differ");
      plan.places.push_back({part.device(), part.shape(plan.dim)});
      shape[plan.dim] += part.shape(plan.dim);
    }
    const Scoped owner(&ThreadState::memory_owner, MemoryOwner::gathered);
    const Tensor whole = empty(shape, {parts[0].dtype(), device});
    std::int64_t begin = 0;
    for (const Tensor& part : parts) {
      const std::int64_t rows = part.shape(plan.dim);
      raw::copy_(raw::narrow(whole, plan.dim, begin, rows), part);
      begin += rows;
    }
    ctx.data = std::move(plan);
    return whole;
  }

  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const Span span("parallel", "scatter_gradients");
    const auto& plan = std::any_cast<const Plan&>(ctx.data);
    std::vector<Tensor> result;
    std::int64_t begin = 0;
    for (const Place& place : plan.places) {
      const int input = static_cast<int>(result.size());
      const Tensor part = raw::narrow(grads[0], plan.dim, begin, place.rows);
      result.push_back(ctx.needs_input_grad(input) ? raw::to(part, place.device) : Tensor());
      begin += place.rows;
    }
    return result;
  }
};

}  // namespace

Tensor gather_tensor(std::span<const Tensor> parts, Device device, int dim) {
  const bool defined = parts[0].defined();
  for (const Tensor& part : parts) {
    WEFT_CHECK(part.defined() == defined, InvalidArgument, "gather",
               "a tensor is defined in one part and not in another");
  }
  if (!defined) return Tensor();
  if (parts[0].dim() > 0) return Gather::apply(parts, device, dim);
  std::vector<Tensor> vectors;
  for (const Tensor& part : parts) {
    WEFT_CHECK(part.dim() == 0, Shape, "gather", "a part is ", part.shape(), ", the first is []");
    vectors.push_back(part.unsqueeze(0));
  }
  return Gather::apply(std::span<const Tensor>(vectors), device, 0);
}

}  // namespace detail
}  // namespace weft::parallel
