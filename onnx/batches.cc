#include "weft/onnx/batches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"

namespace weft::onnx {
namespace {

// Row i of the result is row (i + shift) modulo the number of rows of x.
Tensor rows_of(const Tensor& x, std::int64_t rows, std::int64_t shift) {
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < rows; ++i) index.push_back((i + shift) % x.shape()[0]);
  return raw::index_select(x, 0, from_vector(index, {rows}, x.device()));
}

Tensor other_integers(const Tensor& x, std::int64_t rows, int number) {
  const Tensor plain = rows_of(x, rows, 0);
  const Tensor shifted = rows_of(x, rows, 1);
  if (!same_bits(plain, shifted)) return shifted;
  const Tensor flat = raw::flatten(plain);
  const Tensor rolled = rows_of(flat, flat.numel(), 1);
  if (!same_bits(flat, rolled)) return raw::reshape(rolled, plain.shape());
  if (x.dtype() == DType::boolean) return raw::logical_not(plain);
  WEFT_THROW(InvalidArgument, "onnx", "input ", number, " (", x.dtype(), " ", x.shape(),
             ") holds one value only, so what depends on it cannot be told from what is constant; "
             "give an example with different values");
}

// Random numbers of both signs, up to twice the largest magnitude in the example.
Tensor other_numbers(const Tensor& x, std::int64_t rows) {
  const Tensor y = raw::clone(rows_of(x, rows, 0));
  const double largest = x.numel() == 0 ? 1 : raw::max(raw::abs(x)).item<double>();
  const double bound = std::isfinite(largest) ? 2 * std::max(largest, 0.5) : 2;
  raw::uniform_(y, -bound, bound);
  return y;
}

}  // namespace

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const auto host = [](const Tensor& x) { return raw::contiguous(raw::to(x, Device())); };
  const Tensor x = host(a), y = host(b);
  return x.numel() == 0 ||
         std::memcmp(x.raw_data(), y.raw_data(),
                     static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

Batches batches_of(const std::vector<Tensor>& example, bool dynamic) {
  WEFT_CHECK(!example.empty(), InvalidArgument, "onnx", "needs an example of the inputs");
  Batches batches{.sizes = {1, 1}, .first = {}, .second = {}};
  for (const Tensor& x : example) {
    WEFT_CHECK(x.defined(), InvalidArgument, "onnx", "an input is an undefined tensor");
    if (!dynamic) continue;
    WEFT_CHECK(x.dim() > 0 && x.shape()[0] > 0 && x.shape()[0] == example[0].shape()[0],
               InvalidArgument, "onnx", "the inputs' first dimension must be one batch, got ",
               x.shape(), " beside ", example[0].shape(),
               "; set dynamic_batch to false if it is none");
    const std::int64_t rows = std::max<std::int64_t>(x.shape()[0], 2);
    batches.sizes = {rows, 2 * rows};
  }
  for (const Tensor& x : example) {
    const Tensor whole = x.dim() == 0 ? raw::reshape(x, {1}) : x;
    const std::int64_t rows = whole.shape()[0];
    const auto sized = [&](const Tensor& y) { return dynamic ? y : raw::reshape(y, x.shape()); };
    const auto [one, two] = dynamic ? batches.sizes : std::pair(rows, rows);
    batches.first.push_back(sized(rows == 0 ? whole : rows_of(whole, one, 0)));
    if (rows == 0) {
      batches.second.push_back(sized(whole));
    } else if (is_floating(x.dtype())) {
      batches.second.push_back(sized(other_numbers(whole, two)));
    } else {
      const int number = static_cast<int>(batches.second.size());
      batches.second.push_back(sized(other_integers(whole, two, number)));
    }
  }
  return batches;
}

}  // namespace weft::onnx
