// weftrun from outside: the environment of ranks, how they and weftrun end, and that nothing is
// left.
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "weft/comm/store/failure.h"
#include "weft/comm/store/member.h"
#include "weft/comm/store/socket.h"
#include "weft/comm/store/tcp_store.h"
#include "weft/core/runtime/parallel.h"
#include "weft/launch/launcher.h"
#include "weft/tests/launch/weftrun.h"

namespace weft::launch {
namespace {

using comm::Deadline;
using testing::becomes_true;
using testing::Weftrun;
using Words = std::vector<std::string>;

Words shell(Words options, const std::string& script) {
  for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
    options.push_back(word);
  }
  return options;
}

/// For scripts: reports that the rank has started, and waits for the test.
const std::string kReady = "touch $DIR/ready$RANK; ";
const std::string kAwaitGo = "until [ -e $DIR/go ]; do sleep 0.02; done; ";

bool ready(const Weftrun& run, int ranks) {
  return becomes_true([&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!run.has_file("ready" + std::to_string(rank))) return false;
    }
    return true;
  });
}

std::map<std::string, std::string> variables(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) found[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return found;
}

// --- The environment of ranks --------------------------------------------------------------------

TEST(WeftrunEnvironment, IsTorchrunsAndTheStores) {
  Weftrun run(shell({"--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-id", "job", "--role",
                     "trainer"},
                    "env >$DIR/env$RANK; " + kReady + kAwaitGo),
              {"TORCHELASTIC_USE_AGENT_STORE=True", "OMP_NUM_THREADS=7"});
  ASSERT_TRUE(ready(run, 2)) << run.err();
  std::string store;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string number = std::to_string(rank);
    auto env = variables(run.file("env" + number));
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"RANK", number},
                                            {"LOCAL_RANK", number},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_WORLD_SIZE", "2"},
                                            {"GROUP_RANK", "0"},
                                            {"GROUP_WORLD_SIZE", "1"},
                                            {"ROLE_RANK", number},
                                            {"ROLE_WORLD_SIZE", "2"},
                                            {"ROLE_NAME", "trainer"},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"TORCHELASTIC_RESTART_COUNT", "0"},
                                            {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                            {"TORCHELASTIC_RUN_ID", "job"},
                                            {"OMP_NUM_THREADS", "7"},
                                            {"PYTHONUNBUFFERED", "1"}}) {
      EXPECT_EQ(env[name], value) << name;
    }
    EXPECT_FALSE(env.contains("TORCHELASTIC_USE_AGENT_STORE"));
    EXPECT_EQ(env["WEFT_STORE_TOKEN"].size(), 64u);
    EXPECT_TRUE(rank == 0 || env["WEFT_STORE"] == store);
    store = env["WEFT_STORE"];
    ASSERT_TRUE(store.starts_with("127.0.0.1:"));
    const int port = std::stoi(store.substr(10));
    EXPECT_NE(env["MASTER_PORT"], std::to_string(port));
    // Nothing listens there yet: rank 0 of a torch.distributed program will.
    EXPECT_NO_THROW(comm::listen_on("127.0.0.1", std::stoi(env["MASTER_PORT"])));
    comm::TcpStore(std::string("127.0.0.1"), port, env["WEFT_STORE_TOKEN"],
                   Deadline(testing::kDeadline))
        .set("go", "x");
  }
  testing::write_file(run.path("go"), "");
  EXPECT_EQ(run.finish(), 0) << run.err();
}

TEST(WeftrunEnvironment, SharesOutTheCoresAndMakesATokenPerRun) {
  ::unsetenv("OMP_NUM_THREADS");
  std::set<std::string> tokens;
  for (const int ranks : {1, 2}) {
    Weftrun run(shell({"-np", std::to_string(ranks)}, "env >$DIR/env$RANK"));
    EXPECT_EQ(run.finish(), 0) << run.err();
    auto env = variables(run.file("env0"));
    EXPECT_EQ(env["OMP_NUM_THREADS"], std::to_string(std::max(1, core_count() / ranks)));
    tokens.insert(env["WEFT_STORE_TOKEN"]);
  }
  EXPECT_EQ(tokens.size(), 2u);
}

