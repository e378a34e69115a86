// How the environments of the launchers are read.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>

#include "weft/comm/init.h"
#include "weft/comm/store/member.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"

namespace weft::comm {
namespace {

using Set = std::map<std::string, std::string>;

LaunchEnvironment read(const Set& set) {
  return launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = set.find(name);
    if (found == set.end()) return std::nullopt;
    return found->second;
  });
}

Set with(Set set, const Set& more) {
  for (const auto& [name, value] : more) set[name] = value;
  return set;
}

Set without(Set set, const std::string& name) {
  set.erase(name);
  return set;
}

// The file in /tmp, or in `folder`, for this user's job.
std::string job_file(const std::string& job, const std::string& folder = "/tmp") {
  return "file://" + folder + "/weft-" + std::to_string(::geteuid()) + "-" + job;
}

std::string parents_file() {
  const auto parent = ::getppid();
  return job_file("parent-" + std::to_string(parent) + "-" +
                  std::to_string(process_start(parent).value_or(0)));
}

void expect_place(const LaunchEnvironment& found, int rank, int size, int local_rank,
                  int local_size) {
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.size, size);
  EXPECT_EQ(found.local_rank, local_rank);
  EXPECT_EQ(found.local_size, local_size);
}

const Set kPlain = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Set kTorchrun = with(kPlain, {{"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"TORCHELASTIC_RUN_ID", "none"},
                                    {"TORCHELASTIC_RESTART_COUNT", "3"},
                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
const Set kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"PMIX_NAMESPACE", "2147483649"}};
const Set kMpich = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Set kSlurm = {{"SLURM_JOB_ID", "77"},       {"SLURM_STEP_ID", "4"},
                    {"SLURM_PROCID", "1"},        {"SLURM_NTASKS", "2"},
                    {"SLURM_LOCALID", "1"},       {"SLURM_NODEID", "0"},
                    {"SLURM_RESTART_COUNT", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}};
const Set kHorovod = {{"HOROVOD_RANK", "1"},
                      {"HOROVOD_SIZE", "2"},
                      {"HOROVOD_LOCAL_RANK", "1"},
                      {"HOROVOD_LOCAL_SIZE", "2"},
                      {"HOROVOD_GLOO_RENDEZVOUS_PORT", "41234"}};

TEST(LaunchEnvironment, NothingIsAWorldOfOne) {
  const LaunchEnvironment found = read({});
  expect_place(found, 0, 1, 0, 1);
  EXPECT_EQ(found.launcher, "");
  EXPECT_EQ(found.meeting, "");
}

TEST(LaunchEnvironment, AWorldOfOneMeetsNobody) {
  const LaunchEnvironment found = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(found.launcher, "env://");
  EXPECT_EQ(found.meeting, "");
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).meeting, "");
}

TEST(LaunchEnvironment, WeftrunHostsTheStore) {
  const LaunchEnvironment found = read(with(kTorchrun, {{"WEFT_STORE", "127.0.0.1:4711"}}));
  expect_place(found, 1, 2, 1, 2);
  EXPECT_EQ(found.launcher, "weftrun");
  EXPECT_EQ(found.meeting, "tcp://127.0.0.1:4711");
  EXPECT_FALSE(found.hosts_store);
}

TEST(LaunchEnvironment, PlainVariablesLetRankZeroHostTheStore) {
  const LaunchEnvironment found = read(kPlain);
  expect_place(found, 1, 2, 1, 2);
  EXPECT_EQ(found.launcher, "env://");
  EXPECT_EQ(found.meeting, "tcp://node0:29500");
  EXPECT_TRUE(found.hosts_store);
  EXPECT_EQ(read(with(kPlain, {{"MASTER_ADDR", "fd00::1"}})).meeting, "tcp://[fd00::1]:29500");
}

TEST(LaunchEnvironment, TorchrunOnOneHostMeetsInAFileOfTheAttempt) {
  const LaunchEnvironment found = read(kTorchrun);
  expect_place(found, 1, 2, 1, 2);
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.meeting, job_file("torchrun-29500-none-3"));
  EXPECT_EQ(read(without(kTorchrun, "TORCHELASTIC_RESTART_COUNT")).meeting,
            job_file("torchrun-29500-none-0"));
  EXPECT_EQ(read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "a/../b c"}})).meeting,
            job_file("torchrun-29500-a_.._b_c-3"));
}

TEST(LaunchEnvironment, TheFileIsInTheUsersRuntimeFolderIfThereIsOne) {
  const testing::TempFolder folder;
  EXPECT_EQ(read(with(kTorchrun, {{"XDG_RUNTIME_DIR", folder.root()}})).meeting,
            job_file("torchrun-29500-none-3", folder.root()));
  EXPECT_EQ(read(with(kTorchrun, {{"XDG_RUNTIME_DIR", folder.path("none")}})).meeting,
            job_file("torchrun-29500-none-3"));
  EXPECT_EQ(read(with(kTorchrun, {{"XDG_RUNTIME_DIR", "."}})).meeting,
            job_file("torchrun-29500-none-3"));
}

