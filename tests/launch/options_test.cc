// weftrun's command line: spellings, variables, and what it refuses.
#include "weft/launch/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "weft/core/runtime/parallel.h"
#include "weft/tests/core/command_line.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::launch {
namespace {

using testing::words;
using Words = std::vector<std::string>;

testing::Parsed<Options> parse(const Words& arguments) {
  return testing::parse("weftrun", arguments, Options());
}

Options options(const Words& arguments) {
  const auto parsed = parse(arguments);
  EXPECT_FALSE(parsed.status) << parsed.err;
  return parsed.options;
}

TEST(WeftrunOptions, DefaultsAreTorchruns) {
  const Options o = options({"./prog"});
  EXPECT_EQ(o.command, Words{"./prog"});
  EXPECT_EQ(o.nproc, 1);
  EXPECT_EQ(o.nnodes, 1);
  EXPECT_EQ(o.node_rank, 0);
  EXPECT_EQ(o.master_addr, "127.0.0.1");
  EXPECT_EQ(o.master_port, 0);
  EXPECT_EQ(o.max_restarts, 0);
  EXPECT_EQ(o.run_id, "none");
  EXPECT_EQ(o.role, "default");
  EXPECT_EQ(o.grace, std::chrono::seconds(3));
  EXPECT_FALSE(o.no_python);
  EXPECT_TRUE(o.local_ranks_filter.empty());
  EXPECT_FALSE(o.tee.has(0, StandardStream::out));
  EXPECT_FALSE(o.redirects.has(0, StandardStream::err));
}

TEST(WeftrunOptions, EveryOptionArrives) {
  const Options o = options(words(
      "--nproc-per-node 4 --nnodes 2 --node-rank 1 --rdzv-endpoint h:7 --max-restarts 5 "
      "--log-dir logs -r 1 -t 2 --local-ranks-filter 0,3 --no-python --report r.json --failure "
      "f.json "
      "--token-file t --role trainer --rdzv-id 9 --grace 0.25 --master-addr m --master-port 77 "
      "--local-addr 10.0.0.1 prog"));
  EXPECT_EQ(o.nproc, 4);
  EXPECT_EQ(o.nnodes, 2);
  EXPECT_EQ(o.node_rank, 1);
  EXPECT_EQ(o.endpoint_host, "h");
  EXPECT_EQ(o.endpoint_port, 7);
  EXPECT_EQ(o.max_restarts, 5);
  EXPECT_EQ(o.log_dir, "logs");
  EXPECT_TRUE(o.redirects.has(3, StandardStream::out));
  EXPECT_FALSE(o.redirects.has(3, StandardStream::err));
  EXPECT_FALSE(o.tee.has(0, StandardStream::out));
  EXPECT_TRUE(o.tee.has(0, StandardStream::err));
  EXPECT_EQ(o.local_ranks_filter, (std::set<int>{0, 3}));
  EXPECT_TRUE(o.no_python);
  EXPECT_EQ(o.report, "r.json");
  EXPECT_EQ(o.failure, "f.json");
  EXPECT_EQ(o.token_file, "t");
  EXPECT_EQ(o.role, "trainer");
  EXPECT_EQ(o.run_id, "9");
  EXPECT_EQ(o.grace, std::chrono::milliseconds(250));
  EXPECT_EQ(o.master_addr, "m");
  EXPECT_EQ(o.master_port, 77);
  EXPECT_EQ(o.local_addr, "10.0.0.1");
}

TEST(WeftrunOptions, TheFailureIsBesideTheReport) {
  EXPECT_EQ(options({"p"}).failure, "");
  EXPECT_EQ(options({"--report", "r.json", "p"}).failure, "failure.json");
  EXPECT_EQ(options({"--report", "/a/b/r.json", "p"}).failure, "/a/b/failure.json");
  EXPECT_EQ(options({"--report", "/a/failure.json", "p"}).failure, "");
  EXPECT_EQ(options({"--failure", "f", "p"}).failure, "f");
  const auto same = parse({"--report", "r.json", "--failure", "r.json", "p"});
  EXPECT_EQ(same.status, 2);
  EXPECT_HAS(same.err, "'r.json' is the --report, too");
  for (const char* other : {"./r.json", "a/../r.json"}) {
    EXPECT_EQ(parse({"--report", "r.json", "--failure", other, "p"}).status, 2) << other;
  }
  const testing::TempFolder folder;
  std::filesystem::create_symlink(".", folder.path("link"));
  const auto linked =
      parse({"--report", folder.path("r"), "--failure", folder.path("link/r"), "p"});
  EXPECT_EQ(linked.status, 2);
}

TEST(WeftrunOptions, BothSpellingsAndHorovods) {
  EXPECT_EQ(options({"--nproc_per_node=3", "p"}).nproc, 3);
  EXPECT_EQ(options({"--max_restarts", "2", "p"}).max_restarts, 2);
  EXPECT_EQ(options({"-np", "3", "--min-nproc", "2", "p"}).min_nproc, 2);
  EXPECT_EQ(options({"-np", "3", "--min_np", "1", "p"}).min_nproc, 1);
  EXPECT_EQ(options({"--log_dir=a_b", "p"}).log_dir, "a_b");
  EXPECT_EQ(options({"-np", "4", "-H", "localhost:4", "p"}).nproc, 4);
  EXPECT_EQ(options({"-np", "2", "-H", "localhost:4", "p"}).nproc, 2);
  EXPECT_EQ(options({"-H", "127.0.0.1:3", "p"}).nproc, 3);
  EXPECT_EQ(options({"-H", "localhost", "p"}).nproc, 1);
  EXPECT_EQ(options({"-H", "localhost:4", "--nproc-per-node", "2", "p"}).nproc, 2);
  EXPECT_EQ(options({"-np", "2", "--nproc-per-node", "2", "p"}).nproc, 2);
  EXPECT_EQ(options({"--standalone", "--nnodes=1:1", "--rdzv-backend=c10d", "p"}).nnodes, 1);
}

TEST(WeftrunOptions, TheProgramsArgumentsStayAsTheyAre) {
  const Words program = {"./p", "--nproc-per-node", "3", "-np", "--a_b=c", "--help", "--", "x"};
  for (const bool marked : {false, true}) {
    Words arguments = {"--nproc-per-node", "2"};
    if (marked) arguments.push_back("--");
    arguments.insert(arguments.end(), program.begin(), program.end());
    const Options o = options(arguments);
    EXPECT_EQ(o.command, program);
    EXPECT_EQ(o.nproc, 2);
  }
}

TEST(WeftrunOptions, RanksByCores) {
  EXPECT_EQ(options({"--nproc-per-node", "cpu", "p"}).nproc, core_count());
  EXPECT_GE(options({"--nproc-per-node", "auto", "p"}).nproc, 1);
}

TEST(WeftrunOptions, VariablesStandInForWhatIsNotGiven) {
  ::setenv("PET_NPROC_PER_NODE", "3", 1);
  ::setenv("PET_STANDALONE", "1", 1);
  ::setenv("PET_LOG_DIR", "x", 1);
  const Options o = options({"--log-dir", "y", "p"});
  EXPECT_EQ(o.nproc, 3);
  EXPECT_EQ(o.log_dir, "y");
  ::setenv("PET_NPROC_PER_NODE", "none", 1);
  EXPECT_EQ(parse({"p"}).status, 2);
  for (const char* name : {"PET_NPROC_PER_NODE", "PET_STANDALONE", "PET_LOG_DIR"}) ::unsetenv(name);
}

TEST(WeftrunOptions, TheNumberOfNodesMayBeARange) {
  const Options o = options({"--nnodes", "2:4", "--nproc-per-node", "3", "p"});
  EXPECT_EQ(o.nnodes, 4);
  EXPECT_EQ(o.min_nnodes, 2);
  EXPECT_EQ(o.least_ranks(), 6);
  EXPECT_EQ(options({"--nnodes", "2", "p"}).least_ranks(), 0);
}

TEST(WeftrunOptions, NodesMeetAtTheEndpointOrTheMaster) {
  Options o = options({"--nnodes", "2", "--rdzv-endpoint", "a:5", "p"});
  EXPECT_EQ(o.endpoint_host, "a");
  EXPECT_EQ(o.endpoint_port, 5);
  EXPECT_EQ(o.master_addr, "a");
  EXPECT_EQ(o.master_port, 0);
  o = options({"--nnodes", "2", "--rdzv-endpoint", "a", "--master-port", "6", "p"});
  EXPECT_EQ(o.endpoint_port, 29400);
  EXPECT_EQ(o.master_port, 6);
  o = options({"--nnodes", "2", "--master-addr", "b", "--master-port", "6", "p"});
  EXPECT_EQ(o.endpoint_host, "b");
  EXPECT_EQ(o.endpoint_port, 6);
  EXPECT_EQ(o.master_port, 0);  // the given one is used by the meeting
  o = options({"--nnodes", "2", "p"});
  EXPECT_EQ(o.endpoint_host, "127.0.0.1");
  EXPECT_EQ(o.endpoint_port, 29500);
  o = options({"--nnodes", "2", "--rdzv-endpoint", "[::1]:5", "p"});
  EXPECT_EQ(o.endpoint_host, "::1");
  EXPECT_EQ(o.endpoint_port, 5);
  EXPECT_EQ(options({"--nnodes", "2", "--rdzv-endpoint", "[::1]", "p"}).endpoint_port, 29400);
  for (const char* bare : {"::1", "fe80::1:5", "fe80::1%eth0"}) {
    o = options({"--nnodes", "2", "--rdzv-endpoint", bare, "p"});
    EXPECT_EQ(o.endpoint_host, bare);
    EXPECT_EQ(o.endpoint_port, 29400);
  }
}

TEST(WeftrunOptions, StreamsForAllRanksOrByRank) {
  const StreamChoice tee = options({"-np", "3", "-t", "0:1,2:3", "p"}).tee;
  EXPECT_TRUE(tee.has(0, StandardStream::out));
  EXPECT_FALSE(tee.has(0, StandardStream::err));
  EXPECT_FALSE(tee.has(1, StandardStream::out));
  EXPECT_TRUE(tee.has(2, StandardStream::err));
  // With only a folder for logs, everything goes there and is also shown.
  EXPECT_EQ(options({"--log-dir", "x", "p"}).tee.all, 3);
  EXPECT_EQ(options({"--log-dir", "x", "-r", "1", "p"}).tee.all, 0);
}

TEST(WeftrunOptions, WhatIsWrongIsSaidWithStatus2) {
  const std::vector<std::pair<Words, const char*>> cases = {
      {{}, "which program?"},
      {{"--nproc", "2", "p"}, "unknown option --nproc; did you mean --nproc-per-node?"},
      {{"--max-restart=2", "p"}, "unknown option --max-restart; did you mean --max-restarts?"},
      {{"-q", "p"}, "unknown option -q"},
      {{"--nproc-per-node"}, "--nproc-per-node needs a value"},
      {{"--standalone=3", "p"}, "--standalone takes no value"},
      {{"--nproc-per-node", "0", "p"}, "--nproc-per-node: '0' is no whole number from 1 to 4096"},
      {{"-np", "0", "p"}, "--np: '0' is no whole number from 1 to 4096"},
      {{"--nproc-per-node", "two", "p"}, "'two' is no whole number from 1 to 4096"},
      {{"--nnodes", "4:1", "p"}, "'1' is no whole number from 4 to 4096"},
      {{"--nnodes", "1:2:3", "p"}, "'2:3' is no whole number from 1 to 4096"},
      {{"--nnodes", "2", "--node-rank", "2", "p"}, "'2' is no whole number from 0 to 1"},
      {{"--nnodes", "2", "--standalone", "p"}, "--standalone: is for one node"},
      {{"--nnodes", "2", "--rdzv-endpoint", ":5", "p"}, "needs a host"},
      {{"--nnodes", "2", "--rdzv-endpoint", "h:x", "p"}, "'x' is no whole number from 1 to 65535"},
      {{"-np", "2", "--min-nproc", "3", "p"}, "'3' is no whole number from 1 to 2"},
      {{"--nnodes", "2", "--min-nproc", "1", "p"}, "--min-nproc: is for one node"},
      {{"--master-port", "65536", "p"}, "'65536' is no whole number from 0 to 65535"},
      {{"--grace", "-1", "p"}, "'-1' is no number of seconds"},
      {{"-t", "4", "p"}, "'4' is no whole number from 0 to 3"},
      {{"-np", "2", "-r", "2:1", "p"}, "'2' is no whole number from 0 to 1"},
      {{"-r", "0:1:2", "p"}, "'0:1:2' is not LOCAL_RANK:STREAMS"},
      {{"--local-ranks-filter", "1", "p"}, "'1' is no whole number from 0 to 0"},
      {{"-np", "3", "-H", "localhost:2", "p"}, "has room for fewer ranks than 3"},
      {{"--nproc-per-node", "3", "-H", "localhost:2", "p"}, "has room for fewer ranks than 3"},
      {{"-np", "2", "--nproc-per-node", "3", "p"}, "--np: '2', and --nproc-per-node says '3'"},
      {{"--nnodes", "2", "--rdzv-endpoint", "1:2:3", "p"},
       "'1:2:3' is no IPv6 address; with a port it is [ADDRESS]:PORT"},
      {{"-H", "a:1,b:1", "p"}, "'a:1,b:1' is not localhost:N; on several hosts start weftrun"},
  };
  for (const auto& [arguments, text] : cases) {
    const auto parsed = parse(arguments);
    EXPECT_EQ(parsed.status, 2) << text;
    EXPECT_HAS(parsed.err, text);
    EXPECT_HAS(parsed.err, "Try --help.");
    EXPECT_EQ(parsed.out, "");
  }
}

TEST(WeftrunOptions, HelpNamesEachOption) {
  const auto parsed = parse({"--help"});
  EXPECT_EQ(parsed.status, 0);
  EXPECT_EQ(parsed.err, "");
  for (const char* text : {"usage: weftrun [options] PROGRAM [its arguments]", "--nproc-per-node 1",
                           "--nnodes 1", "--node-rank 0", "--max-restarts 0", "--grace 3"}) {
    EXPECT_HAS(parsed.out, text);
  }
  for (const std::string& word : words(
           "-np -H,--hosts --rdzv-endpoint --token-file --standalone --master-addr --master-port "
           "-r,--redirects -t,--tee --log-dir --local-ranks-filter --report --failure --no-python "
           "OMP_NUM_THREADS PET_")) {
    EXPECT_HAS(parsed.out, word);
  }
}

}  // namespace
}  // namespace weft::launch
