// The device tests of every room in one program. It runs their CUDA cases unless --gtest_filter
// asks for others: the same binary runs the CPU's.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "weft/tests/goldens.h"

int main(int argc, char** argv) {
  // The environment may have set one.
  if (std::string_view(::testing::GTEST_FLAG(filter)) == "*") {
    // Behind the first: what //tests/kernels/cuda:host_test has besides cases per device.
    ::testing::GTEST_FLAG(filter) =
        "*/cuda:ChoosingPlans.*:CudaBackend.*:CudaErrors.*:CudaLibraries.*:Cudnn.*:WithoutGpu.*";
  }
  ::testing::InitGoogleTest(&argc, argv);
  // Before any test, because without a GPU none reads them: a rehearsal finds what was not packed.
  try {
    for (const auto* goldens : weft::testing::Goldens::all()) goldens->path();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "conformance: %s\n", e.what());
    return 1;
  }
  if (RUN_ALL_TESTS() != 0) return 1;
  // Without a GPU all are skipped, which proves nothing.
  if (::testing::GTEST_FLAG(list_tests)) return 0;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (tests.successful_test_count() > 0) return 0;
  // A share of what a filter matches may be none.
  if (std::getenv("GTEST_TOTAL_SHARDS") && tests.test_to_run_count() == 0) return 0;
  std::fprintf(stderr, "conformance: no test passed\n");
  return 1;
}
