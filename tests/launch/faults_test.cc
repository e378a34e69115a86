// A rank of a training run fails, in each way and phase: the others must end with errors that name
// it, and nothing may be left. WEFT_FAULT_REPEATS=N: runs everything N times, for all backends, and
// prints a table of the results.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <regex>
#include <string>
#include <vector>

#include "weft/comm/store/socket.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/io/files.h"
#include "weft/tests/launch/strangers.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

using comm::testing::missing_backend;
using testing::becomes_true;
using testing::Weftrun;

constexpr const char* kTimeout = "10";  // in seconds: ranks may start slowly on a loaded machine
const std::vector<std::string> kKinds = {"kill", "raise", "exit", "stop"};
const std::vector<std::string> kPhases = {"rendezvous", "connect",       "forward", "allreduce",
                                          "allgather",  "reducescatter", "save"};

/// The name of the operation in errors; empty for other phases.
std::string operation_of(const std::string& phase) {
  return phase == "allreduce"       ? "all_reduce"
         : phase == "allgather"     ? "all_gather"
         : phase == "reducescatter" ? "reduce_scatter"
                                    : "";
}
const std::vector<std::string> kBackends = {"shm", "gloo", "ring"};

int repeats() {
  const char* given = std::getenv("WEFT_FAULT_REPEATS");
  return given ? std::atoi(given) : 3;
}
bool soak() { return std::getenv("WEFT_FAULT_REPEATS") != nullptr; }

/// The table of a soak: by fault and backend.
class Table {
 public:
  void add(const std::string& fault, const std::string& backend, bool passed, double seconds) {
    Row& row = rows_[{fault, backend}];
    ++row.runs;
    row.passed += passed;
    row.slowest_ms = std::max(row.slowest_ms, seconds * 1000);
  }
  ~Table() {
    if (!soak()) return;
    for (const auto& [key, row] : rows_) {
      std::printf("| %s | %s | %d | %d | %.0f |\n", key.first.c_str(), key.second.c_str(), row.runs,
                  row.passed, row.slowest_ms);
    }
  }

 private:
  struct Row {
    int runs = 0, passed = 0;
    double slowest_ms = 0;
  };
  std::map<std::pair<std::string, std::string>, Row> rows_;
};

Table& table() {
  static Table table;
  return table;
}

/// mlp_ddp on a few images, or char_transformer_fsdp on a short text, as ranks of one weftrun.
class Training {
 public:
  struct Given {
    int ranks = 2;
    std::string backend = "ring";
    std::string program = "mlp_ddp";
    std::string options = "--epochs 3";
    /// Shell commands before the rank starts; $RANK is set.
    std::string before = "";
    std::vector<std::string> variables = {};
    std::vector<std::string> launcher = {};
  };

  explicit Training(const Given& given) : ranks_(given.ranks), backend_(given.backend) {
    if (given.program == "mlp_ddp") {
      testing::write_mnist(folder_.path("data"), 40, 12);
    } else {
      std::filesystem::create_directories(folder_.path("data"));
      std::ofstream text(folder_.path("data/text.txt"));
      for (int i = 0; i < 40; ++i) text << "abc defgh " << i * i;
    }
    std::vector<std::string> arguments = {"-np", std::to_string(given.ranks), "--report",
                                          "DIR/report.json"};
    arguments.insert(arguments.end(), given.launcher.begin(), given.launcher.end());
    const std::string program = given.before + "exec examples/" + given.program +
                                " --device cpu --deterministic --workers 0 --batch-size 4 --data " +
                                folder_.path("data") + " --out $DIR/out --backend " +
                                given.backend + ' ' + given.options + " $MORE";
    arguments.insert(arguments.end(), {"sh", "-c", program});
    run_ = std::make_unique<Weftrun>(arguments, given.variables);
  }

  Weftrun& run() const { return *run_; }
  const std::string& backend() const { return backend_; }

