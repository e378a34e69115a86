#include "weft/comm/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "weft/comm/store/member.h"
#include "weft/comm/store/socket.h"
#include "weft/core/base/error.h"

namespace weft::comm {
namespace {

constexpr const char* kOp = "init_process_group";
constexpr std::size_t kMostJobName = 150;
// From this number on, Slurm's steps are not started by srun (a batch script, salloc's shell).
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

// The variables by which a launcher tells a process its place, and a command line that starts one.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* example;
};
constexpr const char* kWeftrunExample = "weftrun --nproc-per-node 2 PROGRAM";
constexpr Names kWeftrun{"weftrun",          "RANK",         "WORLD_SIZE", "LOCAL_RANK",
                         "LOCAL_WORLD_SIZE", kWeftrunExample};
constexpr Names kTorchrun{"torchrun",         "RANK",
                          "WORLD_SIZE",       "LOCAL_RANK",
                          "LOCAL_WORLD_SIZE", "torchrun --no-python --nproc-per-node 2 PROGRAM"};
constexpr Names kPlain{"env://",           "RANK",         "WORLD_SIZE", "LOCAL_RANK",
                       "LOCAL_WORLD_SIZE", kWeftrunExample};
constexpr Names kOpenMpi{"Open MPI",
                         "OMPI_COMM_WORLD_RANK",
                         "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                         "mpirun -np 2 PROGRAM"};
constexpr Names kMpich{"MPICH",           "PMI_RANK",        "PMI_SIZE",
                       "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n 2 PROGRAM"};
constexpr Names kSlurm{"Slurm",
                       "SLURM_PROCID",
                       "SLURM_NTASKS",
                       "SLURM_LOCALID",
                       "SLURM_STEP_TASKS_PER_NODE",
                       "srun --ntasks 2 PROGRAM"};
constexpr Names kHorovod{"Horovod",
                         "HOROVOD_RANK",
                         "HOROVOD_SIZE",
                         "HOROVOD_LOCAL_RANK",
                         "HOROVOD_LOCAL_SIZE",
                         "horovodrun -np 2 PROGRAM"};

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> find(const char* name) const { return variables_(name); }
  bool has(const char* name) const { return find(name).has_value(); }

  std::string need(const char* name, const std::string& example) const {
    const auto value = find(name);
    WEFT_CHECK(value, InvalidArgument, kOp, "environment variable ", name,
               " expected, but not set; a launcher sets it, e.g. ", example);
    return *value;
  }
  std::int64_t number(const char* name, const std::string& example) const {
    const std::string text = need(name, example);
    std::int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    WEFT_CHECK(error == std::errc() && stop == end, InvalidArgument, kOp, "environment variable ",
               name, " is '", text, "', expected a whole number");
    return number;
  }

 private:
  const Variables& variables_;
};

void check_place(const char* rank_name, std::int64_t rank, const char* size_name,
                 std::int64_t size) {
  WEFT_CHECK(size >= 1 && size <= 1'000'000 && rank >= 0 && rank < size, InvalidArgument, kOp,
             "environment variables ", rank_name, "=", rank, " and ", size_name, "=", size,
             " do not fit: ranks count from 0 to size - 1");
}

// The tasks of node `node` by a list such as "2(x3),1" (2, 2, 2, 1); 0 if it has no such node.
std::int64_t tasks_of_node(const std::string& list, std::int64_t node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  const auto read = [&](auto& number) {
    const auto [stop, error] = std::from_chars(at, end, number);
    at = stop;
    return error == std::errc();
  };
  for (;;) {
    std::int64_t tasks = 0, nodes = 1;
    if (!read(tasks)) return 0;
    if (end - at >= 2 && at[0] == '(' && at[1] == 'x') {
      at += 2;
      if (!read(nodes) || at == end || *at++ != ')') return 0;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (at == end || *at++ != ',') return 0;
  }
}

LaunchEnvironment place_by(const Reader& variables, const Names& names) {
  const std::int64_t rank = variables.number(names.rank, names.example);
  const std::int64_t size = variables.number(names.size, names.example);
  check_place(names.rank, rank, names.size, size);
  // If the variables say nothing about hosts, assume one host.
  std::int64_t local_rank = rank, local_size = size;
  if (&names == &kSlurm) {
    const std::int64_t node =
        variables.has("SLURM_NODEID") ? variables.number("SLURM_NODEID", names.example) : 0;
    local_rank = variables.number(names.local_rank, names.example);
    local_size = tasks_of_node(variables.need(names.local_size, names.example), node);
  } else if (variables.has(names.local_rank) || variables.has(names.local_size)) {
    local_rank = variables.number(names.local_rank, names.example);
    local_size = variables.number(names.local_size, names.example);
  }
  check_place(names.local_rank, local_rank, names.local_size, local_size);
  WEFT_CHECK(local_size <= size, InvalidArgument, kOp, "environment variables ", names.local_size,
             "=", local_size, " and ", names.size, "=", size,
             " do not fit: more ranks on one host than on all");
  return {.rank = static_cast<int>(rank),
          .size = static_cast<int>(size),
          .local_rank = static_cast<int>(local_rank),
          .local_size = static_cast<int>(local_size),
          .launcher = names.launcher};
}

bool on_one_host(const LaunchEnvironment& place) { return place.local_size == place.size; }

// A file that belongs to this user, for the processes of one job.
std::string job_file(const Reader& variables, const std::string& job) {
  const auto runtime = variables.find("XDG_RUNTIME_DIR");
  const std::string folder =
      runtime && runtime->starts_with('/') && ::access(runtime->c_str(), W_OK | X_OK) == 0
          ? *runtime
          : "/tmp";
  std::string name = job.substr(0, kMostJobName);
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '.'; }, '_');
  return "file://" + folder + "/weft-" + std::to_string(::geteuid()) + "-" + name;
}

