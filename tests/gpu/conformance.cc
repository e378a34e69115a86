// The device tests of every room in one program. It runs their CUDA cases unless --gtest_filter asks
// for others: the same binary runs the CPU's.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  // What //tests/kernels/cuda:host_test has besides cases per device.
  ::testing::GTEST_FLAG(filter) = "*/cuda:CudaBackend.*:Cudnn.*:WithoutGpu.*";
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