  /// Sends a signal to the process of a rank that trains: its first checkpoint exists.
  void signal_rank(int rank, int signal) const {
    EXPECT_TRUE(becomes_true([&] { return run_->has_file("out/checkpoint.safetensors"); }));
    const std::string name = std::string("\0RANK=", 6) + std::to_string(rank) + '\0';
    for (const pid_t pid : run_->processes()) {
      const std::string proc = "/proc/" + std::to_string(pid);
      const std::string environment = '\0' + testing::read_file(proc + "/environ");
      if (testing::read_file(proc + "/comm") != "mlp_ddp\n") continue;
      if (environment.find(name) == std::string::npos) continue;
      ::kill(pid, signal);
      return;
    }
    ADD_FAILURE() << "rank " << rank << " does not run; " << run_->err();
  }

  /// Waits for the end. Returns what is wrong with it, in lines: every rank except `failed` must
  /// have ended by itself, with an error of one of `codes` whose text matches the regular
  /// expression `text`.
  std::string faults_of_survivors(int failed, const std::set<std::string>& codes,
                                  const std::string& text) {
    status_ = run_->finish();
    if (!run_->has_file("report.json")) return "there is no report";
    report_ = run_->report();
    std::ostringstream wrong;
    for (const auto& rank : report_["ranks"]) {
      if (rank["rank"] == failed) continue;
      const std::string code = rank["code"].is_string() ? rank["code"] : "no code";
      const std::string message = rank["message"].is_string() ? rank["message"] : "no message";
      if (rank["seconds_after_failure"].is_number()) {
        slowest_ = std::max(slowest_, rank["seconds_after_failure"].get<double>());
      }
      if (rank["status"] == 1 && rank["told_to_end"] == false && codes.contains(code) &&
          std::regex_search(message, std::regex(text))) {
        continue;
      }
      wrong << "rank " << rank["rank"] << " of " << ranks_ << " ended with status "
            << rank["status"] << (rank["told_to_end"] == true ? ", told to end, " : ", ") << code
            << ": " << message << "\n  expected was: " << text << '\n';
    }
    return wrong.str();
  }
  int status() const { return status_; }
  int first_failure() const { return report_.value("first_failure", -1); }
  nlohmann::json rank(int number) const { return report_["ranks"][number]; }
  /// The longest time of a survivor from the failure to its end.
  double slowest() const { return slowest_; }

 private:
  const int ranks_;
  const std::string backend_;
  testing::TempFolder folder_;
  std::unique_ptr<Weftrun> run_;
  int status_ = -1;
  nlohmann::json report_;
  double slowest_ = 0;
};

/// start(0) and so on make `count` trainings. Some of them run at the same time, because they
/// mostly wait; check(i, training) waits for the end.
template <class Start, class Check>
void in_batches(int count, int at_once, const Start& start, const Check& check) {
  for (int first = 0; first < count; first += at_once) {
    std::vector<std::unique_ptr<Training>> running;
    for (int i = first; i < std::min(first + at_once, count); ++i) running.push_back(start(i));
    int i = first;
    for (const std::unique_ptr<Training>& training : running) check(i++, *training);
  }
}

/// The number of ranks and the rank that fails differ from repeat to repeat.
int ranks_of(int repeat) { return 2 + repeat % 3; }
int failing_rank_of(int repeat) { return repeat % 2 == 0 ? ranks_of(repeat) - 1 : 0; }

std::unique_ptr<Training> with_fault(const std::string& kind, const std::string& phase,
                                     const std::string& backend, int repeat) {
  std::string fault =
      "WEFT_FAULT=" + kind + ":rank=" + std::to_string(failing_rank_of(repeat)) + ":phase=" + phase;
  if (phase == "forward" || !operation_of(phase).empty()) fault += ":step=2";
  Training::Given given{.ranks = ranks_of(repeat), .backend = backend, .variables = {fault}};
  if (phase == "allgather" || phase == "reducescatter") {
    given.program = "char_transformer_fsdp";
    given.options = "--context 8 --width 8 --heads 2 --epochs 3";
  }
  if (kind == "stop") {
    given.variables.push_back(std::string("WEFT_TIMEOUT=") + kTimeout);
  } else if (!soak()) {
    given.launcher = {"--grace", "60"};
  }
  return std::make_unique<Training>(given);
}

