// A rank for nccl_test.cc, started by weftrun: adds up numbers on its GPU again and again, prints
// the sums, and fails in the way that its argument says.
//   nccl_ranks nccl|nccl-ring none|kill|raise
#include <signal.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "weft/weft.h"

using namespace weft;

struct Log final : LogSink {
  void write(Level, std::string_view message) override {
    std::printf("%s\n", std::string(message).c_str());
  }
};

int main(int, char** argv) {
  const std::string backend = argv[1], fault = argv[2];
  Log log;
  thread_state().log = &log;
  try {
    const auto group = comm::init_process_group({.backend = backend});
    const int rank = group->rank(), gpus = device_count(DeviceType::cuda);
    const Device gpu(DeviceType::cuda, rank % gpus);
    for (int step = 0; step < 5; ++step) {
      thread_state().step = step;
      if (step == 3 && rank == 1) {
        if (fault == "kill") raise(SIGKILL);
        if (fault == "raise") throw std::runtime_error("this rank has had enough");
      }
      const Tensor x = full({1000}, rank + step, {DType::f32, gpu});
      const comm::Work work = group->all_reduce(x);
      work.wait();
      const float sum = x.to_vector<float>()[999];
      work.wait();  // throws what has failed on the device since
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
