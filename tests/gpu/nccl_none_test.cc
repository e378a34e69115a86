// A build with CUDA whose toolkit has no header of NCCL.
#include <gtest/gtest.h>

#include "weft/tests/core/expect_error.h"
#include "weft/weft.h"

namespace weft {
namespace {

using comm::ProcessGroup;

void sum_up(ProcessGroup& group) {
  const Tensor x = full({1000}, group.rank() + 1, {DType::f32, {DeviceType::cuda, group.rank()}});
  group.all_reduce(x).wait();
  EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 3));
}

TEST(NoNccl, IsAnErrorWhereItIsAskedFor) {
  EXPECT_WEFT_ERROR(comm::run_ranks(2, sum_up, {.cuda = comm::CudaTransport::nccl}), Unsupported,
                    "this build of weft has no NCCL");
}

TEST(NoNccl, TensorsTravelThroughTheHost) { comm::run_ranks(2, sum_up); }

}  // namespace
}  // namespace weft
