// CsvDataset: the lines of a CSV file as samples.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "weft/data/tensor_dataset.h"
#include "weft/io/csv.h"

namespace weft::data {

struct CsvDatasetOptions {
  io::CsvOptions format = {};
  /// The column of the labels: its name in the header, or its index, from 0 on; from the end, -1 is
  /// the last.
  std::variant<int, std::string> label = -1;
  DType dtype = DType::f32;  ///< of x
  DType label_dtype =
      DType::i64;  ///< i64 for classes, a floating dtype for numbers to be predicted
};

/// A table of numbers in memory: x [B, columns - 1], all columns but that of the labels, in their
/// order, and label [B].
///   data::DataLoader train(data::CsvDataset("iris.csv", {.label = "species"}),
///                          {.batch_size = 16, .shuffle = true});
///   for (auto& [x, label] : train) ...
/// For other choices of columns make a TensorDataset from io::read_csv()'s tensor; of arrays of
/// numpy's, one from io::load_npy().
class CsvDataset : public TensorDataset<2> {
 public:
  /// Throws what io::read_csv() throws; Io, with line and column, for a label that is no integer
  /// where label_dtype is i64; InvalidArgument for a label column that the file lacks or has twice,
  /// and for other dtypes.
  explicit CsvDataset(const std::string& path, const CsvDatasetOptions& options = {});

  /// The names of x's columns; empty for a file without a header.
  const std::vector<std::string>& columns() const { return columns_; }
  const Tensor& x() const { return tensors()[0]; }
  const Tensor& label() const { return tensors()[1]; }

 private:
  struct Parts;
  static Parts read(const std::string& path, const CsvDatasetOptions& options);
  explicit CsvDataset(Parts parts);

  std::vector<std::string> columns_;
};

}  // namespace weft::data
