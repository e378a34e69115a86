// Random operations on random groups, each compared with a plain loop. The numbers are small
// integers, so sums are exact in any order. Two environment variables change the test:
//   WEFT_CASES  operations per backend and number of ranks (100)      WEFT_SEED  the seed (1)
#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tests/comm/ranks.h"
#include "weft/tests/core/draw.h"

namespace weft::comm {
namespace {

using testing::combine;
using testing::Doubles;
using weft::testing::Draw;
using weft::testing::from_environment;

constexpr std::size_t kGroups = 3;  // all ranks, and two random subgroups

enum class Kind {
  broadcast,
  all_reduce,
  reduce,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  message,  // from the root to the next rank
  barrier,
};
constexpr const char* kKinds[] = {"broadcast",      "all_reduce", "reduce",  "all_gather",
                                  "reduce_scatter", "gather",     "scatter", "all_to_all",
                                  "message",        "barrier"};

/// The same on all ranks.
struct Case {
  Kind kind;
  DType dtype;
  ReduceOp op;
  std::int64_t count;  // per rank, or per part
  std::int64_t root;   // modulo the size of the group
  std::int64_t salt;   // changes the numbers
  std::size_t group;
  bool in_place;   // in memory of the backend
  bool wait_next;  // waits for this and all earlier ones
};

Case draw_case(Draw& draw) {
  Case c;
  c.kind = static_cast<Kind>(draw.between(0, std::int64_t(std::size(kKinds)) - 1));
  c.dtype = draw.of(
      {DType::f32, DType::f64, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean});
  do {
    c.op = draw.of({ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max});
  } while (!testing::makes_sense(c.dtype, c.op));
  c.count = draw.one_in(300)  ? draw.between(1'200'000, 1'500'000)
            : draw.one_in(20) ? draw.between(40'000, 200'000)
            : draw.one_in(8)  ? 0
            : draw.one_in(8)  ? 1
            : draw.one_in(2)  ? draw.between(2, 40)
                              : 2 * draw.between(20, 3000) + 1;
  c.root = draw.between(0, 59);
  c.salt = draw.between(0, 10);
  c.group = static_cast<std::size_t>(draw.between(0, kGroups - 1));
  c.in_place = draw.one_in(2);
  c.wait_next = draw.one_in(3);
  return c;
}

/// Numbers [first, first + count) of a rank: 0 to 10, smaller if they are multiplied.
Doubles numbers_of(const Case& c, int rank, std::int64_t count, std::int64_t first = 0) {
  Doubles values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t value = ((i + c.salt) * 7 % 11 * (rank + 2) + i / 11) % 11;
    values.push_back(static_cast<double>(c.dtype == DType::boolean   ? value > 5
                                         : c.op == ReduceOp::product ? value % 3
                                                                     : value));
  }
  return values;
}

Doubles reduced(const Case& c, int ranks, std::int64_t first) {
  Doubles result = numbers_of(c, 0, c.count, first);
  for (int r = 1; r < ranks; ++r) {
    const Doubles other = numbers_of(c, r, c.count, first);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = combine(result[i], other[i], c.dtype, c.op);
    }
  }
  if (c.op != ReduceOp::avg) return result;
  for (double& value : result) value /= ranks;
  return testing::Numbers(result, c.dtype).doubles();  // rounded
}