TEST(WeftrunEnvironment, AFreePortIsNotTakenWhereOneIsGiven) {
  Weftrun run(
      shell({"--master-port", "12345", "--master-addr", "here"}, "echo $MASTER_ADDR:$MASTER_PORT"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.out(), "here:12345\n");
}

TEST(WeftrunEnvironment, RanksMayUseAllCoresWhereThreadsAreBound) {
#if defined(__clang__)
  GTEST_SKIP() << "LLVM's libomp, in the sanitizers' builds, binds weftrun before its first line";
#endif
  const auto cores = [](const std::string& status) {
    return variables(std::regex_replace(status, std::regex(":\t"), "="))["Cpus_allowed_list"];
  };
  Weftrun run({"cat", "/proc/self/status"}, {"OMP_PROC_BIND=true", "OMP_PLACES=cores"});
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(cores(run.out()), cores(testing::read_file("/proc/self/status")));
}

class WeftrunProgram : public ::testing::Test {
 protected:
  std::string write_program(const std::string& name, const std::string& text) const {
    testing::write_file(folder.path(name), text);
    ::chmod(folder.path(name).c_str(), 0755);
    return folder.path(name);
  }
  testing::TempFolder folder;
};

TEST_F(WeftrunProgram, APythonScriptIsRunByPython) {
  write_program("python3", "#!/bin/sh\necho python \"$@\"\n");
  const std::string script = write_program("train.py", "#!/bin/sh\necho itself \"$@\"\n");
  const std::string path = "PATH=" + folder.root() + ":" + ::getenv("PATH");
  Weftrun by_python({script, "--a_b", "-np"}, {path});
  EXPECT_EQ(by_python.finish(), 0) << by_python.err();
  EXPECT_EQ(by_python.out(), "python " + script + " --a_b -np\n");
  Weftrun itself({"--no-python", script, "x"}, {path});
  EXPECT_EQ(itself.finish(), 0) << itself.err();
  EXPECT_EQ(itself.out(), "itself x\n");
}

TEST_F(WeftrunProgram, WhatCannotRunIsAnError) {
  Weftrun missing({"-np", "2", "no_such_program"});
  EXPECT_EQ(missing.finish(), 1);
  EXPECT_HAS(missing.err(), "there is no program 'no_such_program' in PATH");
  const std::string text = write_program("text", "not a line that begins with #!\n");
  Weftrun unreadable({"-np", "2", text});
  EXPECT_EQ(unreadable.finish(), 1);
  EXPECT_HAS(unreadable.err(), "cannot run " + text);
  Weftrun option({"--nproc", "2", "true"});
  EXPECT_EQ(option.finish(), 2);
  EXPECT_HAS(option.err(), "did you mean --nproc-per-node?");
}

// --- Few file descriptors ------------------------------------------------------------------------

TEST(WeftrunDescriptors, TooFewAreAnErrorBeforeTheRun) {
  for (const char* ranks : {"2", "40"}) {
    Weftrun run(shell(
        {}, std::string("ulimit -n 30; exec launch/weftrun -np ") + ranks + " touch $DIR/ran"));
    EXPECT_EQ(run.finish(), 1);
    EXPECT_FALSE(run.has_file("ran")) << ranks;
    // Per rank a status page, two pipes and their logs, and four connections to the store; and 24
    // more.
    const std::string needed = std::to_string(9 * std::stoi(ranks) + 24);
    const std::string text = std::string("a run of ") + ranks + " ranks needs " + needed +
                             " file descriptors in this process, which may open ";
    EXPECT_HAS(run.err(), text);
    EXPECT_TRUE(std::regex_search(run.err(), std::regex(" of its 30: ulimit -n [0-9]+ allows")))
        << run.err();
  }
}

TEST(WeftrunDescriptors, AreAsManyAsTheHardLimitLets) {
  Weftrun run(shell({}, "ulimit -S -n 30; exec launch/weftrun -np 8 sh -c 'ulimit -S -n'"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  // The ranks have the same limit as without weftrun.
  EXPECT_HAS(run.out(), "30\n");
}

TEST(WeftrunDescriptors, AreEnoughWhereItSaysSo) {
  Weftrun few(shell({}, "ulimit -n 30; exec launch/weftrun -np 3 true"));
  EXPECT_EQ(few.finish(), 1);
  std::smatch enough;
  const std::string err = few.err();
  ASSERT_TRUE(std::regex_search(err, enough, std::regex("ulimit -n ([0-9]+) allows enough")))
      << err;
  Weftrun run(shell(
      {}, "ulimit -n " + enough[1].str() + "; exec launch/weftrun -np 3 --log-dir $DIR/logs true"));
  EXPECT_EQ(run.finish(), 0) << run.err();
}

// --- How ranks end, and what weftrun reports -----------------------------------------------------

TEST(WeftrunStatus, IsZeroWhenAllRanksEndWell) {
  Weftrun run(shell({"-np", "3", "--report", "DIR/report.json"}, "exit 0"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_EQ(run.err(), "");
  const auto report = run.report();
  EXPECT_EQ(report["status"], 0);
  EXPECT_EQ(report["restarts"], 0);
  EXPECT_EQ(report["world_size"], 3);
  EXPECT_TRUE(report["first_failure"].is_null());
  ASSERT_EQ(report["ranks"].size(), 3u);
  EXPECT_EQ(report["ranks"][2]["status"], 0);
}

/// The store of a run whose ranks have written their environment to $DIR/env.
comm::TcpStore store_of(const Weftrun& run) {
  auto env = variables(run.file("env"));
  return comm::TcpStore("127.0.0.1", std::stoi(env["WEFT_STORE"].substr(10)),
                        env["WEFT_STORE_TOKEN"], Deadline(testing::kDeadline));
}

TEST(WeftrunStatus, IsThatOfTheFirstFailureWhichIsShownLast) {
  Weftrun run(shell({"-np", "2", "--report", "DIR/report.json", "--grace", "60"},
                    "if [ $RANK = 1 ]; then env >$DIR/env; " + kReady +
                        "echo broken >&2; exit 3; fi; " + kReady + kAwaitGo +
                        "echo other >&2; exit 4"));
  ASSERT_TRUE(ready(run, 2));
  comm::TcpStore store = store_of(run);
  const auto failure = comm::find_failure(store, Deadline(testing::kDeadline));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->cause, "exit status 3");
  testing::write_file(run.path("go"), "");
  EXPECT_EQ(run.finish(), 3);
  const std::string err = run.err();
  const std::size_t box = err.find("+-- rank 1 failed first");
  ASSERT_NE(box, std::string::npos) << err;
  EXPECT_NE(err.find("| exit status 3\n", box), std::string::npos) << err;
  EXPECT_NE(err.find("|   broken\n", box), std::string::npos) << err;
  EXPECT_LT(err.find("] other"), box) << err;
  EXPECT_TRUE(err.ends_with("---\n")) << err;
  const auto report = run.report();
  EXPECT_EQ(report["first_failure"], 1);
  EXPECT_EQ(report["ranks"][0]["status"], 4);
  EXPECT_EQ(report["ranks"][0]["told_to_end"], false);
  EXPECT_TRUE(report["ranks"][1]["seconds_after_failure"].is_null());
  EXPECT_GE(report["ranks"][0]["seconds_after_failure"], 0.0);
}

TEST(WeftrunStatus, Is128AndTheSignalThatKilledARank) {
  Weftrun run(shell({"-np", "2", "--report", "DIR/report.json", "--grace", "0"},
                    "[ $RANK = 0 ] && kill -9 $$; sleep 60"));
  EXPECT_EQ(run.finish(), 137);
  EXPECT_HAS(run.err(), "killed by signal 9 (SIGKILL)");
  const auto report = run.report();
  EXPECT_EQ(report["ranks"][0]["signal"], 9);
  EXPECT_EQ(report["ranks"][0]["told_to_end"], false);
  EXPECT_EQ(report["ranks"][1]["signal"], 15);
  EXPECT_EQ(report["ranks"][1]["told_to_end"], true);
}

TEST(WeftrunStatus, WhoOnlyLostAPeerDidNotFailFirst) {
  const std::string script =
      "if [ $RANK = 0 ]; then "
      "  echo '{\"code\": \"PeerFailed\", \"message\": \"rank 1 is gone\"}' >$WEFT_ERROR_FILE; "
      "  echo $$ >$DIR/pid; " +
      kReady +
      "exit 1; "
      "fi; " +
      kReady + kAwaitGo +
      "echo '{\"code\": \"Shape\", \"message\": \"[conv2d] got 3\", \"phase\": \"forward\", "
      "\"step\": 7}' >$WEFT_ERROR_FILE; exit 5";
  Weftrun run(shell({"-np", "2", "--report", "DIR/report.json", "--grace", "60"}, script));
  ASSERT_TRUE(ready(run, 2));
  const pid_t follower = std::stoi(run.file("pid"));
  ASSERT_TRUE(becomes_true([&] { return std::ranges::count(run.processes(), follower) == 0; }));
  testing::write_file(run.path("go"), "");
  EXPECT_EQ(run.finish(), 5);
  EXPECT_HAS(run.err(), "| exit status 5, Shape in forward at step 7: [conv2d] got 3\n");
  const auto report = run.report();
  EXPECT_EQ(report["first_failure"], 1);
  EXPECT_EQ(report["ranks"][0]["code"], "PeerFailed");
  EXPECT_EQ(report["ranks"][1]["phase"], "forward");
}

// Stopped: the rank that timed out need not know which rank it waited for. Hung: the rank must be
// named.
TEST(WeftrunStatus, WhoDidNotRespondIsTheCauseOfATimeout) {
  for (const bool stopped : {true, false}) {
    const std::string script =
        "if [ $RANK = 1 ]; then echo $$ >$DIR/pid; " + kReady + (stopped ? "kill -STOP $$; " : "") +
        "sleep 100; fi; " + kAwaitGo + "echo '{\"code\": \"Timeout\", \"message\": \"" +
        (stopped ? "it took too long" : "rank 1 has not come") + "\"}' >$WEFT_ERROR_FILE; exit 7";
    Weftrun run(shell({"-np", "2", "--report", "DIR/report.json", "--grace", "1"}, script));
    ASSERT_TRUE(becomes_true([&] { return run.has_file("ready1"); }));
    const std::string state = "/proc/" + std::to_string(std::stoi(run.file("pid"))) + "/stat";
    EXPECT_TRUE(becomes_true(
        [&] { return !stopped || testing::read_file(state).find(") T ") != std::string::npos; }));
    testing::write_file(run.path("go"), "");
    EXPECT_EQ(run.finish(), 7);
    const std::string how = stopped ? "stopped" : "hung";
    EXPECT_HAS(run.err(), "+-- rank 1 did not respond -");
    EXPECT_HAS(run.err(), "| rank 1 did not respond (" + how +
                              ")\n| as rank 0 saw it: exit "
                              "status 7, Timeout: ");
    const auto report = run.report();
    EXPECT_EQ(report["first_failure"], 1);
    EXPECT_EQ(report["ranks"][0]["code"], "Timeout");
    EXPECT_EQ(report["ranks"][1]["stopped"], stopped);
    EXPECT_EQ(report["ranks"][1]["told_to_end"], true);
  }
}

TEST(WeftrunStatus, AKilledRankIsInTheStoreForTheOthers) {
  Weftrun run(shell({"-np", "2", "--grace", "60"},
                    "[ $RANK = 1 ] && kill -11 $$; env >$DIR/env; " + kReady + kAwaitGo));
  ASSERT_TRUE(ready(run, 1));
  comm::TcpStore store = store_of(run);
  const auto failure = comm::find_failure(store, Deadline(testing::kDeadline));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->cause, "killed by signal 11 (SIGSEGV)");
  testing::write_file(run.path("go"), "");
  EXPECT_EQ(run.finish(), 139);
}

TEST(WeftrunStatus, KnowsTheFileInWhichARankTellsWhatItIsIn) {
  // Only the rank has this descriptor, and a child only if it knows about it.
  Weftrun run(shell({"-np", "2"}, "readlink /proc/self/fd/$WEFT_STATUS_FD"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  EXPECT_EQ(run.out(), "[0-1] /memfd:weft status (deleted)\n");
}

// --- Nothing is left -----------------------------------------------------------------------------

TEST(WeftrunEnd, IsWithinFiveSeconds) {
  EXPECT_LT(Options().grace + Launcher::kKillAfterTerminate, std::chrono::seconds(5));
}

TEST(WeftrunEnd, WhoIgnoresSigtermIsKilled) {
  Weftrun run(shell({"-np", "3", "--report", "DIR/report.json", "--grace", "0.1"},
                    "[ $RANK = 2 ] && exit 1; trap 'touch $DIR/term$RANK' TERM; "
                    "while :; do sleep 0.05; done"));
  EXPECT_EQ(run.finish(), 1);
  const auto report = run.report();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(report["ranks"][rank]["signal"], 9);
    EXPECT_EQ(report["ranks"][rank]["told_to_end"], true);
  }
}

TEST(WeftrunEnd, WhoIsStoppedIsStillTerminated) {
  Weftrun run(
      shell({"-np", "2", "--report", "DIR/report.json", "--grace", "0.1"},
            "trap 'touch $DIR/term; exit 0' TERM; "
            "if [ $RANK = 0 ]; then " +
                kReady +
                "kill -STOP $$; while :; do sleep 0.02; "
                "done; fi; until [ -e $DIR/ready0 ]; do sleep 0.02; done; sleep 0.2; exit 6"));
  EXPECT_EQ(run.finish(), 6);
  EXPECT_TRUE(run.has_file("term")) << run.err();
}

TEST(WeftrunEnd, ProcessesOfRanksGoWithThem) {
  // A child, a grandchild that has lost its parent, and one that ignores SIGTERM.
  const std::string children =
      "sleep 61 & sh -c 'sleep 62 &'; sh -c 'trap \"\" TERM; sleep 63; :' & ";
  for (const std::string end : {"exit 0", "kill -9 $$"}) {
    Weftrun run(shell({"-np", "2", "--grace", "0.1"}, children + kReady + kAwaitGo + end));
    ASSERT_TRUE(ready(run, 2));
    EXPECT_TRUE(becomes_true([&] { return run.processes().size() >= 2 + 2 * 5u; }));
    testing::write_file(run.path("go"), "");
    EXPECT_EQ(run.finish(), end == "exit 0" ? 0 : 137);
  }
}

/// Processes that have left their rank's group: one with its parent, one that has lost it, one that
/// ignores SIGTERM and has a child of its own, one that is stopped. Each writes its number to a
/// file of its own, because for some the environment does not show to which run they belong.
const std::string kStrays =
    "setsid sh -c 'echo $$ >$DIR/a$RANK; exec sleep 64' & "
    "sh -c 'setsid sh -c \"echo \\$\\$ >$DIR/b$RANK; exec sleep 65\" &'; "
    "setsid sh -c 'trap \"\" TERM; sleep 66 & echo $$ >$DIR/c$RANK; wait' & "
    "setsid sh -c 'echo $$ >$DIR/d$RANK; kill -STOP $$; sleep 67' & ";
const std::string kNamelessStray =
    "setsid env -i sh -c \"echo \\$\\$ >$DIR/e$RANK; exec sleep 68\" & ";

/// The processes that were started there: waits until all have written their numbers and, with
/// `run`, checks that they live.
std::vector<pid_t> strays(const Weftrun& run, const std::string& names, int ranks) {
  std::vector<pid_t> found;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const char name : names) {
      const std::string file = name + std::to_string(rank);
      EXPECT_TRUE(becomes_true([&] { return run.has_file(file) && !run.file(file).empty(); }));
      found.push_back(std::stoi(run.file(file)));
    }
  }
  return found;
}

bool is_alive(pid_t pid) { return comm::process_start(pid).has_value(); }

void expect_end(const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    EXPECT_TRUE(becomes_true([&] { return !is_alive(pid); }))
        << testing::read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (is_alive(pid)) ::kill(pid, SIGKILL);
  }
}

TEST(WeftrunEnd, ProcessesThatHaveLeftTheirGroupGoToo) {
  for (const std::string end : {"exit 0", "kill -9 $$", "sleep 60"}) {
    Weftrun run(
        shell({"-np", "2", "--grace", "0.1"}, kStrays + kNamelessStray + kReady + kAwaitGo + end));
    const std::vector<pid_t> left = strays(run, "abcde", 2);
    ASSERT_TRUE(ready(run, 2));
    testing::write_file(run.path("go"), "");
    if (end == "sleep 60") run.signal(SIGTERM);
    const int status = run.finish();
    EXPECT_EQ(status, end == "exit 0" ? 0 : end == "sleep 60" ? 143 : 137) << run.err();
    // They have ended when weftrun ends.
    for (const pid_t pid : left) EXPECT_FALSE(is_alive(pid)) << end;
    expect_end(left);
  }
}

// Only a process that has also cleared its environment cannot be found then.
TEST(WeftrunEnd, ProcessesThatHaveLeftTheirGroupGoAlsoWhenItIsKilled) {
  Weftrun run(shell({"-np", "2"}, kStrays + kReady + "sleep 60"));
  const std::vector<pid_t> left = strays(run, "abcd", 2);
  ASSERT_TRUE(ready(run, 2));
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish(), 137);
  expect_end(left);
}