/// The certain part of "rank 1 failed first: killed by signal 9 (SIGKILL) in forward at step 2", as
/// a regular expression.
std::string expected_text(const std::string& kind, const std::string& phase, int rank) {
  // Nothing more is known about a stopped rank: "ranks 0, 2 have not come", where one of them has
  // left again. And the rank that gave up first is not called the one that failed.
  if (kind == "stop") {
    // A connecting rank waits for the others one after the other, perhaps for one that waits
    // itself.
    const std::string named = phase == "connect" ? "[0-9]+" : std::to_string(rank);
    return "^(?!.* failed first: ).*ranks? ([0-9]+, )*" + named + "\\b";
  }
  std::string text = "rank " + std::to_string(rank);
  text += phase == "rendezvous" ? " failed before all ranks had met: "
          : phase == "connect"  ? " failed (first|before all ranks had connected): "
                                : " failed first: ";
  if (kind == "kill") text += R"(killed by signal 9 \(SIGKILL\) in )";
  if (kind == "exit") text += "exit status 3 in ";
  if (kind == "raise") text += R"(\[)";
  const std::string operation = operation_of(phase);
  if (operation.empty()) return text + phase;
  if (kind == "raise") return text + operation;
  if (phase == "allreduce") return text + "backward during all_";
  // Gathers and reductions are under way at the same time, and the status page names one of them,
  // or none if that has just ended.
  return text + "(forward|backward)";
}

struct Cell {
  std::string kind, phase, backend;

  friend std::ostream& operator<<(std::ostream& out, const Cell& cell) {
    return out << cell.kind << " in " << cell.phase << ", " << cell.backend;
  }
};

std::vector<Cell> cells(bool stop) {
  std::vector<Cell> list;
  std::size_t next = 0;
  for (const std::string& kind : kKinds) {
    for (const std::string& phase : kPhases) {
      const std::string& one = kBackends[next++ % kBackends.size()];
      for (const std::string& backend : kBackends) {
        // Each backend connects in its own way.
        const bool all = soak() || (phase == "connect" && !stop);
        if ((kind == "stop") == stop && (all || backend == one)) {
          list.push_back({kind, phase, backend});
        }
      }
    }
    ++next;
  }
  return list;
}

/// A regular expression for the box at the end.
std::string box_of(const Cell& cell, int failed) {
  const std::string rank = "rank " + std::to_string(failed);
  if (cell.kind != "stop") return "[+]-- " + rank + " failed first -";
  return "[+]-- " + rank + " did not respond -+\n.*\n[|] " + rank +
         R"( did not respond \(stopped\) in )" +
         (cell.phase == "allreduce"          ? "backward during all_reduce .* at step 2"
          : operation_of(cell.phase).empty() ? cell.phase
                                             : "(forward|backward).* at step 2");
}

/// What is wrong with the part of weftrun's report that is about the last operations. Rank `failed`
/// failed in the middle of one, at step 2; it need not be the last that it began, since FSDP has
/// two groups.
std::string faults_of_black_boxes(const Weftrun& run, int failed) {
  std::string wrong;
  const std::string box = "[|] ranks 0-[1-3]( #[0-9]+)? differ first at ";
  if (!std::regex_search(run.err(), std::regex(box))) wrong += "no last operations: " + box + '\n';
  const auto failure = nlohmann::json::parse(run.file("failure.json"));
  const auto& dead = failure["ranks"][failed];
  // A rank that throws frees its memory before it ends.
  if (dead["memory"].empty() &&
      dead["end"].get<std::string>().find("fault injected") == std::string::npos) {
    wrong += "no memory\n";
  }
  const bool inside = std::ranges::any_of(dead["operations"], [](const auto& operation) {
    return operation["state"] != "ended" && operation["step"] == 2;
  });
  if (!inside) wrong += "no operation at step 2 of the rank that failed is open\n";
  return wrong;
}