/// c.count numbers of each rank, from `first` on.
Doubles gathered(const Case& c, int ranks, std::int64_t first) {
  Doubles all;
  for (int r = 0; r < ranks; ++r) {
    const Doubles part = numbers_of(c, r, c.count, first);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// A running operation, and its expected result on this rank; none if this rank has no result.
struct Pending {
  std::string name;
  Work work;
  Tensor result = {};
  std::optional<Doubles> expected = {};
};

/// Nothing if this rank takes no part in it.
std::optional<Pending> start(const Case& c, ProcessGroup& group, const std::string& name) {
  const int rank = group.rank(), size = group.size();
  const int root = static_cast<int>(c.root % size);
  const bool is_root = rank == root;
  const auto own = [&](const Shape& shape) {
    return raw::to(from_vector(numbers_of(c, rank, numel(shape)), shape), c.dtype);
  };
  const auto room = [&](const Shape& shape) {
    return raw::to(from_vector(Doubles(static_cast<std::size_t>(numel(shape)), 1.0), shape),
                   c.dtype);
  };
  const Shape one = {c.count}, all = {size, c.count};
  switch (c.kind) {
    case Kind::broadcast: {
      const Tensor x = own(one);
      return Pending{name, group.broadcast(x, root), x, numbers_of(c, root, c.count)};
    }
    case Kind::all_reduce: {
      Tensor x = own(one);
      if (c.in_place) x = raw::copy_(group.empty(one, c.dtype), x);
      return Pending{name, group.all_reduce(x, c.op), x, reduced(c, size, 0)};
    }
    case Kind::reduce: {
      const Tensor x = own(one);
      Pending started{name, group.reduce(x, root, c.op), x};
      if (is_root) started.expected = reduced(c, size, 0);
      return started;
    }
    case Kind::all_gather: {
      const Tensor y = room(all);
      return Pending{name, group.all_gather(y, own(one)), y, gathered(c, size, 0)};
    }
    case Kind::reduce_scatter: {
      const Tensor y = room(one);
      return Pending{name, group.reduce_scatter(y, own(all), c.op), y,
                     reduced(c, size, rank * c.count)};
    }
    case Kind::gather: {
      if (!is_root) return Pending{name, group.gather(Tensor(), own(one), root)};
      const Tensor y = room(all);
      return Pending{name, group.gather(y, own(one), root), y, gathered(c, size, 0)};
    }
    case Kind::scatter: {
      const Tensor y = room(one);
      return Pending{name, group.scatter(y, is_root ? own(all) : Tensor(), root), y,
                     numbers_of(c, root, c.count, rank * c.count)};
    }
    case Kind::all_to_all: {
      const Tensor y = room(all);
      return Pending{name, group.all_to_all(y, own(all)), y, gathered(c, size, rank * c.count)};
    }
    case Kind::message: {
      const int to = (root + 1) % size;
      if (is_root && to != root) return Pending{name, group.send(own(one), to)};
      if (rank != to || to == root) break;
      const Tensor y = room(one);
      return Pending{name, group.recv(y, root), y, numbers_of(c, root, c.count)};
    }
    case Kind::barrier: return Pending{name, group.barrier()};
  }
  return {};
}

void finish(std::vector<Pending>& pending) {
  for (const Pending& p : pending) {
    p.work.wait();
    if (p.expected) {
      ASSERT_EQ(p.result.to_vector<double>(), *p.expected) << p.name;
    }
  }
  pending.clear();
}

std::vector<std::shared_ptr<ProcessGroup>> groups_of(ProcessGroup& all, Draw& draw) {
  std::vector<std::shared_ptr<ProcessGroup>> groups = {{std::shared_ptr<void>(), &all}};
  while (groups.size() < kGroups) {
    std::vector<int> members;
    for (int r = 0; r < all.size(); ++r) {
      if (draw.one_in(2)) members.push_back(r);
    }
    if (!members.empty()) groups.push_back(all.subgroup(members));
  }
  return groups;
}

// Parameters: backend and number of ranks.
class RandomCollectives : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    const std::string missing = testing::missing_backend(std::get<0>(GetParam()));
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(RandomCollectives, ArePlainLoops) {
  const auto& [backend, n] = GetParam();
  const std::int64_t seed = from_environment("WEFT_SEED", 1),
                     cases = from_environment("WEFT_CASES", 100);
  testing::in_groups(backend, n, [&, n = n](ProcessGroup& all) {
    Draw draw(static_cast<std::uint64_t>(seed * 8 + n));
    const auto groups = groups_of(all, draw);
    std::vector<Pending> pending;
    std::string name = "subgroup()";
    try {
      for (std::int64_t i = 0; i < cases; ++i) {
        const Case c = draw_case(draw);
        if (const auto& group = groups[c.group]) {
          name = detail::concat("WEFT_SEED=", seed, ", case ", i, " of ", n,
                                " ranks: ", kKinds[static_cast<int>(c.kind)], " of ", c.count, ' ',
                                c.dtype, ", ", to_string(c.op), ", root ", c.root % group->size(),
                                ", rank ", group->rank(), " of ", group->size());
          if (auto started = start(c, *group, name)) pending.push_back(std::move(*started));
        }
        if (c.wait_next) finish(pending);
        if (::testing::Test::HasFatalFailure()) return;
      }
      finish(pending);
    } catch (const Error& error) {
      ADD_FAILURE() << name << " or one before it: " << error.what();
      throw;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, RandomCollectives,
                         ::testing::Combine(::testing::Values("threads", "shm", "gloo", "ring"),
                                            ::testing::Range(1, 6)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace weft::comm