// They also end before a restart: they may hold a port, or a GPU's memory.
TEST(WeftrunEnd, ProcessesThatHaveLeftTheirGroupDoNotSeeARestart) {
  Weftrun run(shell({"-np", "1", "--max-restarts", "1"},
                    "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then "
                    "kill -0 $(cat $DIR/a0) && touch $DIR/seen; exit 0; fi; "
                    "setsid sh -c 'echo $$ >$DIR/a0; exec sleep 64' & "
                    "until [ -s $DIR/a0 ]; do sleep 0.02; done; exit 1"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_FALSE(run.has_file("seen"));
  expect_end(strays(run, "a", 1));
}

// A shell that has started a child in the background and then becomes weftrun.
TEST(WeftrunEnd, ChildrenThatItHadBeforeAreLeftAlone) {
  Weftrun run(shell({},
                    "(setsid sleep 64 & echo $! >$DIR/a0; "
                    "exec launch/weftrun --grace 0.1 sh -c '"
                    "setsid sh -c \"echo \\$\\$ >$DIR/b0; exec sleep 65\" & "
                    "until [ -s $DIR/b0 ]; do sleep 0.02; done'); "
                    "kill -0 $(cat $DIR/a0) && touch $DIR/alive; "
                    "readlink /proc/$(cat $DIR/b0)/exe || touch $DIR/ended"));
  EXPECT_EQ(run.finish(), 0);
  EXPECT_TRUE(run.has_file("alive")) << run.err();
  EXPECT_TRUE(run.has_file("ended")) << run.err();
  expect_end(strays(run, "ab", 1));
}

// If the ranks have ended by themselves, weftrun waits without limit: the user may read their
// output page by page.
TEST(WeftrunEnd, AfterASignalDoesNotWaitForWhoHasStoppedReading) {
  for (const std::string say : {"yes $RANK", "yes $RANK >&2", "trap 'yes $RANK' TERM; yes $RANK"}) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    Weftrun run(shell({"-np", "2", "--grace", "0.1"}, kReady + say), {}, pipe[1]);
    ::close(pipe[1]);
    ASSERT_TRUE(ready(run, 2));
    // Waits until the pipe takes no more bytes.
    int before = -1, now = 0;
    EXPECT_TRUE(becomes_true([&] {
      before = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return ::ioctl(pipe[0], FIONREAD, &now) == 0 && now == before && now > 0;
    }));
    run.signal(SIGTERM);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(run.finish(), 143) << say;
    // 0.1 s of grace, 1.5 s to SIGKILL, 1 s for the output: far below any deadline.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kDeadline / 2) << say;
    ::close(pipe[0]);
  }
}

TEST(WeftrunEnd, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Weftrun run(shell({"-np", "2", "--report", "DIR/report.json", "--grace", "60"},
                      "for s in INT TERM HUP QUIT; do trap \"echo $s >$DIR/got$RANK; exit 0\" $s; "
                      "done; " +
                          kReady + "while :; do sleep 0.02; done"));
    ASSERT_TRUE(ready(run, 2)) << run.err();
    run.signal(signal);
    EXPECT_EQ(run.finish(), 128 + signal);
    const std::string name = ::sigabbrev_np(signal);
    EXPECT_EQ(run.file("got0"), name + "\n");
    EXPECT_EQ(run.file("got1"), name + "\n");
    EXPECT_EQ(run.report()["signal"], signal);
    EXPECT_EQ(run.report()["status"], 128 + signal);
    EXPECT_TRUE(run.report()["first_failure"].is_null());
  }
}

