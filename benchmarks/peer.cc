#include "weft/benchmarks/peer.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "weft/core/error.h"

extern char** environ;

namespace weft::bench {

Peer::Peer(const std::string& python, const std::string& script) {
  int in[2], out[2];
  WEFT_CHECK(pipe(in) == 0 && pipe(out) == 0, Io, "peer", "no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addclose(&actions, in[1]);
  posix_spawn_file_actions_addclose(&actions, out[0]);
  std::string program = python, file = script;
  char* arguments[] = {program.data(), file.data(), nullptr};
  const int failed =
      posix_spawnp(&process_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  WEFT_CHECK(failed == 0, Io, "peer", "cannot start ", python,
             ": make one with tools/peer-setup and name it with --peer PYTHON");
  std::signal(SIGPIPE, SIG_IGN);  // a peer that died shows as a failed read
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
}

Peer::~Peer() {
  if (to_) std::fclose(to_);
  if (from_) std::fclose(from_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

nlohmann::json Peer::ask(const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), to_);
  std::fflush(to_);
  std::string answer;
  for (int c = std::fgetc(from_); c != EOF && c != '\n'; c = std::fgetc(from_))
    answer.push_back(static_cast<char>(c));
  if (answer.empty()) {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    WEFT_THROW(Io, "peer", "the peer ended with status ", WEXITSTATUS(status), " on ",
               request.dump(), "; it needs torch (tools/peer-setup)");
  }
  return nlohmann::json::parse(answer);
}

}  // namespace weft::bench
