#include "weft/train/interrupt.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

namespace weft::train {
namespace {

// Atomic: ranks that are threads read it while another thread gets the signal.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait");
timespec received_at;  // written before `received`

double seconds_since(const timespec& begin) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - begin.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - begin.tv_nsec);
}

// timeout(1) sends each signal twice, to the process and to its group, so a second signal within
// this time does not count. A later one ends the program at once.
constexpr double kPairSeconds = 0.5;

void remember_signal(int signal) {
  if (received != 0) {
    if (seconds_since(received_at) < kPairSeconds) return;
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  clock_gettime(CLOCK_MONOTONIC, &received_at);
  received = signal;
}

}  // namespace

InterruptScope::InterruptScope() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;  // writing of files continues after the signal
  sigemptyset(&action.sa_mask);
  for (auto& [signal, before] : before_) {
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  // Keeps the handler until the second signal of a pair must have come.
  while (received != 0 && seconds_since(received_at) < kPairSeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  received = 0;
}

bool interrupted() { return received != 0; }

void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

int interrupt_status() { return received == 0 ? 0 : 128 + received; }

}  // namespace weft::train
