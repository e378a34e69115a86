#include "weft/train/interrupt.h"

#include <csignal>

namespace weft::train {
namespace {

volatile std::sig_atomic_t received = 0;

extern "C" void remember_signal(int signal) {
  if (received != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  received = signal;
}

void install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // files being written are none of the signal's business
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope() {
  received = 0;
  install(remember_signal);
}

InterruptScope::~InterruptScope() {
  install(SIG_DFL);
  received = 0;
}

bool interrupted() { return received != 0; }

int interrupt_status() { return received == 0 ? 0 : 128 + received; }

}  // namespace weft::train
