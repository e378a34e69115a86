// The device tests of every room in one program. It runs their CUDA cases, unless --gtest_filter
// selects others: the same binary can run the CPU's.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "weft/tests/goldens.h"

int main(int argc, char** argv) {
  // The environment may have set a filter.
  if (std::string_view(::testing::GTEST_FLAG(filter)) == "*") {
    // After the first pattern: tests of //tests/kernels/cuda:host_test that are not cases per
    // device, and those of ranks.
    ::testing::GTEST_FLAG(filter) =
        "*/cuda:ChoosingPlans.*:CudaBackend.*:CudaErrors.*:CudaLibraries.*:Cudnn.*:WithoutGpu.*:"
        "OnGpus/*";
  }
  ::testing::InitGoogleTest(&argc, argv);
  // Before any test, because without a GPU no test reads them: so a rehearsal finds missing files.
  try {
    for (const auto* goldens : weft::testing::Goldens::all()) goldens->path();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "conformance: %s\n", e.what());
    return 1;
  }
  if (RUN_ALL_TESTS() != 0) return 1;
  // Without a GPU all tests are skipped, which proves nothing.
  if (::testing::GTEST_FLAG(list_tests)) return 0;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (tests.successful_test_count() > 0) return 0;
  // A shard may contain none of the tests that match the filter.
  if (std::getenv("GTEST_TOTAL_SHARDS") && tests.test_to_run_count() == 0) return 0;
  std::fprintf(stderr, "conformance: no test passed\n");
  return 1;
}
