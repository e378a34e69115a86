// The cores and threads of this process, and which of the processes made by fork() it is.
#pragma once

#include <string>

#include "weft/core/base/compiler.h"

namespace weft {

/// Number of cores on which this process may run: those of the first thread's affinity before
/// OpenMP bound that thread to one core (OMP_PROC_BIND, GOMP_CPU_AFFINITY), but at most its
/// cgroups' CPU quotas, rounded up. Determined once.
int core_count();

/// 0 at first; one more in each child of fork(), where the parent's other threads do not exist.
int fork_count();

/// Lets the calling thread run on all cores of the process if OpenMP binds threads to cores
/// (OMP_PROC_BIND, GOMP_CPU_AFFINITY): it binds the first thread before main(), and every thread
/// started from there inherits that one core. Does nothing if OpenMP does not bind, nor in the
/// first thread, whose teams the user has bound.
void leave_thread_unbound();

namespace detail {

/// A cgroup's CPU quota in cores, rounded up, or 0 without a quota. `membership` is the text of
/// /proc/self/cgroup; `root` is where the hierarchies are mounted (v2's cpu.max, v1's
/// cpu.cfs_quota_us). The quotas of the group's ancestors count, too.
int quota_cores(const std::string& membership, const std::string& root);
/// How many more threads the groups allow (pids.max less pids.current), or -1 without a limit.
int threads_left(const std::string& membership, const std::string& root);

/// Whether the calling thread is the one that called fork() and had an OpenMP team then, whose
/// threads are gone: OpenMP would wait for them for ever.
bool team_lost_in_fork();
/// Grants the calling thread up to `wanted` threads for its OpenMP teams, itself included. Grants
/// fewer from the moment when the process has as many as it should (docs/performance.md: Threads)
/// or the system refuses to start more: OpenMP would then end the process.
int grant_team(int wanted);

}  // namespace detail
}  // namespace weft
