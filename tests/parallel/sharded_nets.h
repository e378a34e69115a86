// What the tests of fully_shard have in common.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "weft/optim/optimizer.h"
#include "weft/parallel/fully_shard.h"
#include "weft/tests/parallel/nets.h"

namespace weft::parallel {

class FullyShardTest : public ::testing::Test {
 protected:
  const Scoped<bool> deterministic_{&ThreadState::deterministic, true};
  const Scoped<int> threads_{&ThreadState::num_threads, 1};
};

inline nn::Sequential net() {
  return {nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 5), nn::Tanh(), nn::Linear(5, 3)};
}

inline nn::Sequential converted(nn::Sequential model, DType dtype) {
  model.to(dtype);
  return model;
}

/// Cuts each Linear but the last, then the rest.
inline FullySharded cut(nn::Sequential& model, comm::ProcessGroup& group,
                        const FullyShardOptions& options = {}) {
  model.apply([&](nn::ModuleBase& m) {
    if (m.name() == "0" || m.name() == "2") fully_shard(m, group, options);
  });
  return fully_shard(model, group, options);
}

inline void expect_same(const nn::NamedTensors& got, const nn::NamedTensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first);
    EXPECT_TRUE(weft::testing::same_bits(got[i].second, expected[i].second)) << got[i].first;
  }
}

inline void expect_near(const nn::NamedTensors& got, const nn::NamedTensors& expected,
                        double most) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(weft::testing::relative_difference(got[i].second, expected[i].second), most)
        << got[i].first;
  }
}

template <class Model>
void step(Model& model, optim::Optimizer& optimizer, const weft::testing::LabelledBatch& data) {
  optimizer.zero_grad();
  weft::testing::loss_of(model, data).backward();
  optimizer.step();
}

/// Cuts the modules of which wanted(name) is true, then the rest.
template <class F>
FullySharded cut_children(nn::ModuleBase& model, comm::ProcessGroup& group, const F& wanted) {
  model.apply([&](nn::ModuleBase& m) {
    if (wanted(m.name())) fully_shard(m, group);
  });
  return fully_shard(model, group);
}

}  // namespace weft::parallel
