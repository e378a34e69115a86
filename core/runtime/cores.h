// What the process may run on: cores, threads, and which of the processes that fork() made it is.
#pragma once

#include <string>

#include "weft/core/base/compiler.h"

namespace weft {

/// Cores this process may run on: those of its first thread's affinity before OpenMP bound that
/// thread to one core (OMP_PROC_BIND, GOMP_CPU_AFFINITY), but at most its cgroups' CPU quotas,
/// rounded up. Determined once.
int core_count();

/// 0, and one more in each child of fork(), in which the parent's other threads do not exist.
int fork_count();

/// Lets the calling thread run on all cores of the process where OpenMP binds threads to cores
/// (OMP_PROC_BIND, GOMP_CPU_AFFINITY): it binds the first thread before main(), and every thread
/// made from there inherits that one core. Does nothing elsewhere, and nothing in the first thread,
/// whose teams the user has bound.
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
/// Up to `wanted` threads for the calling thread's OpenMP teams, itself included. Fewer, from then
/// on, where the process has as many as it should (docs/performance.md: Threads) or where the
/// system refuses to start them, for then OpenMP would end the process.
int grant_team(int wanted);

}  // namespace detail
}  // namespace weft
