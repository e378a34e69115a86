// A rank of nccl_test.cc, started by weftrun: sums up numbers on its GPU again and again, prints
// the sums, and fails as it is told to.
//   nccl_ranks none|kill|raise
#include <signal.h>

#include <cstdio>
#include <string>

#include "weft/weft.h"

using namespace weft;

int main(int, char** argv) {
  const std::string fault = argv[1];
  try {
    const auto group = comm::init_process_group({.backend = "nccl"});
    const int rank = group->rank(), gpus = device_count(DeviceType::cuda);
    const Device gpu(DeviceType::cuda, rank % gpus);
    for (int step = 0; step < 5; ++step) {
      if (step == 3 && rank == 1) {
        if (fault == "kill") raise(SIGKILL);
        if (fault == "raise") throw std::runtime_error("this rank has had enough");
      }
      const Tensor x = full({1000}, rank + step, {DType::f32, gpu});
      group->all_reduce(x).wait();
      const float sum = x.to_vector<float>()[999];
      // What has failed on the device is thrown by the next call.
      group->barrier().wait();
      std::printf("rank %d step %d: %g\n", rank, step, sum);
    }
  } catch (const Error& error) {
    std::printf("%s: %s\n", to_string(error.code()), error.what());
    return 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
