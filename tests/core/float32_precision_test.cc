#include "weft/core/runtime/float32_precision.h"

#include <gtest/gtest.h>

#include <thread>

#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"

namespace weft {
namespace {

class Float32Precision : public ::testing::Test {
 protected:
  void TearDown() override { thread_state() = ThreadState(); }
};

// The same values as torch.get_float32_matmul_precision() and torch.backends of PyTorch 2.11.
TEST_F(Float32Precision, DefaultsArePyTorchs) {
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  EXPECT_FALSE(backends::cuda::matmul::allow_tf32());
  EXPECT_TRUE(backends::cudnn::allow_tf32());
  EXPECT_EQ(backends::cudnn::conv::fp32_precision(), "tf32");
}

TEST_F(Float32Precision, AllNamesAreOneSetting) {
  set_float32_matmul_precision("high");
  EXPECT_TRUE(thread_state().allow_tf32_matmul);
  EXPECT_TRUE(backends::cuda::matmul::allow_tf32());
  EXPECT_EQ(backends::cuda::matmul::fp32_precision(), "tf32");
  backends::cuda::matmul::set_fp32_precision("ieee");
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  backends::cuda::matmul::set_allow_tf32(true);
  EXPECT_EQ(get_float32_matmul_precision(), "high");
  set_float32_matmul_precision("medium");
  EXPECT_EQ(get_float32_matmul_precision(), "high");
  set_float32_matmul_precision("highest");
  EXPECT_FALSE(backends::cuda::matmul::allow_tf32());
  EXPECT_TRUE(thread_state().allow_tf32_conv);  // convolutions have their own setting

  backends::cudnn::set_allow_tf32(false);
  EXPECT_FALSE(thread_state().allow_tf32_conv);
  EXPECT_EQ(backends::cudnn::conv::fp32_precision(), "ieee");
  backends::cudnn::conv::set_fp32_precision("tf32");
  EXPECT_TRUE(backends::cudnn::allow_tf32());
  std::thread([] { EXPECT_EQ(get_float32_matmul_precision(), "highest"); }).join();
}

TEST_F(Float32Precision, OtherWordsAreRefused) {
  EXPECT_WEFT_ERROR(set_float32_matmul_precision("low"), InvalidArgument,
                    "got 'low', expected highest, high or medium");
  EXPECT_WEFT_ERROR(backends::cuda::matmul::set_fp32_precision("none"), InvalidArgument,
                    "got 'none', expected ieee or tf32");
}

}  // namespace
}  // namespace weft
