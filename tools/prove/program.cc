#include "weft/tools/prove/program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "weft/core/base/error.h"
#include "weft/core/runtime/cores.h"
#include "weft/core/runtime/file.h"
#include "weft/train/recorded_run.h"

namespace weft::prove {
namespace {

using detail::concat;
namespace fs = std::filesystem;

volatile std::sig_atomic_t stopped = 0;
std::atomic<pid_t> child = 0;

void stop(int signal) {
  stopped = signal;
  if (child > 0) kill(child, signal);
}

// The child shares this memory until it runs the other program. It gets SIGTERM if this process is
// killed, so that nothing goes on without it.
pid_t start(char* const* argv, int output, volatile int& error) {
  const pid_t parent = getpid();
  const pid_t pid = vfork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() == parent && dup2(output, 1) >= 0 && dup2(output, 2) >= 0) execvp(argv[0], argv);
  error = errno;
  _exit(127);
}

}  // namespace

Program::Program(std::vector<std::string> words, int ranks, std::string launcher,
                 std::string folder)
    : ranks_(ranks),
      launcher_(std::move(launcher)),
      words_(std::move(words)),
      folder_(std::move(folder)) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, stop) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  const int status = execute({words_[0], "--help"}, "help");
  help_ = read("help");
  WEFT_CHECK(status == 0, InvalidArgument, "prove", words_[0], " --help ends with status ", status,
             "; prove takes a program whose main() is train::run()");
  // Options that both runs get, unless the command line has them.
  add("--limit-steps", "20");
  add("--threads", std::to_string(std::max(1, core_count() / ranks_)));
  if (has("--deterministic")) words_.push_back("--deterministic");
}

std::string Program::name() const { return fs::path(words_[0]).filename(); }

bool Program::has(const std::string& option) const {
  std::istringstream lines(help_);
  for (std::string line; std::getline(lines, line);) {
    std::ranges::replace(line, ',', ' ');
    std::istringstream words(line);
    for (std::string word; words >> word && word.starts_with('-');) {
      if (word.substr(0, word.find('{')) == option) return true;
    }
  }
  return false;
}

std::string Program::text() const {
  return concat(ranks_, uses_devices() ? " device" : " rank", ranks_ == 1 ? "" : "s");
}

void Program::add(const std::string& option, const std::string& value) {
  const bool given = std::ranges::any_of(words_, [&](const std::string& word) {
    return word == option || word.starts_with(option + "=");
  });
  if (!given && has(option)) words_.insert(words_.end(), {option, value});
}

std::vector<train::proof::Record> Program::run_side(const Run& run, bool alone) const {
  const std::string name = run.kind + (alone ? "one" : "ranks");
  std::vector<std::string> words = words_;
  if (run.f64) words.insert(words.end(), {"--dtype", "f64"});
  if (run.steps && has("--limit-steps")) {
    words.insert(words.end(), {"--limit-steps", std::to_string(*run.steps)});
  }
  const std::string count = std::to_string(alone ? 1 : ranks_);
  if (has("--nprocs")) {
    words.insert(words.end(), {"--nprocs", count});
  } else if (uses_devices()) {
    words.insert(words.end(), {"--host-devices", count});
  } else if (!alone) {
    words.insert(words.begin(), {launcher_, "--nproc-per-node", count});
  }
  if (has("--out")) words.insert(words.end(), {"--out", path(name + "-out")});
  nlohmann::json plan = {{"out", path(name)}, {"side", alone ? "one" : "ranks"}};
  if (alone) plan["from"] = path(run.kind + "ranks");
  if (run.kept_step) plan["keep"] = {{"step", *run.kept_step}};
  if (run.save_inputs) plan["save_inputs"] = true;
  fs::create_directories(path(name));
  // Removes the records of an earlier run in the same folder.
  for (const auto& entry :
       std::vector(fs::directory_iterator(path(name)), fs::directory_iterator())) {
    if (entry.path().filename().string().starts_with("rank-")) fs::remove(entry.path());
  }
  write_file_atomically(path(name + ".json"), plan.dump());
  std::fprintf(stderr, "prove: %s\n",
               concat(alone ? "one process with the batches of the ranks" : "the ranks",
                      run.save_inputs ? ", with the samples as they were drawn" : "",
                      run.kept_step ? concat(", again, to keep step ", *run.kept_step) : "", " ...")
                   .c_str());
  setenv("WEFT_PROVE", path(name + ".json").c_str(), 1);
  const int status = execute(words, name);
  unsetenv("WEFT_PROVE");
  fs::remove_all(path(name + "-out"));
  if (status != 0) {
    if (alone && read(name).find(train::kRandomSamples) != std::string::npos) {
      throw RandomSamples();
    }
    std::fputs(read(name).c_str(), stderr);
    if (status == 2) throw ProgramRefused();
    WEFT_THROW(Library, "prove", "the run of ", alone ? "one process" : count + " ranks",
               " ended with status ", status,
               read(name).empty() ? concat(" and without a word; is there room in ", folder_, "?")
                                  : "; its output stands above",
               alone && read(name).find("undefined") != std::string::npos
                   ? ". Does the loop use what the train::Step returns for more than "
                     "Recorder::step()? In this run it is undefined, but for the last rank's "
                     "batch"
                   : "");
  }
  std::vector<train::proof::Record> records = train::proof::read_records(path(name));
  WEFT_CHECK(alone || uses_devices() || std::ssize(records) == ranks_, InvalidArgument, "prove",
             this->name(), " trained as ", records.size(), " rank(s) and not as ", count,
             ": it does not ask its launcher for its rank; give a program of several ranks, or "
             "--ranks ",
             records.size());
  return records;
}

// Runs the program and returns its status, or 128 + the signal that killed it. Its output goes to a
// file of the folder.
int Program::execute(const std::vector<std::string>& words, const std::string& name) const {
  if (stopped != 0) throw Stopped{stopped};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int output =
      open(path(name + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  WEFT_CHECK(output >= 0, Io, "prove", "cannot write ", path(name + ".log"), ": ",
             std::strerror(errno));
  volatile int error = 0;
  const pid_t pid = start(argv.data(), output, error);
  if (pid < 0) error = errno;
  close(output);
  if (error != 0 && pid > 0) waitpid(pid, nullptr, 0);
  WEFT_CHECK(error == 0, Io, "prove", "cannot start ", words[0], ": ", std::strerror(error));
  child = pid;
  if (stopped != 0) kill(pid, stopped);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  child = 0;
  if (stopped != 0) throw Stopped{stopped};
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string Program::read(const std::string& name) const {
  std::ifstream file(path(name + ".log"));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace weft::prove
