// Stands in for host_test.cc in a build without CUDA, so that its absence is counted.
#include <gtest/gtest.h>

TEST(CudaBackend, NeedsAToolkit) { GTEST_SKIP() << "this build has no CUDA"; }