TEST(LaunchEnvironment, TorchrunOnSeveralHostsMeetsBesideItsOwnPort) {
  const LaunchEnvironment found = read(with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "3"}}));
  expect_place(found, 3, 4, 1, 2);
  EXPECT_EQ(found.meeting, "tcp://node0:29501");
  EXPECT_TRUE(found.hosts_store);
}

TEST(LaunchEnvironment, TorchrunThatHoldsNoPortLeavesItToRankZero) {
  const LaunchEnvironment found = read(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE"));
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.meeting, "tcp://node0:29500");
  EXPECT_TRUE(found.hosts_store);
}

TEST(LaunchEnvironment, OpenMpiMeetsInAFileOfTheJob) {
  const LaunchEnvironment found = read(kOpenMpi);
  expect_place(found, 2, 3, 2, 3);
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.meeting, job_file("mpi-2147483649"));
  const Set older = without(kOpenMpi, "PMIX_NAMESPACE");
  EXPECT_EQ(read(with(older, {{"OMPI_MCA_orte_hnp_uri", "77.0;tcp://10.0.0.1:5"}})).meeting,
            job_file("mpi-77.0_tcp___10.0.0.1_5"));
  EXPECT_EQ(read(older).meeting, parents_file());
}

TEST(LaunchEnvironment, MpichMeetsInAFileOfItsParent) {
  const LaunchEnvironment found = read(kMpich);
  expect_place(found, 0, 2, 0, 2);
  EXPECT_EQ(found.launcher, "MPICH");
  EXPECT_EQ(found.meeting, parents_file());
}

TEST(LaunchEnvironment, SrunMeetsInAFileOfTheStep) {
  const LaunchEnvironment found = read(kSlurm);
  expect_place(found, 1, 2, 1, 2);
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.meeting, job_file("slurm-77-4-1"));
}

TEST(LaunchEnvironment, SlurmTellsTheRanksOfEachNode) {
  const Set master = {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  const Set five = with(with(kSlurm, master), {{"SLURM_NTASKS", "5"},
                                               {"SLURM_PROCID", "4"},
                                               {"SLURM_LOCALID", "0"},
                                               {"SLURM_NODEID", "2"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}});
  expect_place(read(five), 4, 5, 0, 1);
  expect_place(read(with(five, {{"SLURM_NODEID", "1"}, {"SLURM_PROCID", "3"}})), 3, 5, 0, 2);
  EXPECT_EQ(read(five).meeting, "tcp://node0:29500");
  for (const char* list : {"", "x", "2(x", "2(x2", "2(x2),", "2(x2)1", "2(x2)"}) {
    EXPECT_WEFT_ERROR(read(with(five, {{"SLURM_STEP_TASKS_PER_NODE", list}})), InvalidArgument,
                      "SLURM_STEP_TASKS_PER_NODE");
  }
}

TEST(LaunchEnvironment, ABatchScriptIsNoRun) {
  EXPECT_EQ(read(without(kSlurm, "SLURM_STEP_ID")).size, 1);
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_NTASKS", "1"}})).size, 1);
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).size, 1);  // salloc's shell
}

TEST(LaunchEnvironment, HorovodMeetsInAFileOfTheRun) {
  const LaunchEnvironment found = read(kHorovod);
  expect_place(found, 1, 2, 1, 2);
  EXPECT_EQ(found.launcher, "Horovod");
  EXPECT_EQ(found.meeting, job_file("horovod-41234"));
  EXPECT_EQ(read(without(kHorovod, "HOROVOD_GLOO_RENDEZVOUS_PORT")).meeting, parents_file());
}

TEST(LaunchEnvironment, OfTwoLaunchersTheInnerOneCounts) {
  EXPECT_EQ(read(with(kOpenMpi, kSlurm)).launcher, "Open MPI");
  EXPECT_EQ(read(with(kMpich, kSlurm)).launcher, "MPICH");  // mpiexec in an allocation
  EXPECT_EQ(read(with(kSlurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})).launcher, "Slurm");
  EXPECT_EQ(read(with(kOpenMpi, kHorovod)).launcher, "Open MPI");
  EXPECT_EQ(read(with(kOpenMpi, kPlain)).launcher, "env://");
  EXPECT_EQ(read(with(kSlurm, kTorchrun)).launcher, "torchrun");
}

