// Batches cut up over devices, and results put together again.
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
#include "weft/tensor/tensor.h"
#include "weft/tensor/tree.h"

namespace weft::parallel {

/// How many rows of a batch each of n devices gets: ceil(rows / n) except the last, like PyTorch's
/// chunk, so there may be fewer parts than devices: 5 over 4 gives 2, 2, 1. With weights, one per
/// device, the rows are in proportion to them, rounded so that the sum is right and each part has a
/// row. Without rows: one empty part. Throws InvalidArgument for weights that are not n finite
/// numbers above 0, for a negative number of rows, and for n outside [1, 2^24].
std::vector<std::int64_t> part_sizes(std::int64_t rows, std::size_t n,
                                     std::span<const double> weights = {});

struct ScatterOptions {
  int dim = 0;                       ///< along which batches are cut
  std::vector<double> weights = {};  ///< of the devices; empty: equal parts
};

namespace detail {

/// Learns the number of rows from each tensor of the arguments.
class Rows {
 public:
  explicit Rows(int dim) : dim_(dim) {}
  /// Throws Shape when it has another number than those before.
  void see(const Tensor& x);
  std::optional<std::int64_t> count() const { return count_; }

 private:
  int dim_;
  std::optional<std::int64_t> count_;
};

/// x in parts of these sizes, each on its device. Records.
std::vector<Tensor> scatter_tensor(const Tensor& x, std::span<const Device> devices,
                                   std::span<const std::int64_t> sizes, int dim);
/// One tensor on `device`. Records.
Tensor gather_tensor(std::span<const Tensor> parts, Device device, int dim);

struct Same {
  Tensor operator()(const Tensor& x) const { return x; }
};
/// What map_tensors makes of a T.
template <class T>
using Mapped = decltype(map_tensors(std::declval<T>(), Same()));

/// As scatter(), with the sizes known.
template <class T>
std::vector<Mapped<const T&>> scatter_parts(const T& value, std::span<const Device> devices,
                                            std::span<const std::int64_t> sizes, int dim) {
  std::vector<std::vector<Tensor>> parts;  // by place in the value, by device
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
  detail::Rows rows(options.dim);
  for_each_tensor(value, [&](const Tensor& x) { rows.see(x); });
  WEFT_CHECK(!devices.empty(), InvalidArgument, "scatter", "needs at least one device");
  const auto sizes = part_sizes(rows.count().value_or(0), devices.size(), options.weights);
  return detail::scatter_parts(value, devices, sizes, options.dim);
}

/// The results of several devices as one on `device`: each tensor put together along `dim` of those
/// in its place; tensors without dimensions become a vector, as PyTorch's scalars do, with an
/// element for each: a loss that is to be averaged. What is no tensor is the first part's. Throws
/// InvalidArgument without parts, or when one has other tensors than the first, Shape when they do
/// not fit together.
template <class T>
T gather(std::span<const T> parts, Device device, int dim = 0) {
  check_walkable<T>("gather");
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