// A name that the processes started by one parent process share.
std::string siblings() {
  const std::int64_t parent = ::getppid();
  return detail::concat("parent-", parent, "-", process_start(parent).value_or(0));
}

// At rank 0's address, `above` ports above MASTER_PORT.
void meet_at_master(const Reader& variables, LaunchEnvironment& place, const std::string& example,
                    int above = 0) {
  const std::string host = variables.need("MASTER_ADDR", example);
  const std::int64_t port = variables.number("MASTER_PORT", example) + above;
  WEFT_CHECK(port >= 1 && port <= 65535, InvalidArgument, kOp,
             "environment variable MASTER_PORT is ", port - above, ", which leads to port ", port,
             "; ports are 1 to 65535");
  place.meeting = tcp_url(host, static_cast<int>(port));
  place.hosts_store = true;
}

void meet_by_torchrun(const Reader& variables, LaunchEnvironment& place) {
  if (variables.find("TORCHELASTIC_USE_AGENT_STORE") != "True") {
    meet_at_master(variables, place, kTorchrun.example);
  } else if (on_one_host(place)) {
    place.meeting = job_file(
        variables, detail::concat("torchrun-", variables.need("MASTER_PORT", kTorchrun.example),
                                  "-", variables.need("TORCHELASTIC_RUN_ID", kTorchrun.example),
                                  "-", variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0")));
  } else {
    meet_at_master(variables, place, kTorchrun.example, 1);  // torchrun itself is at MASTER_PORT
  }
}

// For launchers that set no address: the ranks meet in a file.
void meet_as_job(const Reader& variables, LaunchEnvironment& place, const std::string& job) {
  if (on_one_host(place) && !variables.has("MASTER_ADDR") && !variables.has("MASTER_PORT")) {
    place.meeting = job_file(variables, job);
  } else {
    meet_at_master(
        variables, place,
        "for ranks on several hosts mpirun -x MASTER_ADDR=node0 -x MASTER_PORT=29500 ..., "
        "or both in the environment of srun, mpiexec or horovodrun");
  }
}

std::string open_mpi_job(const Reader& variables) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"}) {
    if (const auto value = variables.find(name)) return "mpi-" + *value;
  }
  return siblings();
}

std::string slurm_job(const Reader& variables) {
  std::string job = "slurm";
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    job += "-" + variables.find(name).value_or("0");
  }
  return job;
}

// horovodrun starts each rank through a separate process.
std::string horovod_job(const Reader& variables) {
  const auto port = variables.find("HOROVOD_GLOO_RENDEZVOUS_PORT");
  return port ? "horovod-" + *port : siblings();
}

// A plain batch script, or salloc's shell, also has most of srun's variables.
bool is_srun(const Reader& variables) {
  return variables.has("SLURM_STEP_ID") && variables.has("SLURM_NTASKS") &&
         variables.number("SLURM_STEP_ID", kSlurm.example) < kFirstSpecialStep &&
         variables.number("SLURM_NTASKS", kSlurm.example) > 1;
}

// The first launcher whose variables are set. A launcher may start another one, and both set
// variables; then the one that started this process itself.
const Names* launcher_of(const Reader& variables) {
  const auto any = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return variables.has(name); });
  };
  if (any({"WEFT_STORE"})) return &kWeftrun;
  if (any({"TORCHELASTIC_RUN_ID"})) return &kTorchrun;
  if (any({kPlain.rank, kPlain.size})) return &kPlain;
  if (any({kOpenMpi.rank, kOpenMpi.size})) return &kOpenMpi;
  const bool srun = is_srun(variables);
  // srun --mpi=pmi2 sets PMI's variables, but not the local ones.
  if (any({kMpich.rank, kMpich.size}) && (!srun || any({kMpich.local_rank}))) return &kMpich;
  if (srun) return &kSlurm;
  if (any({kHorovod.rank, kHorovod.size})) return &kHorovod;
  if (any({"MASTER_ADDR", "MASTER_PORT"})) return &kPlain;
  return nullptr;
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

LaunchEnvironment launch_environment() { return launch_environment(environment_variable); }

LaunchEnvironment launch_environment(const Variables& given) {
  const Reader variables(given);
  const Names* names = launcher_of(variables);
  if (!names) return {};
  LaunchEnvironment place = place_by(variables, *names);
  if (place.size == 1) return place;
  if (names == &kWeftrun) {
    place.meeting = "tcp://" + variables.need("WEFT_STORE", kWeftrun.example);
  } else if (names == &kTorchrun) {
    meet_by_torchrun(variables, place);
  } else if (names == &kPlain) {
    meet_at_master(variables, place, kPlain.example);
  } else if (names == &kOpenMpi) {
    meet_as_job(variables, place, open_mpi_job(variables));
  } else if (names == &kSlurm) {
    meet_as_job(variables, place, slurm_job(variables));
  } else if (names == &kHorovod) {
    meet_as_job(variables, place, horovod_job(variables));
  } else {
    meet_as_job(variables, place, siblings());
  }
  return place;
}

}  // namespace weft::comm
