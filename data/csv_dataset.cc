#include "weft/data/csv_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/ops.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "csv_dataset";

/// The index of the labels' column.
std::int64_t label_column(const io::CsvTable& table, const std::variant<int, std::string>& label,
                          const std::string& path) {
  const std::int64_t width = table.values.shape(1);
  if (const int* const index = std::get_if<int>(&label)) {
    WEFT_CHECK(*index >= -width && *index < width, InvalidArgument, kOp, path, ": label column ",
               *index, " is outside the ", width, " columns");
    return *index < 0 ? *index + width : *index;
  }
  const std::string& name = std::get<std::string>(label);
  const auto count = std::ranges::count(table.columns, name);
  std::string names;
  for (const std::string& column : table.columns) names += " \"" + column + '"';
  WEFT_CHECK(count > 0, InvalidArgument, kOp, path, ": no column \"", name, "\"; there are",
             names.empty() ? " no names" : names);
  WEFT_CHECK(count == 1, InvalidArgument, kOp, path, ": ", count, " columns are called \"", name,
             "\"; give the index of the labels' column");
  return std::ranges::find(table.columns, name) - table.columns.begin();
}

/// Labels of classes, as i64.
Tensor classes(const Tensor& label, const io::CsvTable& table, std::int64_t column,
               const std::string& path) {
  // From this number on f64 cannot represent every integer.
  constexpr double kMost = 0x1p53;
  const std::vector<double> values = label.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    WEFT_CHECK(std::trunc(values[i]) == values[i] && std::abs(values[i]) < kMost, Io, kOp, path,
               ": line ", table.lines[i], ", column ", column + 1, ": label ", values[i],
               " is no integer; label_dtype = DType::f32 is for numbers that are to be predicted");
  }
  return raw::to(label, DType::i64);
}

}  // namespace

struct CsvDataset::Parts {
  Tensor x, label;
  std::vector<std::string> columns;
};

CsvDataset::Parts CsvDataset::read(const std::string& path, const CsvDatasetOptions& options) {
  WEFT_CHECK(is_floating(options.dtype), InvalidArgument, kOp, "dtype: got ", options.dtype,
             ", expected a floating one");
  WEFT_CHECK(options.label_dtype == DType::i64 || is_floating(options.label_dtype), InvalidArgument,
             kOp, "label_dtype: got ", options.label_dtype, ", expected i64 or a floating one");
  const Scoped owner(&ThreadState::memory_owner, MemoryOwner::data_set);
  io::CsvTable table = io::read_csv(path, options.format);
  const std::int64_t column = label_column(table, options.label, path);
  const std::int64_t width = table.values.shape(1);
  WEFT_CHECK(width > 1, InvalidArgument, kOp, path, ": has no column but the labels'");
  const Tensor sides[] = {raw::slice(table.values, 1, 0, column),
                          raw::slice(table.values, 1, column + 1, width)};
  const Tensor label = raw::select(table.values, 1, column);
  Parts parts;
  parts.x = raw::to(raw::cat(sides, 1), options.dtype);
  parts.label = options.label_dtype == DType::i64 ? classes(label, table, column, path)
                                                  : raw::to(label, options.label_dtype);
  if (!table.columns.empty()) table.columns.erase(table.columns.begin() + column);
  parts.columns = std::move(table.columns);
  return parts;
}

CsvDataset::CsvDataset(const std::string& path, const CsvDatasetOptions& options)
    : CsvDataset(read(path, options)) {}

CsvDataset::CsvDataset(Parts parts)
    : TensorDataset<2>(parts.x, parts.label), columns_(std::move(parts.columns)) {}

}  // namespace weft::data
