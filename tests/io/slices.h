// Slices of tensors as ranks have them. The ranks write their files one after the other: they only
// exchange texts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/file.h"
#include "weft/io/slice_reader.h"
#include "weft/io/slice_writer.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/io/files.h"

namespace weft::io {

using Ranks = std::vector<std::vector<TensorSlice>>;  // the slices of each rank

inline TensorSlice slice(const std::string& name, const Tensor& whole, const Shape& at,
                         const Shape& sizes) {
  Tensor part = whole;
  for (int d = 0; d < at.size(); ++d) part = raw::narrow(part, d, at[d], sizes[d]);
  return {name, whole.shape(), at, part};
}
inline TensorSlice all_of(const std::string& name, const Tensor& whole) {
  return slice(name, whole, Shape::filled(whole.dim(), 0), whole.shape());
}

/// Deals out a dimension in parts of ceil(size / n).
inline void deal_out(Ranks& ranks, const std::string& name, const Tensor& whole, int dim) {
  const std::int64_t n = std::ssize(ranks), most = (whole.shape(dim) + n - 1) / n;
  for (std::int64_t r = 0; r < n; ++r) {
    Shape at = Shape::filled(whole.dim(), 0), sizes = whole.shape();
    at[dim] = std::min(r * most, whole.shape(dim));
    sizes[dim] = std::min(most, whole.shape(dim) - at[dim]);
    ranks[static_cast<std::size_t>(r)].push_back(slice(name, whole, at, sizes));
  }
}

class TensorSlices : public ::testing::Test {
 protected:
  std::vector<SliceWriter> writers(const Ranks& ranks, const Metadata& metadata = {},
                                   std::uint64_t most_bytes = 5'000'000'000) const {
    std::vector<std::string> described;
    for (const auto& own : ranks) described.push_back(describe(own));
    std::vector<SliceWriter> result;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      result.emplace_back(stem, ranks[r], static_cast<int>(r), described, metadata, most_bytes);
    }
    return result;
  }
  /// Returns the files' paths.
  std::vector<std::string> save(const Ranks& ranks, const Metadata& metadata = {},
                                std::uint64_t most_bytes = 5'000'000'000) const {
    const std::vector<SliceWriter> all = writers(ranks, metadata, most_bytes);
    const std::string made = all[0].make_files();
    std::vector<std::string> written;
    for (const SliceWriter& writer : all) written.push_back(writer.write(made));
    all[0].finish(made, written);
    write_file_atomically(folder.path("model.safetensors.index.json"), all[0].index());
    std::vector<std::string> paths;
    for (const std::string& name : all[0].files()) paths.push_back(folder.path(name));
    return paths;
  }
  /// Expects that a load of the slice gives its values.
  static void expect_read(const SliceReader& reader, const TensorSlice& wanted) {
    const Tensor got = zeros(wanted.tensor.shape(), wanted.tensor.dtype());
    reader.read({wanted.name, wanted.whole, wanted.offsets, got});
    EXPECT_EQ(got.to_vector<double>(), wanted.tensor.to_vector<double>())
        << wanted.name << ' ' << wanted.tensor.shape() << " at " << wanted.offsets;
  }

  testing::TempFolder folder;
  std::string stem = folder.path("model-7");
};

// Rows, columns and blocks, cut in three ways; all dtypes; tensors without dimensions or without
// elements.
inline Ranks many(int n, std::vector<std::pair<std::string, Tensor>>& whole) {
  Ranks ranks(static_cast<std::size_t>(n));
  const auto add = [&](const std::string& name, const Tensor& x, int dim) {
    whole.emplace_back(name, x);
    if (dim >= 0) return deal_out(ranks, name, x, dim);
    for (auto& own : ranks) own.push_back(all_of(name, x));  // each rank has all of it
  };
  Generator generator(3);
  const auto draw = [&](const Shape& shape, DType dtype) {
    return raw::to(uniform(shape, -9, 9, DType::f64, &generator), dtype);
  };
  add("rows", draw({7, 5}, DType::f32), 0);
  add("columns", draw({7, 5}, DType::f64), 1);
  add("middle", draw({3, 4, 5}, DType::bf16), 1);
  add("i64", draw({9}, DType::i64), 0);
  add("i32", draw({2, 3}, DType::i32), 1);
  add("u8", raw::to(uniform({5, 3}, 0, 9, DType::f64, &generator), DType::u8), 0);
  add("flags", raw::to(draw({11}, DType::i32), DType::boolean), 0);
  add("scalar", draw({}, DType::f32), -1);
  add("none", zeros({0, 4}), 0);
  add("none of columns", zeros({4, 0}), 1);
  add("same", draw({3}, DType::f32), -1);
  add("transposed", raw::transpose(draw({6, 4}, DType::f32), 0, 1), 0);
  return ranks;
}

}  // namespace weft::io
