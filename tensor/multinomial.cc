#include "weft/tensor/multinomial.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/internal.h"
#include "weft/tensor/ops.h"

namespace weft {

using namespace raw::internal;

namespace {

double uniform(Generator& generator) {
  double u = 0;
  generator.uniform({&u, 1}, 0, 1);
  return u;
}

// By binary search in the running sums.
template <class T>
void draw_with_replacement(std::span<const T> weights, Generator& generator,
                           std::span<std::int64_t> drawn) {
  using A = accumulate_t<T>;
  std::vector<A> sums(weights.size());
  A sum = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sum += element_cast<A>(weights[i]);
  for (A& s : sums) s /= sum;
  sums.back() = 1;
  for (std::int64_t& index : drawn) {
    index = std::ranges::lower_bound(sums, uniform(generator)) - sums.begin();
  }
}

// The largest values of weight / Exp(1): the Gumbel trick (pytorch/pytorch#11931).
template <class T>
void draw_without_replacement(std::span<const T> weights, Generator& generator,
                              std::span<std::int64_t> drawn) {
  using A = accumulate_t<T>;
  std::vector<A> keys(weights.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const T exponential = element_cast<T>(-std::log1p(-uniform(generator)));
    const A weight = element_cast<A>(weights[i]);
    const T key = element_cast<T>(weight / element_cast<A>(exponential));
    keys[i] = weight > 0 ? element_cast<A>(key) : A(-1);  // a key may underflow to 0
  }
  std::vector<std::int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](std::int64_t i, std::int64_t j) {
    const A a = keys[static_cast<std::size_t>(i)], b = keys[static_cast<std::size_t>(j)];
    return a != b ? a > b : i < j;
  };
  const auto end = order.begin() + std::ssize(drawn);
  std::nth_element(order.begin(), end, order.end(), before);
  std::sort(order.begin(), end, before);
  std::copy(order.begin(), end, drawn.begin());
}

template <class T>
void check_row(const char* op, std::span<const T> row, std::int64_t num_samples, bool replacement) {
  std::int64_t possible = 0;
  for (const T element : row) {
    const auto p = static_cast<double>(element_cast<accumulate_t<T>>(element));
    WEFT_CHECK(p >= 0 && std::isfinite(p), InvalidArgument, op, "probabilities: got ", p,
               ", expected 0 or more, and finite");
    possible += p > 0;
  }
  WEFT_CHECK(possible > 0, InvalidArgument, op, "probabilities: got none of ", row.size(),
             " above 0 in a row, expected one");
  WEFT_CHECK(replacement || num_samples <= possible, InvalidArgument, op, "num_samples: got ",
             num_samples, ", expected at most ", possible,
             " without replacement, as many as are above 0");
}

}  // namespace

template <class T>
void draw_by_weight(std::span<const T> weights, bool replacement, Generator& generator,
                    std::span<std::int64_t> drawn) {
  // As in PyTorch: a single sample is drawn without replacement.
  if (replacement && drawn.size() > 1) {
    draw_with_replacement(weights, generator, drawn);
  } else {
    draw_without_replacement(weights, generator, drawn);
  }
}

template void draw_by_weight(std::span<const double>, bool, Generator&, std::span<std::int64_t>);

Tensor multinomial(const Tensor& probabilities, std::int64_t num_samples, bool replacement,
                   Generator* generator) {
  const char* op = "multinomial";
  check_floating(op, "probabilities", probabilities);
  const Shape& shape = probabilities.shape();
  WEFT_CHECK(shape.size() == 1 || shape.size() == 2, Shape, op, "probabilities: got ", shape,
             ", expected [count] or [rows,count]");
  WEFT_CHECK(num_samples >= 1, InvalidArgument, op, "num_samples: got ", num_samples,
             ", expected 1 or more");
  WEFT_CHECK(replacement || num_samples <= shape.back(), InvalidArgument, op, "num_samples: got ",
             num_samples, ", expected at most ", shape.back(), " without replacement");
  const Span span("op", op);
  const Device device = probabilities.device();
  graph::check_not_capturing(op, "the host waits for the probabilities");
  Shape drawn_shape = shape;
  drawn_shape[std::ssize(shape) - 1] = num_samples;
  const Tensor drawn = empty(drawn_shape, {DType::i64, Device()});
  if (drawn.numel() == 0) return raw::to(drawn, device);
  const Tensor on_host = raw::to(raw::contiguous(probabilities), Device());
  Generator& from = generator ? *generator : default_generator(device);
  dispatch_floating(probabilities.dtype(), op, [&]<class T>() {
    const std::int64_t rows = drawn.numel() / num_samples, count = shape.back();
    const auto weights = [&](std::int64_t r) {
      return std::span<const T>(on_host.data<T>() + r * count, static_cast<std::size_t>(count));
    };
    for (std::int64_t r = 0; r < rows; ++r) check_row(op, weights(r), num_samples, replacement);
    for (std::int64_t r = 0; r < rows; ++r) {
      draw_by_weight(
          weights(r), replacement, from,
          {drawn.data<std::int64_t>() + r * num_samples, static_cast<std::size_t>(num_samples)});
    }
  });
  return raw::to(drawn, device);
}

}  // namespace weft
