// A program with train::run() that spawns its ranks, for spawn_test: the ranks add up their
// numbers.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include <unistd.h>

#include "weft/comm/init.h"
#include "weft/core/base/error.h"
#include "weft/launch/spawn.h"
#include "weft/tensor/creation.h"
#include "weft/train/program.h"

namespace {

using namespace weft;

volatile std::sig_atomic_t signals = 0;

void note(const std::string& file, const std::string& line) {
  std::ofstream(std::string(std::getenv("DIR")) + '/' + file) << line << '\n';
}

/// Writes how many times SIGINT came, some time after the first.
void count_signals(int rank) {
  std::signal(SIGINT, [](int) { signals = signals + 1; });
  note("ready" + std::to_string(rank), "");
  while (signals == 0) ::usleep(10'000);
  ::usleep(300'000);
  note("signals" + std::to_string(rank), std::to_string(signals));
}

void add_ranks(const std::string& address, int rank) {
  comm::InitOptions init{.backend = "ring"};
  if (address == "tcp") {
    init.init_method = std::string("tcp://127.0.0.1:") + std::getenv("MASTER_PORT");
    init.rank = rank;
    init.world_size = 2;
  }
  const auto group = comm::init_process_group(init);
  const Tensor sum = full({1}, rank + 1.0);
  group->all_reduce(sum).wait();
  if (rank == 0) std::cout << "sum " << sum.item<double>() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode;
  return train::run(argc, argv, {.example = "spawned_program"},
                    [&](const train::Options&) {
                      launch::spawn(argc, argv, 2, [&](int rank) {
                        WEFT_CHECK(mode != "fail" || rank == 0, Shape, "conv2d", "got 3");
                        mode == "signal" ? count_signals(rank) : add_ranks(mode, rank);
                      });
                      std::cout << "all have ended" << std::endl;
                    },
                    {{"--mode", &mode, "what the ranks do", {"env", "tcp", "fail", "signal"}}});
}
