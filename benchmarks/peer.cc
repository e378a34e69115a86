#include "weft/benchmarks/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iostream>
#include <utility>

#include "weft/core/base/error.h"

extern char** environ;

namespace weft::bench {

using nlohmann::json;

Peer::Peer(std::vector<std::string> command) {
  int in[2], out[2];
  // O_CLOEXEC: another peer must not keep these pipes open, or this one would not see their end.
  WEFT_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, Io, "peer", "no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int failed =
      posix_spawnp(&process_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  WEFT_CHECK(failed == 0, Io, "peer", "cannot start ", command[0],
             ": a Python is made by tools/peer-setup and named by --peer PYTHON");
  std::signal(SIGPIPE, SIG_IGN);  // the failed read reports a peer that has died
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
}

Peer::~Peer() {
  if (to_) std::fclose(to_);
  if (from_) std::fclose(from_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

json Peer::ask(const json& request) {
  send(request);
  return receive();
}

void Peer::send(const json& request) {
  request_ = request.dump();
  std::fwrite(request_.data(), 1, request_.size(), to_);
  std::fputc('\n', to_);
  std::fflush(to_);
}

json Peer::receive() {
  std::string answer;
  int c = std::fgetc(from_);
  for (; c != EOF && c != '\n'; c = std::fgetc(from_)) answer.push_back(static_cast<char>(c));
  if (c == EOF) {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    WEFT_CHECK(!WIFSIGNALED(status), Io, "peer", "the peer was killed by signal ", WTERMSIG(status),
               " (", strsignal(WTERMSIG(status)), ") on ", request_);
    WEFT_THROW(Io, "peer", "the peer ended with status ", WEXITSTATUS(status), " on ", request_,
               "; PyTorch's needs torch (tools/peer-setup)");
  }
  try {
    return json::parse(answer);
  } catch (const json::parse_error&) {
    WEFT_THROW(Io, "peer", "the peer's answer to ", request_,
               " is no JSON: ", answer.substr(0, 200));
  }
}

nlohmann::json ask(Peer& peer, const nlohmann::json& request) {
  nlohmann::json answer = peer.ask(request);
  WEFT_CHECK(!answer.contains("error"), Library, "peer", answer["error"].get<std::string>());
  return answer;
}

void serve(const std::map<std::string, std::function<json(const json&)>>& cmds) {
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      const json request = json::parse(line);
      answer = cmds.at(request.at("cmd"))(request);
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer << std::endl;
  }
}

PeerRanks::PeerRanks(int ranks, const std::vector<std::string>& command) {
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Peer>(command));
}

std::vector<json> PeerRanks::ask(const json& request) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    json one = request;
    one.update({{"rank", r}, {"ranks", ranks_.size()}, {"folder", folder_.path()}});
    ranks_[r]->send(one);
  }
  std::vector<json> answers;
  for (const auto& rank : ranks_) answers.push_back(rank->receive());
  for (std::size_t r = 0; r < answers.size(); ++r) {
    WEFT_CHECK(!answers[r].contains("error"), Library, "peer", "rank ", r, ": ",
               answers[r]["error"].get<std::string>());
  }
  return answers;
}

double PeerRanks::ask_most(const json& request, const std::string& name) {
  double most = 0;
  for (const json& answer : ask(request)) most = std::max(most, answer.at(name).get<double>());
  return most;
}

}  // namespace weft::bench
