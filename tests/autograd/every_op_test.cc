// What holds for every operation of op_cases.h, whatever it computes: in each dtype and layout its
// results and gradients are those in f64, and on another device they are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/tests/autograd/op_cases.h"
#include "weft/tests/autograd/with_gradients.h"
#include "weft/tests/device_param.h"
#include "weft/tests/every_case.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::image_layouts;
using testing::kFloating;
using testing::OpCase;
using testing::values_of;

class EveryOpTest : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(EveryOpTest);

std::string name_of(const OpCase& c) { return c.op + " (" + c.variant + ")"; }

std::vector<Tensor> rounded(const std::vector<Tensor>& inputs, DType dtype) {
  std::vector<Tensor> all;
  for (const Tensor& x : inputs) all.push_back(raw::to(raw::to(x, dtype), DType::f64));
  return all;
}

// Expects f's results and gradients in `dtype` to be `want`, for the inputs and the gradients of
// the results in all pairs of layouts; the inputs stay as they are.
void expect_in_every_layout(const OpCase& c, DType dtype, const std::vector<Tensor>& inputs,
                            const std::vector<Tensor>& want, double bound) {
  constexpr std::size_t kLayouts = 4;
  // A layout of image_layouts(), which has channels last only for 4 dimensions. One dimension has
  // only one order, and a number has no gaps.
  const auto chosen = [](int dim, std::size_t layout) -> std::size_t {
    const std::size_t i = layout % kLayouts % (dim == 4 ? 4 : 3);
    return dim == 0 || (dim == 1 && i == 1) ? 0 : i;
  };
  const auto laid = [&](const Tensor& x, std::size_t layout) {
    return image_layouts(x)[chosen(x.dim(), layout)];
  };
  std::set<std::vector<std::size_t>> done;  // the layouts of the inputs and of results' gradients
  for (std::size_t first = 0; first < kLayouts; ++first) {
    for (std::size_t step = 0; step < kLayouts; ++step) {
      std::vector<std::size_t> layouts;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        layouts.push_back(chosen(inputs[i].dim(), first + step * i));
      }
      for (std::size_t i = 0; i + inputs.size() < want.size(); ++i) {
        layouts.push_back(chosen(want[i].dim(), first + step));
      }
      // Emulated GPUs are slow: there each layout once in other dtypes than f32.
      const bool part = !thread_state().device.is_cpu() && dtype != DType::f32;
      if (part && step != 1 && !testing::every_case()) continue;
      if (!done.insert(layouts).second) continue;
      SCOPED_TRACE("layouts " + std::to_string(first) + " step " + std::to_string(step));
      std::vector<Tensor> operands;
      std::vector<std::vector<double>> before;
      for (const Tensor& x : inputs) {
        operands.push_back(laid(raw::to(x, dtype), first + step * operands.size()));
        before.push_back(values_of(x));
      }
      const auto got = testing::with_gradients(c.f, operands, dtype, [&](const Shape& shape) {
        return laid(testing::some(shape, DType::f64, -1, 1, 99), first + step);
      });
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << "result " << i;
        if (!got[i].defined()) continue;
        ASSERT_EQ(got[i].dtype(), dtype) << "result " << i;
        ASSERT_EQ(got[i].shape(), want[i].shape()) << "result " << i;
        ASSERT_TRUE(testing::near_values(got[i], values_of(want[i]), bound)) << "result " << i;
      }
      for (std::size_t i = 0; i < operands.size(); ++i) {
        ASSERT_EQ(values_of(operands[i]), before[i]) << "input " << i << " was written to";
      }
    }
  }
}

// An input has a gradient of its own shape, zero if there is no result that it could reach.
TEST_P(EveryOpTest, EveryInputHasAGradient) {
  for (const OpCase& c : testing::op_cases()) {
    SCOPED_TRACE(name_of(c));
    const std::vector<Tensor> inputs = c.inputs();
    const std::vector<Tensor> all = testing::with_gradients(c.f, inputs, DType::f64);
    const std::size_t results = all.size() - inputs.size();
    const bool of_nothing = std::all_of(all.begin(), all.begin() + std::ptrdiff_t(results),
                                        [](const Tensor& y) { return y.numel() == 0; });
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& grad = all[results + i];
      if (c.op == "where" && i == 0) continue;  // the condition has none
      ASSERT_TRUE(grad.defined()) << "input " << i;
      EXPECT_EQ(grad.shape(), inputs[i].shape()) << "input " << i;
      if (!of_nothing) continue;
      EXPECT_EQ(values_of(grad), std::vector<double>(static_cast<std::size_t>(grad.numel()), 0));
    }
  }
}

TEST_P(EveryOpTest, InEveryDtypeAndLayoutAsInF64) {
  const Scoped conv(&ThreadState::allow_tf32_conv, false);
  const Scoped matmul(&ThreadState::allow_tf32_matmul, false);
  for (const OpCase& c : testing::op_cases()) {
    for (const DType dtype : kFloating) {
      if (c.slack == 0) continue;
      SCOPED_TRACE(name_of(c) + ", " + to_string(dtype));
      const std::vector<Tensor> inputs = rounded(c.inputs(), dtype);  // the same numbers for both
      const std::vector<Tensor> want = testing::with_gradients(c.f, inputs, DType::f64);
      expect_in_every_layout(c, dtype, inputs, want, c.slack * testing::tolerance(dtype));
      if (HasFatalFailure()) break;
    }
  }
}

// For f32 with TF32, whose factors keep 10 bits of their fractions: sums of up to 40 products below
// 9.
TEST_P(EveryOpTest, ConvolutionsWithTf32) {
  for (const OpCase& c : testing::op_cases()) {
    if (c.op != "conv2d" && c.op != "conv_transpose2d") continue;
    SCOPED_TRACE(name_of(c));
    const std::vector<Tensor> inputs = rounded(c.inputs(), DType::f32);
    const auto got = testing::with_gradients(c.f, inputs, DType::f32);
    const auto want = testing::with_gradients(c.f, inputs, DType::f64);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(testing::near_values(got[i], values_of(want[i]), 40 * 9 * 0x1p-10));
    }
  }
}

// Two virtual CPU devices count as two devices, although they share their memory.
TEST_P(EveryOpTest, OnAnotherDeviceTheSame) {
  if (!on_cpu()) GTEST_SKIP() << "the CPU is divided in two";
  set_host_devices(2);
  const Device other("cpu:1");
  for (const OpCase& c : testing::op_cases()) {
    SCOPED_TRACE(name_of(c));
    const std::vector<Tensor> inputs = c.inputs();
    const std::vector<Tensor> want = testing::with_gradients(c.f, inputs, DType::f64);
    std::vector<Tensor> there;
    for (const Tensor& x : inputs) there.push_back(raw::to(x, other));
    const Scoped current(&ThreadState::device, other);
    const std::vector<Tensor> got = testing::with_gradients(c.f, there, DType::f64);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!got[i].defined()) continue;
      EXPECT_EQ(got[i].device(), other) << "result " << i;
      EXPECT_TRUE(testing::near_values(got[i], values_of(want[i]), 0)) << "result " << i;
    }
    for (std::size_t i = 0; inputs.size() > 1 && i < inputs.size(); ++i) {
      std::vector<Tensor> mixed = there;
      mixed[i] = inputs[i];
      try {
        c.f(mixed);
        ADD_FAILURE() << "no error with input " << i << " elsewhere";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::Device) << e.what();
        EXPECT_NE(std::string(e.what()).find("cpu:0"), std::string::npos) << e.what();
      }
    }
  }
  set_host_devices(1);
}

}  // namespace
}  // namespace weft