void check(const Cell& cell, int repeat, Training& training) {
  const int failed = failing_rank_of(repeat);
  const bool stopped = cell.kind == "stop";
  std::set<std::string> codes = {"PeerFailed"};
  if (stopped) codes.insert("Timeout");
  std::string wrong =
      training.faults_of_survivors(failed, codes, expected_text(cell.kind, cell.phase, failed));
  const std::map<std::string, int> statuses = {
      {"kill", 137}, {"raise", 1}, {"exit", 3}, {"stop", 1}};
  if (training.status() != statuses.at(cell.kind)) {
    wrong += "weftrun's status is " + std::to_string(training.status()) + '\n';
  }
  if (training.first_failure() != failed) {
    wrong += "first failed rank " + std::to_string(training.first_failure()) + '\n';
  }
  const std::string box = box_of(cell, failed);
  if (!std::regex_search(training.run().err(), std::regex(box))) wrong += "no box: " + box + '\n';
  if (!operation_of(cell.phase).empty()) wrong += faults_of_black_boxes(training.run(), failed);
  const std::string fault = cell.kind + " in " + cell.phase;
  EXPECT_EQ(wrong, "") << fault << ", " << cell.backend << ", repeat " << repeat << '\n'
                       << training.run().err();
  table().add(fault, cell.backend, wrong.empty(), training.slowest());
}

class Faults : public ::testing::TestWithParam<Cell> {};

TEST_P(Faults, TheOthersNameTheRankAndThePhase) {
  const std::string missing = missing_backend(GetParam().backend);
  if (!missing.empty()) GTEST_SKIP() << missing;
  const Cell& cell = GetParam();
  in_batches(
      repeats(), 3, [&](int i) { return with_fault(cell.kind, cell.phase, cell.backend, i); },
      [&](int i, Training& training) { check(cell, i, training); });
}

INSTANTIATE_TEST_SUITE_P(All, Faults, ::testing::ValuesIn(cells(false)), [](const auto& info) {
  return info.param.kind + "_" + info.param.phase + "_" + info.param.backend;
});

TEST(StoppedRank, TheOthersEndAtTheTimeout) {
  std::vector<Cell> stopped = cells(true);
  std::erase_if(stopped, [](const Cell& c) { return !missing_backend(c.backend).empty(); });
  const int count = static_cast<int>(stopped.size());
  const auto cell = [&](int i) { return stopped[static_cast<std::size_t>(i % count)]; };
  const auto repeat = [&](int i) { return i / count + i % count; };
  // For each phase two of the three numbers of ranks: they run as one batch, so they cost one
  // timeout.
  in_batches(
      count * (soak() ? repeats() : 2), 12,
      [&](int i) { return with_fault(cell(i).kind, cell(i).phase, cell(i).backend, repeat(i)); },
      [&](int i, Training& training) { check(cell(i), repeat(i), training); });
}

TEST(BlackBoxes, SayWhatEachRankDidLast) {
  Training training({.variables = {"WEFT_FAULT=kill:rank=1:phase=allreduce:step=2"},
                     .launcher = {"--grace", "60"}});
  EXPECT_EQ(training.run().finish(), 137);
  const auto failure = nlohmann::json::parse(training.run().file("failure.json"));
  const auto& first = failure["first_difference"];
  EXPECT_EQ(first["group"], "ranks 0-1");
  EXPECT_EQ(first["why"], "rank 1 has not ended it");
  for (const auto& rank : failure["ranks"]) {
    const auto& operations = rank["operations"];
    ASSERT_FALSE(operations.empty());
    const auto& last = operations.back();
    // Rank 0 may have got its sum, and failed in what came next.
    const bool dead = rank["rank"] == 1;
    EXPECT_GE(last["number"], first["number"]) << rank;
    if (dead) {
      EXPECT_EQ(last["number"], first["number"]);
      EXPECT_EQ(last["step"], 2);
      EXPECT_EQ(last["phase"], "backward");
    }
    EXPECT_EQ(last["name"], "all_reduce");
    EXPECT_EQ(last["tag"], "bucket 0");
    EXPECT_EQ(last["dtype"], "f32");
    EXPECT_GT(last["count"], 0);
    EXPECT_EQ(last["bytes"], 4 * last["count"].get<std::int64_t>());
    EXPECT_TRUE(last["peer"].is_null());
    EXPECT_EQ(last["state"], dead ? "running" : "failed");
    double before = operations[0]["begin"];
    for (const auto& operation : operations) {
      const double begin = operation["begin"];
      EXPECT_LE(before, begin);
      before = begin;
      if (operation["end"].is_number()) {
        EXPECT_LE(begin, operation["end"].get<double>());
      }
    }
    EXPECT_GT(rank["memory"][0]["in_use"].value("parameters", 0), 0);
  }
  EXPECT_HAS(training.run().err(), "|   rank 1: " + first["call"].get<std::string>());
}

