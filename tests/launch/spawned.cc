// A program that spawns itself, for spawn_test: spawned MODE.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include <unistd.h>

#include "weft/core/base/error.h"
#include "weft/launch/spawn.h"

namespace {

void note(const std::string& file, const std::string& line) {
  std::ofstream(std::string(std::getenv("DIR")) + '/' + file) << line << '\n';
}

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft;
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto name = [](int rank) { return "rank" + std::to_string(rank); };
  std::signal(SIGQUIT, [](int) { ::_exit(7); });
  if (mode == "ignored") std::signal(SIGCHLD, SIG_IGN);
  try {
    if (mode == "twice")
      launch::spawn(argc, argv, mode == "full" ? 1 : 2, [&](int rank) {
        if (mode == "full" && std::freopen("/dev/full", "w", stdout)) std::cout << "lost\n";
        note("first" + name(rank), "");
      });
    launch::spawn(argc, argv, mode == "full" ? 1 : 2, [&](int rank) {
      if (mode == "full" && std::freopen("/dev/full", "w", stdout)) std::cout << "lost\n";
      note(name(rank), env("WORLD_SIZE") + ' ' + env("LOCAL_RANK") + ' ' + argv[argc - 1]);
      if (mode == "error" && rank == 1) WEFT_THROW(Shape, "conv2d", "got 3");
      if (mode == "other" && rank == 1) throw std::runtime_error("not weft's");
      if (mode == "killed" && rank == 1) ::raise(SIGKILL);
      if (mode == "stray" && rank == 1) {
        // The process has left the rank's group when this returns.
        const char* const line =
            "setsid sh -c 'echo $$ >$DIR/stray; exec sleep 64' & "
            "until [ -s $DIR/stray ]; do sleep 0.02; done";
        if (std::system(line) != 0) throw std::runtime_error("no shell");
      }
      if (mode == "signal") std::signal(SIGQUIT, SIG_DFL);
      if (mode == "signal") ::pause();
    });
  } catch (const Error& error) {
    if (!std::getenv("WEFT_SPAWN_CALL")) {
      std::cout << to_string(error.code()) << ": " << error.what() << '\n';
    }
    return 1;
  }
  if (mode == "ignored" && std::signal(SIGCHLD, SIG_DFL) != SIG_IGN) return 2;
  if (mode == "stray") return std::system("readlink /proc/$(cat $DIR/stray)/exe") == 0 ? 3 : 0;
  std::cout << "all have ended\n";
}
