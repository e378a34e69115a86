#include "weft/data/csv_dataset.h"

#include <gtest/gtest.h>

#include "weft/data/dataloader.h"
#include "weft/io/npy.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::data {
namespace {

using testing::TempFolder;
using testing::write_file;

using Doubles = std::vector<double>;
using Indices = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

class CsvDatasetTest : public ::testing::Test {
 protected:
  CsvDataset read(const std::string& text, const CsvDatasetOptions& options = {}) const {
    write_file(folder.path("x.csv"), text);
    return CsvDataset(folder.path("x.csv"), options);
  }

  TempFolder folder;
};

const std::string kTable = "a,class,b\n1,0,2\n3,1,4\n5,2,6\n";

TEST_F(CsvDatasetTest, ColumnsBecomeSamplesAndLabels) {
  for (const auto& label :
       {std::variant<int, std::string>("class"), std::variant<int, std::string>(1),
        std::variant<int, std::string>(-2)}) {
    const CsvDataset set = read(kTable, {.label = label});
    EXPECT_EQ(set.size(), 3);
    EXPECT_EQ(set.columns(), (Names{"a", "b"}));
    EXPECT_EQ(set.x().dtype(), DType::f32);
    EXPECT_EQ(set.x().to_vector<double>(), (Doubles{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(set.label().dtype(), DType::i64);
    EXPECT_EQ(set.label().to_vector<std::int64_t>(), (Indices{0, 1, 2}));
    const auto [x, y] = set.get_batch(Indices{2, 0});
    EXPECT_EQ(x.to_vector<double>(), (Doubles{5, 6, 1, 2}));
    EXPECT_EQ(y.to_vector<std::int64_t>(), (Indices{2, 0}));
  }
  const CsvDataset last = read("1;0.5\n2;1.5\n", {.format = {.header = false, .separator = ';'},
                                                  .dtype = DType::f64,
                                                  .label_dtype = DType::f32});
  EXPECT_TRUE(last.columns().empty());
  EXPECT_EQ(last.x().dtype(), DType::f64);
  EXPECT_EQ(last.label().to_vector<float>(), (std::vector<float>{0.5, 1.5}));
  EXPECT_EQ(read(kTable, {.label = 0}).columns(), (Names{"class", "b"}));
  EXPECT_EQ(read("a,b\n").size(), 0);
}

TEST_F(CsvDatasetTest, IsReadByALoader) {
  DataLoader loader(read(kTable, {.label = "class"}), {.batch_size = 2, .workers = 1});
  Indices labels;
  for (auto& [x, label] : loader) {
    EXPECT_EQ(x.shape(), Shape({label.shape(0), 2}));
    for (const std::int64_t value : label.to_vector<std::int64_t>()) labels.push_back(value);
  }
  EXPECT_EQ(labels, (Indices{0, 1, 2}));
}

TEST_F(CsvDatasetTest, Errors) {
  EXPECT_WEFT_ERROR(read(kTable, {.label = "c"}), InvalidArgument,
                    "x.csv: no column \"c\"; there are \"a\" \"class\" \"b\"");
  EXPECT_WEFT_ERROR(read("1,2\n", {.format = {.header = false}, .label = "c"}), InvalidArgument,
                    "no column \"c\"; there are no names");
  EXPECT_WEFT_ERROR(read("a,a\n1,2\n", {.label = "a"}), InvalidArgument,
                    "2 columns are called \"a\"; give the index");
  EXPECT_WEFT_ERROR(read(kTable, {.label = 3}), InvalidArgument,
                    "label column 3 is outside the 3 columns");
  EXPECT_WEFT_ERROR(read(kTable, {.label = -4}), InvalidArgument, "label column -4 is outside");
  EXPECT_WEFT_ERROR(read("a\n1\n"), InvalidArgument, "has no column but the labels'");
  for (const std::string label : {"1.5", "nan", "inf", "1e300"}) {
    EXPECT_WEFT_ERROR(read("a,b\n1,1\n\n2," + label + "\n"), Io,
                      "x.csv: line 4, column 2: label " + (label == "1e300" ? "1e+300" : label) +
                          " is no integer; label_dtype");
  }
  EXPECT_WEFT_ERROR(read("a,b\n1,x\n"), Io, "x.csv: line 2, column 2 \"b\": \"x\" is no number");
  EXPECT_WEFT_ERROR(read(kTable, {.dtype = DType::i64}), InvalidArgument,
                    "dtype: got i64, expected a floating one");
  EXPECT_WEFT_ERROR(read(kTable, {.label_dtype = DType::u8}), InvalidArgument,
                    "label_dtype: got u8, expected i64 or a floating one");
}

TEST(NpyArrays, AreSamplesOfATensorDataset) {
  const TempFolder folder;
  io::save_npy(folder.path("x.npy"), raw::reshape(arange(0, 6, 1, DType::f32), {3, 2}));
  io::save_npy(folder.path("label.npy"), tensor({2, 1, 0}, DType::i64));
  const TensorDataset set(io::load_npy(folder.path("x.npy")),
                          io::load_npy(folder.path("label.npy")));
  DataLoader loader(set, {.batch_size = 3});
  for (auto& [x, label] : loader) {
    EXPECT_EQ(x.to_vector<double>(), (Doubles{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(label.to_vector<std::int64_t>(), (Indices{2, 1, 0}));
  }
}

}  // namespace
}  // namespace weft::data