TEST(FaultInSave, LeavesTheFileAsItWas) {
  for (const std::string kind : {"kill", "raise", "exit"}) {
    Training training({.variables = {"WEFT_FAULT=" + kind + ":rank=0:phase=save"},
                       .launcher = {"--grace", "60"}});
    training.run().finish();
    EXPECT_FALSE(training.run().has_file("out/checkpoint.safetensors")) << kind;
    // A killed rank cannot remove the file; the next run does.
    EXPECT_EQ(training.run().has_file("out/checkpoint.safetensors.tmp"), kind != "raise") << kind;
  }
}

// --- Strangers -----------------------------------------------------------------------------------

bool is_stopped(pid_t pid) {
  return testing::read_file("/proc/" + std::to_string(pid) + "/stat").find(") T ") !=
         std::string::npos;
}

// Strangers connect to the run's store and to the ranks while these meet: rank 1 stops while both
// listen. (Not with Gloo, whose ranks end then; see comm/backend/backends.h.)
TEST(StrangersTest, DoNotDisturbRanksThatMeet) {
  Training training({.backend = "ring",
                     .options = "--epochs 1",
                     .variables = {"WEFT_FAULT=stop:rank=1:phase=connect"}});
  std::vector<sockaddr_in> ports;
  pid_t stopped = -1;
  ASSERT_TRUE(becomes_true([&] {
    const std::vector<pid_t> processes = training.run().processes();
    const auto found = std::ranges::find_if(processes, is_stopped);
    if (found == processes.end()) return false;
    stopped = *found;
    ports = testing::listening_sockets(processes);
    return ports.size() >= 3;  // of weftrun's store, and of each rank
  })) << training.run().err();
  testing::Strangers strangers;
  for (int i = 0; i < 200; ++i) {
    for (const sockaddr_in& port : ports) EXPECT_TRUE(strangers.visit(port));
  }
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(training.run().finish(), 0) << training.run().err();
}

// --- From outside --------------------------------------------------------------------------------

class FromOutside : public ::testing::TestWithParam<std::string> {
 protected:
  /// `fault`: its row in the table; `start` returns a run in which rank `failed` fails.
  template <class Start>
  static void repeat(const std::string& fault, const std::string& backend, int failed,
                     const std::set<std::string>& codes, const std::string& text,
                     const Start& start) {
    in_batches(repeats(), 3, start, [&](int, Training& training) {
      const std::string wrong = training.faults_of_survivors(failed, codes, text);
      EXPECT_EQ(wrong, "") << training.run().err();
      EXPECT_NE(training.status(), 0);
      table().add(fault, backend, wrong.empty(), training.slowest());
    });
  }
  static std::unique_ptr<Training> start(Training::Given given) {
    given.launcher.insert(given.launcher.end(), {"--grace", soak() ? "3" : "60"});
    return std::make_unique<Training>(given);
  }
};

TEST_P(FromOutside, ARankThatIsKilled) {
  if (!missing_backend(GetParam()).empty()) GTEST_SKIP() << missing_backend(GetParam());
  repeat("SIGKILL from outside", GetParam(), 1, {"PeerFailed"},
         R"(rank 1 failed first: killed by signal 9 \(SIGKILL\))", [](int i) {
           auto training =
               start({.ranks = ranks_of(i), .backend = GetParam(), .options = "--epochs 100000"});
           training->signal_rank(1, SIGKILL);
           return training;
         });
}

INSTANTIATE_TEST_SUITE_P(All, FromOutside, ::testing::ValuesIn(kBackends),
                         [](const auto& info) { return info.param; });

using FromOutsideOnce = FromOutside;

TEST_F(FromOutsideOnce, ARankThatIsStopped) {
  repeat("SIGSTOP from outside", "shm", 0, {"Timeout", "PeerFailed"}, "rank 0", [](int i) {
    auto training = std::make_unique<Training>(
        Training::Given{.ranks = ranks_of(i),
                        .backend = "shm",
                        .options = "--epochs 100000",
                        .variables = {std::string("WEFT_TIMEOUT=") + kTimeout}});
    training->signal_rank(0, SIGSTOP);
    return training;
  });
}

