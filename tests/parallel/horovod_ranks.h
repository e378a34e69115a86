// Ranks that are threads, each with its Horovod.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "weft/comm/group/process_group.h"
#include "weft/parallel/horovod.h"
#include "weft/tests/comm/ranks.h"

namespace weft::testing {

inline void run(int n, const std::function<void(const parallel::Horovod&)>& f,
                const parallel::HorovodOptions& options = {}) {
  comm::run_ranks(n, [&](comm::ProcessGroup& group) { f(parallel::Horovod(group, options)); });
}

/// A test whose body runs on n ranks, with each one's `hvd`.
#define HOROVOD_TEST(suite, name, n)                                                      \
  void suite##_##name##_Body(const ::weft::parallel::Horovod& hvd);                       \
  RANKS_TEST(suite, name, n) { suite##_##name##_Body(::weft::parallel::Horovod(group)); } \
  void suite##_##name##_Body([[maybe_unused]] const ::weft::parallel::Horovod& hvd)

}  // namespace weft::testing