TEST(WeftrunEnd, ASecondSignalKillsButTheSecondOfAPairDoesNot) {
  Weftrun run(shell({"-np", "2", "--grace", "3600"},
                    "trap 'touch $DIR/int$RANK' INT; " + kReady + "while :; do sleep 0.02; done"));
  ASSERT_TRUE(ready(run, 2));
  run.signal(SIGINT);
  run.signal(SIGTERM);  // like timeout(1), which also sends one to the group
  for (const char* file : {"int0", "int1"}) {
    EXPECT_TRUE(becomes_true([&] { return run.has_file(file); }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_GE(run.processes().size(), 4u);
  run.signal(SIGINT);
  EXPECT_EQ(run.finish(), 130);
}

TEST(WeftrunEnd, OfWeftrunIsTheEndOfAll) {
  Weftrun run(shell({"-np", "3"}, "trap '' TERM; sleep 61 & " + kReady + "sleep 60"));
  ASSERT_TRUE(ready(run, 3));
  run.signal(SIGKILL);
  EXPECT_EQ(run.finish(), 137);
}

TEST(WeftrunEnd, OfTheGuardianIsNoMatter) {
  Weftrun run(shell({"-np", "2", "--grace", "0.1"}, kReady + kAwaitGo + "exit 0"));
  ASSERT_TRUE(ready(run, 2));
  for (const pid_t pid : run.processes()) {
    if (testing::read_file("/proc/" + std::to_string(pid) + "/comm") == "weftrun guard\n") {
      ::kill(pid, SIGKILL);
    }
  }
  testing::write_file(run.path("go"), "");
  EXPECT_EQ(run.finish(), 0) << run.err();
}

TEST(WeftrunEnd, IsSeenWhereSigchldIsIgnored) {
  Weftrun run({"env", "--ignore-signal=CHLD", "launch/weftrun", "sh", "-c", "exit 7"});
  EXPECT_EQ(run.finish(), 7) << run.err();
}

// --- Restarts ------------------------------------------------------------------------------------

TEST(WeftrunRestart, StartsAllAnewWithTheSameCommandLine) {
  Weftrun run(
      shell({"-np", "2", "--max-restarts", "3", "--report", "DIR/report.json", "--grace", "60"},
            "echo $0 $RANK $TORCHELASTIC_RESTART_COUNT $WEFT_STORE >>$DIR/tries; "
            "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 7"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  std::set<std::string> stores;
  std::map<std::string, int> tries;
  std::istringstream in(run.file("tries"));
  for (std::string name, rank, count, store; in >> name >> rank >> count >> store;) {
    ++tries[rank + count];
    stores.insert(store);
  }
  EXPECT_EQ(tries, (std::map<std::string, int>{
                       {"00", 1}, {"01", 1}, {"02", 1}, {"10", 1}, {"11", 1}, {"12", 1}}));
  EXPECT_EQ(stores.size(), 3u);
  EXPECT_EQ(run.report()["restarts"], 2);
  EXPECT_EQ(run.report()["status"], 0);
  EXPECT_HAS(run.err(), "exit status 7; restart 2 of 3\n");
  EXPECT_LACKS(run.err(), "failed first");
}

TEST(WeftrunRestart, EndsWithTheLastFailure) {
  Weftrun run(shell({"-np", "1", "--max-restarts", "1", "--report", "DIR/report.json"},
                    "exit $((5 + TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(run.finish(), 6);
  EXPECT_EQ(run.report()["restarts"], 1);
  EXPECT_HAS(run.err(), "| exit status 6\n");
}

TEST(WeftrunRestart, NotAfterASignal) {
  Weftrun run(
      shell({"-np", "2", "--max-restarts", "1"}, "echo x >>$DIR/tries; " + kReady + "sleep 60"));
  ASSERT_TRUE(ready(run, 2));
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(), 143);
  EXPECT_EQ(run.file("tries"), "x\nx\n");
}

// --- Ranks without which the others go on --------------------------------------------------------

TEST(WeftrunElastic, ARankThatFailsIsStartedAgainAlone) {
  Weftrun run(
      shell({"-np", "3", "--min-nproc", "2", "--max-restarts", "1", "--report", "DIR/report.json"},
            "echo $RANK $WEFT_ELASTIC $TORCHELASTIC_RESTART_COUNT >>$DIR/starts; "
            "[ $RANK = 1 ] && [ $WEFT_ELASTIC = 0 ] && exit 7; "
            "until [ $(wc -l <$DIR/starts) = 4 ]; do sleep 0.02; done"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  std::multiset<std::string> starts;
  std::istringstream in(run.file("starts"));
  for (std::string line; std::getline(in, line);) starts.insert(line);
  EXPECT_EQ(starts, (std::multiset<std::string>{"0 0 0", "1 0 0", "1 1 1", "2 0 0"}));
  EXPECT_HAS(run.err(), "rank 1: exit status 7; the others go on, and it is started again\n");
  EXPECT_LACKS(run.err(), "failed first");
  EXPECT_EQ(run.report()["status"], 0);
  ASSERT_EQ(run.report()["replaced"].size(), 1U);
  EXPECT_EQ(run.report()["replaced"][0]["rank"], 1);
  EXPECT_EQ(run.report()["replaced"][0]["status"], 7);
}

TEST(WeftrunElastic, WhatAReplacedRankHasWrittenIsKept) {
  for (const std::string logs : {"--tee", "--redirects"}) {
    Weftrun run(shell({"-np", "2", "--min-nproc", "1", "--max-restarts", "1", "--log-dir",
                       "DIR/logs", logs, "3", "--report", "DIR/report.json"},
                      "[ $RANK = 0 ] && { until [ -f $DIR/go ]; do sleep 0.02; done; exit 0; }; "
                      "echo start $WEFT_ELASTIC; seq 2000; printf 'half of %s' $WEFT_ELASTIC; "
                      "[ $WEFT_ELASTIC = 0 ] && exit 7; touch $DIR/go; exit 0"));
    EXPECT_EQ(run.finish(), 0) << run.err();
    const auto find = [&](const std::string& name) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(run.path("logs")))
        if (entry.path().string().ends_with(name)) return testing::read_file(entry.path());
      return std::string();
    };
    const std::string log = find("attempt_0/1/stdout.log");
    EXPECT_HAS(log, "start 0\n");
    EXPECT_HAS(log, "2000\nhalf of 0start 1\n");
    EXPECT_HAS(log, "2000\nhalf of 1");
    if (logs == "--redirects") continue;
    EXPECT_HAS(run.out(), "[1] half of 0\n[1] start 1\n");
    EXPECT_HAS(run.out(), "[1] half of 1\n");
  }
}

// A program without Elastic: ranks that end because another one has are not started again.
TEST(WeftrunElastic, ARankThatFollowsIsNotStartedAgain) {
  Weftrun run(shell({"-np", "3", "--min-nproc", "2", "--max-restarts", "1", "--grace", "0"},
                    "echo $RANK >>$DIR/starts; "
                    "[ $RANK = 1 ] && { " +
                        kAwaitGo +
                        "echo '{\"code\": \"PeerFailed\", \"message\": \"it is lost\"}' "
                        ">$WEFT_ERROR_FILE; exit 1; }; "
                        "until [ -f $DIR/end ]; do sleep 0.02; done"));
  ASSERT_TRUE(becomes_true([&] { return run.file("starts").size() == 6; }));
  std::ofstream(run.path("go"));
  ASSERT_TRUE(becomes_true([&] { return run.err().find("PeerFailed") != std::string::npos; }));
  std::ofstream(run.path("end"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  EXPECT_HAS(run.err(), "rank 1: exit status 1, PeerFailed: it is lost\n");
  EXPECT_EQ(run.file("starts").size(), 6U);
}

// The Timeout is the rank's own, not that of a group: no other rank hangs.
TEST(WeftrunElastic, ATimeoutOfItsOwnIsSurvived) {
  Weftrun run(shell({"-np", "2", "--min-nproc", "1"},
                    "[ $RANK = 0 ] && { " + kAwaitGo +
                        "exit 0; }; echo '{\"code\": \"Timeout\", \"message\": \"a disk\"}' "
                        ">$WEFT_ERROR_FILE; exit 1"));
  ASSERT_TRUE(becomes_true([&] { return run.err().find("a disk") != std::string::npos; }));
  std::ofstream(run.path("go"));
  EXPECT_EQ(run.finish(), 0) << run.err();
  EXPECT_HAS(run.err(), "rank 1: exit status 1, Timeout: a disk; the others go on\n");
}

// Ranks that were started again alone count as restarts, too.
TEST(WeftrunElastic, RestartsAreCountedTogether) {
  Weftrun run(shell({"-np", "2", "--min-nproc", "1", "--max-restarts", "1", "--grace", "0"},
                    "echo x >>$DIR/starts; [ $RANK = 1 ] && exit 7; "
                    "until [ $(wc -l <$DIR/starts) = 3 ]; do sleep 0.02; done; exit 8"));
  EXPECT_EQ(run.finish(), 8) << run.err();
  EXPECT_EQ(run.file("starts"), "x\nx\nx\n") << run.err();
}

TEST(WeftrunElastic, WithFewerThanTheLeastTheRunEnds) {
  Weftrun run(
      shell({"-np", "3", "--min-nproc", "2", "--grace", "0"},
            "[ $RANK = 1 ] && exit 7; [ $RANK = 2 ] && { " + kAwaitGo + "exit 8; }; sleep 60"));
  ASSERT_TRUE(becomes_true([&] {
    return run.err().find("rank 1: exit status 7; the others go on\n") != std::string::npos;
  })) << run.err();
  std::ofstream(run.path("go"));
  EXPECT_EQ(run.finish(), 8);
  EXPECT_HAS(run.err(), "rank 2 failed first");
}

TEST(WeftrunReport, ThatCannotBeWrittenIsAnErrorBeforeTheRun) {
  Weftrun run({"--report", "DIR/no/report.json", "touch", "DIR/ran"});
  EXPECT_EQ(run.finish(), 1);
  EXPECT_HAS(run.err(), "no/report.json");
  EXPECT_FALSE(run.has_file("ran"));
}

// A folder with the temporary file's name stands for a disk that is full at the end.
TEST(WeftrunReport, ThatCannotBeWrittenLaterHidesNoFailure) {
  for (const int status : {3, 0}) {
    Weftrun run(
        shell({"--report", "DIR/report.json"},
              "mkdir $DIR/report.json.tmp; echo broken >&2; exit " + std::to_string(status)));
    EXPECT_EQ(run.finish(), status == 0 ? 1 : status);
    EXPECT_HAS(run.err(), "weftrun: [file] cannot write " + run.path("report.json"));
    EXPECT_HAS(run.err(), "broken");
    EXPECT_FALSE(run.has_file("report.json"));
    EXPECT_EQ(run.has_file("failure.json"), status != 0);
    if (status != 0) {
      EXPECT_HAS(run.err(), "+-- rank 0 failed first");
    }
  }
}

TEST(WeftrunFailure, IsWrittenBesideTheReportOrWhereItSays) {
  const std::string script = "[ $RANK = 1 ] && exit 3; " + kAwaitGo;
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--report", "DIR/report.json"},
        std::vector<std::string>{"--failure", "DIR/failure.json"}}) {
    std::vector<std::string> arguments = {"-np", "2", "--grace", "0"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    Weftrun run(shell(arguments, script));
    EXPECT_EQ(run.finish(), 3);
    EXPECT_HAS(run.err(), "| more is in " + run.path("failure.json") + ", which ./weft failure");
    const auto failure = nlohmann::json::parse(run.file("failure.json"));
    EXPECT_EQ(failure["first_failure"], 1);
    EXPECT_TRUE(failure["first_difference"].is_null());
    EXPECT_EQ(failure["ranks"][1]["end"], "exit status 3");
    EXPECT_EQ(failure["ranks"][0]["operations"], nlohmann::json::array());
  }
}

TEST(WeftrunFailure, IsNotWrittenOtherwise) {
  Weftrun good({"--report", "DIR/report.json", "true"});
  EXPECT_EQ(good.finish(), 0);
  EXPECT_FALSE(good.has_file("failure.json"));
  Weftrun named({"--report", "DIR/failure.json", "false"});
  EXPECT_EQ(named.finish(), 1);
  EXPECT_TRUE(nlohmann::json::parse(named.file("failure.json")).contains("restarts"));
  Weftrun none({"false"});
  EXPECT_EQ(none.finish(), 1);
  EXPECT_LACKS(none.err(), "failure");
  Weftrun nowhere({"--failure", "DIR/no/failure.json", "touch", "DIR/ran"});
  EXPECT_EQ(nowhere.finish(), 1);
  EXPECT_HAS(nowhere.err(), "no/failure.json");
  EXPECT_FALSE(nowhere.has_file("ran"));
}

}  // namespace
}  // namespace weft::launch
