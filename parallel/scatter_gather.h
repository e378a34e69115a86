// Cuts batches into parts on several devices, and joins results again.
//
//   auto parts = scatter(batch, devices);      // any structure that holds tensors
//   ... each part on its device ...
//   auto whole = gather(results, devices[0]);
//
// Both are on the tape: the backward of gather scatters gradients, that of scatter gathers them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/tree.h"

namespace weft::parallel {

/// How many rows of a batch each of n devices gets: ceil(rows / n) except the last, like PyTorch's
/// chunk, so there may be fewer parts than devices: 5 rows on 4 devices give 2, 2, 1. With weights,
/// one per device, the rows are in proportion to them, rounded so that the sum is right and each
/// part has a row. For 0 rows there is one empty part. Throws InvalidArgument for weights that are
/// not n finite numbers above 0, for a negative number of rows, and for n outside [1, 2^24].
std::vector<std::int64_t> part_sizes(std::int64_t rows, std::size_t n,
                                     std::span<const double> weights = {});

struct ScatterOptions {
  int dim = 0;                       ///< dimension along which batches are cut
  std::vector<double> weights = {};  ///< sizes of the devices' parts, in proportion; empty: equal
};

namespace detail {

/// Finds the number of rows from the tensors of the arguments.
class Rows {
 public:
  explicit Rows(int dim) : dim_(dim) {}
  /// Throws Shape if x has another number of rows than the tensors before.
  void see(const Tensor& x);
  std::optional<std::int64_t> count() const { return count_; }

 private:
  int dim_;
  std::optional<std::int64_t> count_;
};

/// Cuts x into parts of these sizes, each on its device. On the tape.
std::vector<Tensor> scatter_tensor(const Tensor& x, std::span<const Device> devices,
                                   std::span<const std::int64_t> sizes, int dim);
/// Joins the parts on `device`. On the tape.
Tensor gather_tensor(std::span<const Tensor> parts, Device device, int dim);

struct Same {
  Tensor operator()(const Tensor& x) const { return x; }
};
/// The result type of map_tensors for a T.
template <class T>
using Mapped = decltype(map_tensors(std::declval<T>(), Same()));

/// As scatter(), with the sizes given.
template <class T>
std::vector<Mapped<const T&>> scatter_parts(const T& value, std::span<const Device> devices,
                                            std::span<const std::int64_t> sizes, int dim) {
  std::vector<std::vector<Tensor>> parts;  // first index: tensor in the value; second: device
  for_each_tensor(
      value, [&](const Tensor& x) { parts.push_back(scatter_tensor(x, devices, sizes, dim)); });
  std::vector<Mapped<const T&>> result;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto place = parts.begin();
    result.push_back(map_tensors(value, [&](const Tensor&) { return (*place++)[i]; }));
  }
  return result;
}

}  // namespace detail

/// Cuts each tensor in `value` along a dimension and puts the i-th part on devices[i]; returns as
/// many results as there are parts (part_sizes). A tensor without dimensions goes to all parts, and
/// so does everything that is not a tensor. `value` is anything that tensor/tree.h visits. Throws
/// Shape when the tensors differ in the number of rows, InvalidArgument for a type that may hide
/// tensors or without devices.
template <class T>
auto scatter(const T& value, std::span<const Device> devices, const ScatterOptions& options = {}) {
  check_walkable<T>("scatter");
  const Span span("parallel", "scatter");
  detail::Rows rows(options.dim);
  for_each_tensor(value, [&](const Tensor& x) { rows.see(x); });
  WEFT_CHECK(!devices.empty(), InvalidArgument, "scatter", "needs at least one device");
  const auto sizes = part_sizes(rows.count().value_or(0), devices.size(), options.weights);
  return detail::scatter_parts(value, devices, sizes, options.dim);
}

/// Joins the results of several devices on `device`: tensors in the same place are put together
/// along `dim`. Tensors without dimensions become a vector with an element for each, as in PyTorch:
/// a loss must then be averaged. Everything else is taken from the first part. Throws
/// InvalidArgument without parts, or if a part has other tensors than the first; Shape if the
/// tensors do not fit together.
template <class T>
T gather(std::span<const T> parts, Device device, int dim = 0) {
  check_walkable<T>("gather");
  const Span span("parallel", "gather");
  WEFT_CHECK(!parts.empty(), InvalidArgument, "gather", "needs at least one part");
  std::vector<std::vector<Tensor>> tensors(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for_each_tensor(parts[i], [&](const Tensor& x) { tensors[i].push_back(x); });
    WEFT_CHECK(tensors[i].size() == tensors[0].size(), InvalidArgument, "gather", "part ", i,
               " has ", tensors[i].size(), " tensors, part 0 has ", tensors[0].size());
  }
  std::size_t place = 0;
  return map_tensors(parts[0], [&](const Tensor&) {
    std::vector<Tensor> column;
    for (const std::vector<Tensor>& part : tensors) column.push_back(part[place]);
    ++place;
    return detail::gather_tensor(column, device, dim);
  });
}
template <class T>
T gather(const std::vector<T>& parts, Device device, int dim = 0) {
  return gather(std::span<const T>(parts), device, dim);
}

}  // namespace weft::parallel
