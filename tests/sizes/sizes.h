// The table of tests/sizes: one row per declaration with an integral argument, with a valid call.
// The test sets each argument to numbers that no caller should pass, and every call must return a
// sound result or throw weft::Error. table.py finds declarations without a row.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/base/shape.h"
#include "weft/tensor/tensor.h"

namespace weft::testing {

/// An argument, which converts to any integral type: clipped to the range of a narrower one; for an
/// unsigned one by C++'s conversion.
struct Size {
  std::int64_t value;

  template <std::integral T>
    requires(!std::same_as<T, bool>)
  operator T() const {
    if constexpr (std::unsigned_integral<T>) {
      return static_cast<T>(value);
    } else {
      using Limits = std::numeric_limits<T>;
      return static_cast<T>(std::clamp<std::int64_t>(value, Limits::min(), Limits::max()));
    }
  }
};

/// The arguments of a call, in the order of the row's name; each has one or several numbers.
class Sizes {
 public:
  using Values = std::vector<std::vector<std::int64_t>>;

  explicit Sizes(const Values& values) : values_(values) {}

  Size operator[](std::size_t i) const { return {values_[i][0]}; }
  Size operator()(std::size_t i, std::size_t j) const { return {values_[i][j]}; }
  Dims dims(std::size_t i) const { return Dims(std::span<const std::int64_t>(values_[i])); }
  const std::vector<std::int64_t>& list(std::size_t i) const { return values_[i]; }
  std::array<std::int64_t, 2> pair(std::size_t i) const { return {values_[i][0], values_[i][1]}; }

 private:
  const Values& values_;
};

/// The tensors that a call returned; none if it returned something else.
struct Result {
  Result() = default;
  Result(Tensor x) : tensors{std::move(x)} {}
  Result(std::vector<Tensor> x) : tensors(std::move(x)) {}
  Result(std::initializer_list<Tensor> x) : tensors(x) {}
  Result(const std::pair<Tensor, Tensor>& x) : tensors{x.first, x.second} {}
  Result(const ValuesAndIndices& x) : tensors{x.values, x.indices} {}

  std::vector<Tensor> tensors;
};

struct Row {
  /// In table.py's form of the declaration. A second row for the same one has " / words" after it.
  const char* declaration;
  Sizes::Values right;
  Result (*call)(const Sizes& sizes);
};

/// For gtest's value of the parameter: the default copy would be the name of the test.
void PrintTo(const Row& row, std::ostream* out);

class SizesTest : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override;
  void TearDown() override;
};

/// Only letters, digits and _.
std::string name_of(const ::testing::TestParamInfo<Row>& info);

/// 0, 1, 2, ...
Tensor ramp(const Shape& shape, DType dtype = DType::f32);
/// The same, with a gradient.
Tensor leaf(const Shape& shape);

/// A row's call, which finds the row's numbers in `s`: one that returns tensors, or another one.
#define GIVES(...) [](const Sizes& s) -> Result { return __VA_ARGS__; }
#define RUNS(...)                \
  [](const Sizes& s) -> Result { \
    __VA_ARGS__;                 \
    return {};                   \
  }

/// Instantiates the test for a room's rows.
#define WEFT_SIZES(room, ...)                                                                   \
  INSTANTIATE_TEST_SUITE_P(room, SizesTest, ::testing::ValuesIn(std::vector<Row>(__VA_ARGS__)), \
                           name_of)

}  // namespace weft::testing
