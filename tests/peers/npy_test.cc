// numpy reads what weft wrote, and weft reads what numpy wrote: npy_peer.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "weft/io/npy.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/io/files.h"

namespace weft::io {
namespace {

TEST(NpyPeer, NumpyReadsWeftsFilesAndBack) {
  const char* python = std::getenv("WEFT_PEER");
  if (python == nullptr) GTEST_SKIP() << "set WEFT_PEER to a Python with numpy";
  const testing::TempFolder folder;
  const Tensor ramp = raw::reshape(arange(0, 24, 1, DType::f64), {2, 3, 4});
  const Tensor f32 = raw::to(ramp, DType::f32);
  std::vector<double> is_odd;
  for (int i = 0; i < 24; ++i) is_odd.push_back(i % 2);
  const Tensor odd = from_vector(is_odd, {2, 3, 4});
  const NamedTensors tensors = {
      {"f32", f32},
      {"f64", raw::div(ramp, full_like(ramp, 7))},
      {"i64", raw::reshape(arange(-0x1p40, 24 - 0x1p40, 1, DType::i64), {2, 3, 4})},
      {"i32", raw::to(ramp, DType::i32)},
      {"u8", raw::to(ramp, DType::u8)},
      {"bool", raw::to(odd, DType::boolean)},
      {"bf16", tensor({1, -0.5, 3.140625}, DType::bf16)},
      {"scalar", scalar(7)},
      {"empty", zeros({0, 4})},
      {"transposed", raw::permute(f32, {2, 0, 1})}};
  for (const auto& [name, x] : tensors) save_npy(folder.path(name + ".npy"), x);
  save_npz(folder.path("weft.npz"), tensors);
  const std::string command = std::string(python) + " tests/peers/npy_peer.py " + folder.path("");
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const char* name : {"stored.npz", "compressed.npz"}) {
    const NamedTensors back = load_npz(folder.path(name));
    std::map<std::string, Tensor> by_name(back.begin(), back.end());
    ASSERT_EQ(by_name.size(), tensors.size() + 2);
    for (const auto& [key, expected] : tensors) {
      const Tensor& x = by_name.at(key);
      EXPECT_EQ(x.dtype(), expected.dtype() == DType::bf16 ? DType::f32 : expected.dtype()) << key;
      EXPECT_EQ(x.shape(), expected.shape()) << key;
      EXPECT_EQ(x.to_vector<double>(), expected.to_vector<double>()) << key;
    }
    EXPECT_EQ(by_name.at("fortran").strides(), Strides({1, 2, 6}));
    EXPECT_EQ(by_name.at("fortran").to_vector<double>(), f32.to_vector<double>());
    EXPECT_EQ(by_name.at("half").to_vector<double>(),
              (std::vector<double>{1, -0.5, 0x1p-24, std::numeric_limits<double>::infinity()}));
  }
}

}  // namespace
}  // namespace weft::io