TEST(LaunchEnvironment, WithAMasterJobsMeetThere) {
  const Set master = {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  for (const Set& job : {kOpenMpi, kMpich, kSlurm, kHorovod}) {
    const LaunchEnvironment found = read(with(job, master));
    EXPECT_EQ(found.meeting, "tcp://node0:29500") << found.launcher;
    EXPECT_TRUE(found.hosts_store);
  }
}

TEST(LaunchEnvironment, JobsOnSeveralHostsNeedAMaster) {
  const Set two_hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"}});
  EXPECT_WEFT_ERROR(read(two_hosts), InvalidArgument,
                    "environment variable MASTER_ADDR expected, but not set");
  EXPECT_WEFT_ERROR(read(two_hosts), InvalidArgument, "mpirun -x MASTER_ADDR=node0");
  EXPECT_WEFT_ERROR(read(with(kOpenMpi, {{"MASTER_ADDR", "node0"}})), InvalidArgument,
                    "environment variable MASTER_PORT expected");
  EXPECT_WEFT_ERROR(read(with(kOpenMpi, {{"MASTER_PORT", "29500"}})), InvalidArgument,
                    "environment variable MASTER_ADDR expected");
}

TEST(LaunchEnvironment, WhatIsMissingIsNamedWithALaunchLine) {
  const struct {
    Set set;
    const char* missing;
    const char* example;
  } cases[] = {
      {kPlain, "RANK", "weftrun --nproc-per-node 2 PROGRAM"},
      {kPlain, "WORLD_SIZE", "weftrun --nproc-per-node 2 PROGRAM"},
      {kPlain, "MASTER_ADDR", "weftrun --nproc-per-node 2 PROGRAM"},
      {kPlain, "MASTER_PORT", "weftrun --nproc-per-node 2 PROGRAM"},
      {kTorchrun, "RANK", "torchrun --no-python --nproc-per-node 2 PROGRAM"},
      {kTorchrun, "LOCAL_RANK", "torchrun --no-python"},
      {kTorchrun, "LOCAL_WORLD_SIZE", "torchrun --no-python"},
      {kTorchrun, "MASTER_PORT", "torchrun --no-python"},
      {kOpenMpi, "OMPI_COMM_WORLD_RANK", "mpirun -np 2 PROGRAM"},
      {kOpenMpi, "OMPI_COMM_WORLD_SIZE", "mpirun -np 2 PROGRAM"},
      {kMpich, "PMI_RANK", "mpiexec -n 2 PROGRAM"},
      {kMpich, "PMI_SIZE", "mpiexec -n 2 PROGRAM"},
      {kSlurm, "SLURM_PROCID", "srun --ntasks 2 PROGRAM"},
      {kSlurm, "SLURM_LOCALID", "srun --ntasks 2 PROGRAM"},
      {kHorovod, "HOROVOD_SIZE", "horovodrun -np 2 PROGRAM"},
  };
  for (const auto& [set, missing, example] : cases) {
    const std::string text =
        std::string("environment variable ") + missing + " expected, but not set";
    EXPECT_WEFT_ERROR(read(without(set, missing)), InvalidArgument, text);
    EXPECT_WEFT_ERROR(read(without(set, missing)), InvalidArgument, example);
  }
  EXPECT_WEFT_ERROR(read({{"MASTER_ADDR", "node0"}}), InvalidArgument, "RANK expected");
}

TEST(LaunchEnvironment, WhatCannotBeIsRefused) {
  const auto plain = [](const char* name, const char* value) {
    return read(with(kPlain, {{name, value}}));
  };
  EXPECT_WEFT_ERROR(plain("RANK", "2"), InvalidArgument, "RANK=2 and WORLD_SIZE=2 do not fit");
  EXPECT_WEFT_ERROR(plain("RANK", "-1"), InvalidArgument, "RANK=-1");
  EXPECT_WEFT_ERROR(plain("RANK", "one"), InvalidArgument, "RANK is 'one'");
  EXPECT_WEFT_ERROR(plain("RANK", ""), InvalidArgument, "expected a whole number");
  EXPECT_WEFT_ERROR(plain("RANK", "1 "), InvalidArgument, "expected a whole number");
  EXPECT_WEFT_ERROR(plain("WORLD_SIZE", "0"), InvalidArgument, "WORLD_SIZE=0");
  EXPECT_WEFT_ERROR(plain("WORLD_SIZE", "99999999999"), InvalidArgument, "do not fit");
  EXPECT_WEFT_ERROR(plain("MASTER_PORT", "0"), InvalidArgument, "ports are 1 to 65535");
  EXPECT_WEFT_ERROR(plain("MASTER_PORT", "65536"), InvalidArgument, "ports are 1 to 65535");
  EXPECT_WEFT_ERROR(read(with(kTorchrun, {{"LOCAL_RANK", "2"}})), InvalidArgument,
                    "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2");
  EXPECT_WEFT_ERROR(read(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}})), InvalidArgument,
                    "more ranks on one host than on all");
  EXPECT_WEFT_ERROR(read(with(kTorchrun, {{"WORLD_SIZE", "4"}, {"MASTER_PORT", "65535"}})),
                    InvalidArgument, "which leads to port 65536");
}

}  // namespace
}  // namespace weft::comm