TEST_F(FromOutsideOnce, APortThatIsInUse) {
  const comm::Socket taken = comm::listen_on("127.0.0.1", 0);
  const std::string port = std::to_string(comm::port_of(taken));
  // Without weftrun's store nobody tells the others, so they end at their timeout.
  repeat("port in use", "ring", 0, {"Timeout", "PeerFailed", "Comm"}, "rank 0", [&](int i) {
    return std::make_unique<Training>(
        Training::Given{.ranks = ranks_of(i),
                        .before = "unset WEFT_STORE; ",
                        .variables = {"WEFT_TIMEOUT=3"},
                        .launcher = {"--master-port", port, "--grace", "60"}});
  });
}

TEST_F(FromOutsideOnce, AWrongToken) {
  repeat(
      "wrong token", "ring", 1, {"PeerFailed"},
      "rank 1 failed before all ranks had met: ", [](int i) {
        return start({.ranks = ranks_of(i), .before = "[ $RANK = 1 ] && WEFT_STORE_TOKEN=wrong; "});
      });
}

TEST_F(FromOutsideOnce, TwoRanksOfOneNumber) {
  repeat("two ranks with one number", "ring", -1, {"InvalidArgument", "PeerFailed"},
         "rank 0 has joined twice", [](int i) {
           return start({.ranks = ranks_of(i), .before = "[ $RANK = 1 ] && RANK=0; "});
         });
}

TEST_F(FromOutsideOnce, DifferentModels) {
  repeat("different models", "ring", -1, {"InvalidArgument", "PeerFailed", "Shape", "Dtype"},
         "rank", [](int i) {
           return start({.ranks = ranks_of(i), .before = "[ $RANK = 1 ] && MORE='--dtype f64'; "});
         });
}

TEST_F(FromOutsideOnce, DifferentNumbersOfBatches) {
  repeat("different numbers of batches", "ring", -1, {"Comm", "PeerFailed", "Timeout"}, "rank",
         [](int i) {
           return start({.ranks = ranks_of(i),
                         .before = "[ $RANK = 1 ] && MORE='--batch-size 10'; ",
                         .variables = {"WEFT_TIMEOUT=10"}});
         });
}

TEST_F(FromOutsideOnce, AFullDiskOfTheRankThatSaves) {
  // The size of files is limited to 100 KiB, which acts like a full disk.
  repeat("full disk on rank 0", "ring", 0, {"PeerFailed"},
         R"(rank 0 failed first: \[file\] cannot write)", [](int i) {
           return start({.ranks = ranks_of(i),
                         .before = "[ $RANK = 0 ] && trap '' XFSZ && ulimit -f 200; "});
         });
}

// --- Restarts ------------------------------------------------------------------------------------

TEST(Restart, GoesOnFromTheLastCheckpointWithTheSameLosses) {
  const std::string options = "--epochs 3 --checkpoint-every 3 --resume latest";
  const auto losses_of = [](const Training& training) {
    return nlohmann::json::parse(training.run().file("out/metrics.json"))["losses"];
  };
  Training undisturbed({.options = options});
  ASSERT_EQ(undisturbed.run().finish(), 0) << undisturbed.run().err();
  ASSERT_EQ(losses_of(undisturbed).size(), 15u);
  // A checkpoint is saved after steps 3, 5 (the end of an epoch), 6, 9 ...
  for (const auto& [fault, resumed_after] :
       {std::pair("kill:rank=1:step=7:phase=forward", 6),
        std::pair("exit:rank=0:step=8:phase=allreduce", 6),
        std::pair("kill:rank=0:step=6:phase=save", 5), std::pair("raise:rank=1:step=2", 0)}) {
    Training training({.options = options,
                       .variables = {std::string("WEFT_FAULT=") + fault},
                       .launcher = {"--max-restarts", "1", "--grace", "60"}});
    ASSERT_EQ(training.run().finish(), 0) << fault << '\n' << training.run().err();
    EXPECT_EQ(training.run().report()["restarts"], 1) << fault;
    EXPECT_EQ(losses_of(training), losses_of(undisturbed)) << fault;
    const std::string said = resumed_after == 0
                                 ? "not there yet; from the beginning"
                                 : "after " + std::to_string(resumed_after) + " steps";
    EXPECT_HAS(training.run().err(), said);
  }
}

}  // namespace
}  // namespace weft::launch
