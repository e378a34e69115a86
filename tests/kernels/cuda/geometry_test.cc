// The arithmetic of the CUDA kernels: which thread does what. Everything here runs without a GPU,
// also for sizes that fit in no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "weft/kernels/cuda/capability.h"
#include "weft/kernels/cuda/channel_parts.h"
#include "weft/kernels/cuda/conv_problem.h"
#include "weft/kernels/cuda/index_math.h"
#include "weft/kernels/cuda/launch_size.h"
#include "weft/kernels/cuda/matmul_problem.h"
#include "weft/kernels/cuda/philox.h"
#include "weft/kernels/cuda/reduce_plan.h"
#include "weft/kernels/cuda/slot_table.h"
#include "weft/tests/core/expect_error.h"

namespace weft::cuda {
namespace {

constexpr std::int64_t kTwo31 = std::int64_t{1} << 31;

// NVIDIA's rules: machine code runs on later GPUs of the same generation, PTX on all later GPUs.
TEST(Capability, HasCodeFor) {
  struct Case {
    const char* built;
    Capability gpu;
    bool runs;
  };
  for (const Case& c : {
           Case{"80", {8, 0}, true},
           Case{"80", {8, 6}, true},
           Case{"80", {8, 9}, true},
           Case{"80", {7, 5}, false},
           Case{"80", {9, 0}, false},
           Case{"86", {8, 0}, false},
           Case{"80+ptx", {9, 0}, true},
           Case{"80+ptx", {12, 1}, true},
           Case{"80+ptx", {7, 5}, false},
           Case{"86+ptx", {8, 0}, false},
           Case{"75+ptx", {7, 5}, true},
           Case{"75+ptx", {7, 0}, false},
           Case{"75,90", {8, 0}, false},
           Case{"75+ptx,90", {8, 0}, true},
           Case{"75,80,86,89,90,100+ptx", {7, 5}, true},
           Case{"75,80,86,89,90,100+ptx", {8, 7}, true},
           Case{"75,80,86,89,90,100+ptx", {10, 3}, true},
           Case{"75,80,86,89,90,100+ptx", {12, 0}, true},
           Case{"75,80,86,89,90,100+ptx", {6, 1}, false},
           Case{"90,100", {12, 0}, false},
           Case{"", {9, 0}, false},
       }) {
    EXPECT_EQ(has_code_for(c.gpu, parse_built_for(c.built)), c.runs)
        << "code of " << c.built << " on " << to_string(c.gpu);
  }
}

TEST(Capability, ListsAreParsed) {
  const BuiltFor built = parse_built_for("75,80+ptx,120");
  EXPECT_EQ(built.code, (std::vector<Capability>{{7, 5}, {8, 0}, {12, 0}}));
  EXPECT_EQ(built.ptx, (std::vector<Capability>{{8, 0}}));
  EXPECT_EQ(to_string(built), "7.5, 8.0, 12.0 and all from 8.0 on");
  EXPECT_EQ(to_string(parse_built_for("90")), "9.0");
  for (const char* text : {"x", "80,,90", "8", "80+pt", "90a", ","}) {
    EXPECT_WEFT_ERROR(parse_built_for(text), Internal, "is no list of architectures");
  }
}

TEST(Capability, OldGpusHaveNoLibraries) {
  EXPECT_EQ(least_capability(13000, 91400), (Capability{7, 5}));
  EXPECT_EQ(least_capability(12080, 91100), (Capability{7, 5}));
  EXPECT_EQ(least_capability(12080, 91002), (Capability{5, 0}));
}

TEST(Capability, SaysWhyAGpuIsNotUsed) {
  const auto why = [](const char* built, const std::vector<VisibleGpu>& gpus) {
    return why_not_used(gpus, parse_built_for(built), {7, 5});
  };
  EXPECT_EQ(why("80+ptx", {{0, {8, 0}}, {1, {9, 0}}}), "");
  EXPECT_EQ(why("80+ptx", {{0, {7, 5}}}),
            "GPU 0 of compute capability 7.5 is not used: this weft has code for 8.0 and all from "
            "8.0 on; build it with --arch 75, as in ./weft run EXAMPLE --arch 75");
  // The suggested list is for all GPUs of the machine.
  EXPECT_EQ(why("90", {{0, {7, 5}}, {1, {9, 0}}, {2, {8, 6}}}),
            "GPU 0 of compute capability 7.5 and GPU 2 of compute capability 8.6 are not used: "
            "this weft has code for 9.0; build it with --arch 75,86,90, as in ./weft run EXAMPLE "
            "--arch 75,86,90");
  // No list would help.
  EXPECT_EQ(why("75+ptx", {{0, {6, 1}}, {1, {7, 5}}}),
            "GPU 0 of compute capability 6.1 is not used: CUDA and cuDNN work from 7.5 on");
  EXPECT_EQ(why("90", {{0, {6, 1}}, {1, {8, 0}}}),
            "GPU 1 of compute capability 8.0 is not used: this weft has code for 9.0; build it "
            "with --arch 80, as in ./weft run EXAMPLE --arch 80; GPU 0 of compute capability 6.1 "
            "is not used: CUDA and cuDNN work from 7.5 on");
}

TEST(LaunchSize, CoversSmallAndCapsLarge) {
  EXPECT_EQ(grid_blocks(0), 1u);
  EXPECT_EQ(grid_blocks(1), 1u);
  EXPECT_EQ(grid_blocks(kBlock), 1u);
  EXPECT_EQ(grid_blocks(kBlock + 1), 2u);
  EXPECT_EQ(grid_blocks(10, 4), 3u);
  EXPECT_EQ(grid_blocks(kTwo31 * 1000), kMaxBlocks);
  EXPECT_EQ(grid_blocks(std::numeric_limits<std::int64_t>::max()), kMaxBlocks);
}

// The 32-bit loop variables of the element-wise kernels go one stride beyond the last element.
TEST(LaunchSize, GridStrideFitsThirtyTwoBits) {
  EXPECT_LT(kMaxSmall + kMaxBlocks * kBlock, std::int64_t{1} << 32);
}

TEST(FastDivider, IsExact) {
  std::vector<std::uint32_t> divisors = {1, 2, 3, 5, 7, 10, 641, 6700417, 1u << 30, (1u << 31) - 1};
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) divisors.push_back(random() % kMaxSmall + 1);
  for (const std::uint32_t d : divisors) {
    const FastDivider divider(d);
    std::vector<std::uint32_t> numbers = {0, 1, d - 1, d, (1u << 31) - 1, (1u << 31) - 2};
    const std::uint32_t most = (1u << 31) - 1;
    for (std::uint64_t q : {std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{most / d}}) {
      if (q * d <= most) {
        numbers.push_back(static_cast<std::uint32_t>(q * d));
        numbers.push_back(static_cast<std::uint32_t>(q * d - 1));
      }
    }
    for (int i = 0; i < 200; ++i) numbers.push_back(random() & most);
    for (const std::uint32_t n : numbers) ASSERT_EQ(divider.div(n), n / d) << n << " / " << d;
  }
}

/// The offsets of every element in row order, computed in the simplest way.
template <int N>
std::vector<std::array<std::int64_t, N>> all_offsets(const Shape& shape,
                                                     const std::array<Strides, N>& strides) {
  std::vector<std::array<std::int64_t, N>> out;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    std::int64_t rest = i;
    std::array<std::int64_t, N> offset{};
    for (int d = shape.size() - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offset[k] += rest % shape[d] * strides[k][d];
      rest /= shape[d];
    }
    out.push_back(offset);
  }
  return out;
}

template <int N>
IndexSpace<N> space_of(const Shape& shape, const std::array<Strides, N>& strides) {
  std::array<const Strides*, N> pointers;
  for (int k = 0; k < N; ++k) pointers[k] = &strides[k];
  return index_space<N>(shape, pointers);
}

TEST(IndexSpace, MergesWhatIsContiguousTogether) {
  const Shape shape{4, 3, 5, 2};
  const Strides nchw = contiguous_strides(shape), nhwc = channels_last_strides(shape);
  EXPECT_EQ(space_of<2>(shape, {nchw, nchw}).ndim, 1);
  EXPECT_TRUE(space_of<2>(shape, {nchw, nchw}).dense(1));
  const auto both_nhwc = space_of<2>(shape, {nhwc, nhwc});
  EXPECT_EQ(both_nhwc.ndim, 1);
  EXPECT_TRUE(both_nhwc.dense(0) && both_nhwc.dense(1));
  EXPECT_EQ(space_of<2>(shape, {nhwc, nchw}).ndim, 3);  // H and W can be merged in both
  EXPECT_EQ(space_of<2>(shape, {nchw, {0, 1, 0, 0}}).ndim, 3);
}

TEST(IndexSpace, ScalarsAndLengthsOfOneVanish) {
  EXPECT_EQ(space_of<1>(Shape{}, {Strides{}}).ndim, 0);
  EXPECT_TRUE(space_of<1>(Shape{}, {Strides{}}).dense(0));
  EXPECT_EQ(space_of<1>(Shape{}, {Strides{}}).numel(), 1);
  const auto space = space_of<2>(Shape{1, 6, 1}, {Strides{99, 1, 77}, Strides{5, 2, 3}});
  EXPECT_EQ(space.ndim, 1);
  EXPECT_TRUE(space.dense(0));
  EXPECT_FALSE(space.dense(1));
}

TEST(Offsets, VisitTheSameElementsAsTheShape) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const int ndim = static_cast<int>(random() % 6);
    Shape shape;
    for (int d = 0; d < ndim; ++d) shape.push_back(1 + random() % 4);
    // Any order of dimensions, with gaps, and with broadcasting in all except the first view.
    std::array<Strides, 3> strides;
    for (int k = 0; k < 3; ++k) {
      std::vector<int> order(ndim);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      strides[k] = Strides::filled(ndim, 0);
      std::int64_t step = 1 + random() % 2;
      for (const int d : order) {
        strides[k][d] = step;
        step *= shape[d] + (random() % 3 == 0);
        if (k > 0 && random() % 4 == 0) strides[k][d] = 0;
      }
    }
    const auto space = space_of<3>(shape, strides);
    const Offsets<3> offsets(space);
    std::multiset<std::array<std::int64_t, 3>> got, got_any;
    Offsets<3> large = offsets;  // the code for spaces of more than 2^31 elements
    large.small = false;
    for (std::int64_t i = 0; i < space.numel(); ++i) {
      const auto o = offsets.at(static_cast<std::uint32_t>(i));
      got.insert({o.at[0], o.at[1], o.at[2]});
      const auto l = large.at_any(i);
      got_any.insert({l.at[0], l.at[1], l.at[2]});
    }
    const auto expected = all_offsets<3>(shape, strides);
    const std::multiset<std::array<std::int64_t, 3>> wanted(expected.begin(), expected.end());
    ASSERT_EQ(got, wanted) << to_string(shape);
    ASSERT_EQ(got_any, wanted) << to_string(shape);
  }
}

TEST(Offsets, BeyondTwoToThe31) {
  const std::int64_t rows = 70000, columns = 50000;  // 3.5e9
  const Shape shape{rows, columns};
  const auto space = space_of<1>(shape, {Strides{columns + 3, 1}});
  const Offsets<1> offsets(space);
  EXPECT_FALSE(offsets.small);
  for (const std::int64_t i : {std::int64_t{0}, columns, kTwo31, rows * columns - 1}) {
    EXPECT_EQ(offsets.at_any(i).at[0], i / columns * (columns + 3) + i % columns);
  }
}

TEST(ForEachPart, CoversEverythingOnce) {
  const Shape shape{5, 7, 3};
  const std::array<Strides, 2> strides = {Strides{1, 5, 35}, Strides{21, 3, 0}};
  const auto space = space_of<2>(shape, strides);
  std::multiset<std::array<std::int64_t, 2>> got;
  for_each_part(
      space,
      [&](const IndexSpace<2>& part, const IndexSpace<2>::Row& base) {
        EXPECT_LE(part.numel(), 8);
        const Offsets<2> offsets(part);
        for (std::int64_t i = 0; i < part.numel(); ++i) {
          const auto o = offsets.at(static_cast<std::uint32_t>(i));
          got.insert({base[0] + o.at[0], base[1] + o.at[1]});
        }
      },
      8);
  const auto expected = all_offsets<2>(shape, strides);
  EXPECT_EQ(got, (std::multiset<std::array<std::int64_t, 2>>(expected.begin(), expected.end())));
}

TEST(ForEachPart, CutsGiantSpaces) {
  const auto space = space_of<1>(Shape{3 * kTwo31}, {Strides{2}});
  std::int64_t next = 0;
  int parts = 0;
  for_each_part(space, [&](const IndexSpace<1>& part, const IndexSpace<1>::Row& base) {
    EXPECT_LE(part.numel(), kMaxSmall);
    EXPECT_EQ(base[0], 2 * next);
    next += part.numel();
    ++parts;
  });
  EXPECT_EQ(next, 3 * kTwo31);
  EXPECT_EQ(parts, 4);
}

// 16-byte accesses require that every part begins as aligned as the view.
TEST(ForEachPart, KeepsGiantDenseViewsAligned) {
  const auto space = space_of<1>(Shape{3 * kTwo31 + 77}, {Strides{1}});
  for_each_part(space, [&](const IndexSpace<1>&, const IndexSpace<1>::Row& base) {
    EXPECT_EQ(base[0] % 16, 0);
  });
}

TEST(Offsets, OfNothing) {
  const auto space = space_of<1>(Shape{0, 2 * kTwo31}, {Strides{2 * kTwo31, 2}});
  EXPECT_EQ(space.numel(), 0);
  EXPECT_TRUE(Offsets<1>(space).small);
}

View view(Shape shape, Strides strides, DType dtype = DType::f32) {
  return View{nullptr, dtype, shape, strides};
}

/// How many times each element of x is read for each output, following the plan like the kernel.
std::map<std::int64_t, std::vector<std::int64_t>> walk(const ReducePlan& plan) {
  std::map<std::int64_t, std::vector<std::int64_t>> read;
  const Offsets<2> kept(plan.kept);
  const Offsets<1> reduced(plan.reduced);
  for (std::int64_t o = 0; o < plan.outputs; ++o) {
    const auto base = kept.at_any(o);
    for (int split = 0; split < plan.splits; ++split) {
      const std::int64_t begin = split * plan.per_split();
      const std::int64_t end = std::min(begin + plan.per_split(), plan.count);
      for (int lane = 0; lane < plan.lanes; ++lane) {
        for (std::int64_t r = begin + lane; r < end; r += plan.lanes) {
          read[base.at[1]].push_back(base.at[0] + reduced.at_any(r).at[0]);
        }
      }
    }
  }
  return read;
}

TEST(ReducePlan, ReadsEachElementOnceForItsOutput) {
  struct Case {
    Shape x, y;
    bool channels_last = false;
  };
  for (const Case& c :
       {Case{{6, 5, 4}, {6, 5, 1}}, Case{{6, 5, 4}, {1, 5, 4}}, Case{{6, 5, 4}, {6, 1, 4}},
        Case{{6, 5, 4}, {1, 1, 1}}, Case{{6, 5, 4}, {6, 5, 4}}, Case{{3, 4, 5, 6}, {1, 4, 1, 1}},
        Case{{3, 4, 5, 6}, {1, 4, 1, 1}, true}, Case{{70000}, {1}}, Case{{20000, 3}, {1, 3}},
        Case{{3, 20000}, {3, 1}}, Case{{}, {}}}) {
    const Strides x_strides =
        c.channels_last ? channels_last_strides(c.x) : contiguous_strides(c.x);
    const ReducePlan plan = plan_reduce(view(c.x, x_strides), view(c.y, contiguous_strides(c.y)));
    EXPECT_EQ(plan.lanes * plan.groups, kBlock);
    EXPECT_EQ(plan.lanes & (plan.lanes - 1), 0) << "the tree needs a power of two";
    EXPECT_EQ(plan.outputs, numel(c.y));
    EXPECT_EQ(plan.outputs * plan.count, numel(c.x));
    auto read = walk(plan);
    EXPECT_EQ(static_cast<std::int64_t>(read.size()), plan.outputs);
    std::vector<std::int64_t> all;
    for (auto& [output, offsets] : read) {
      EXPECT_EQ(static_cast<std::int64_t>(offsets.size()), plan.count);
      all.insert(all.end(), offsets.begin(), offsets.end());
    }
    std::sort(all.begin(), all.end());
    for (std::int64_t i = 0; i < numel(c.x); ++i) ASSERT_EQ(all[i], i) << to_string(c.x);
  }
}

TEST(ReducePlan, NeighbouringThreadsReadNeighbouringAddresses) {
  EXPECT_TRUE(plan_reduce(view({64, 4096}, {4096, 1}), view({64, 1}, {1, 1})).lanes_inner);
  EXPECT_FALSE(plan_reduce(view({64, 4096}, {4096, 1}), view({1, 4096}, {4096, 1})).lanes_inner);
}

TEST(ReducePlan, LongReductionsAreSplit) {
  const View x = view({1 << 22}, {1}), y = view({1}, {1});
  const ReducePlan plan = plan_reduce(x, y);
  EXPECT_GT(plan.splits, 1);
  EXPECT_EQ(plan.workspace_bytes(), static_cast<std::size_t>(plan.splits) * 8);

  // There are counters enough.
  std::int64_t most = 0;
  for (std::int64_t outputs = 1; outputs < 1 << 20; outputs += outputs / 8 + 1) {
    for (const bool inner : {true, false}) {
      const ReducePlan wide =
          inner ? plan_reduce(view({outputs, 1 << 16}, {1 << 16, 1}), view({outputs, 1}, {1, 1}))
                : plan_reduce(view({1 << 16, outputs}, {outputs, 1}), view({1, outputs}, {1, 1}));
      const std::int64_t blocks = (outputs + wide.groups - 1) / wide.groups;
      if (wide.splits == 1) continue;
      const Teams teams(static_cast<unsigned>(wide.splits), wide.of_strip());
      most = std::max(most, blocks * teams.counters());
    }
  }
  EXPECT_LT(most, kBlockCounters);
  EXPECT_GT(most, kBlockCounters / 2);
}

TEST(ReducePlan, EmptyAndGiant) {
  const ReducePlan empty = plan_reduce(view({3, 0}, {0, 1}), view({3, 1}, {1, 1}));
  EXPECT_EQ(empty.count, 0);
  EXPECT_EQ(empty.outputs, 3);
  EXPECT_EQ(empty.splits, 1);
  EXPECT_EQ(empty.per_split(), 0);
  const ReducePlan giant = plan_reduce(view({3 * kTwo31}, {1}), view({1}, {1}));
  EXPECT_EQ(giant.count, 3 * kTwo31);
  EXPECT_FALSE(Offsets<1>(giant.reduced).small);
  EXPECT_GE(giant.per_split() * giant.splits, giant.count);
}

// The counters of all strips leave one for the grid, and a thread has few values to fold.
TEST(Teams, HaveFewMembersAndCountersEnough) {
  for (int outputs = 1; outputs <= kBlock; outputs *= 2) {
    for (std::int64_t strips = 1; strips < 3 * kBlockCounters; ++strips) {
      const std::int64_t most = most_sharers(strips, outputs);
      ASSERT_GE(most, 1);
      const Teams teams(static_cast<unsigned>(most), outputs);
      ASSERT_TRUE(most == 1 || strips * teams.counters() < kBlockCounters);
      EXPECT_EQ(teams.lanes * outputs, kBlock);
      EXPECT_EQ(teams.size, static_cast<unsigned>(kAtOnce * teams.lanes));
    }
    // As many blocks as a large GPU runs at a time.
    const Teams many(640, outputs);
    EXPECT_GE(many.count * many.size, 640u);
    EXPECT_LT((many.count - 1) * many.size, 640u);
    EXPECT_TRUE(outputs > 64 || many.count <= static_cast<unsigned>(kAtOnce * many.lanes));
  }
}

/// How many of the 16 threads from `first` on meet in one bank, if thread i uses at(i). A warp that
/// reads doubles reads those of 16 threads at once, and the memory has 16 pairs of banks.
template <class At>
int met_in_a_bank(int first, const At& at) {
  int met[16] = {};
  for (int i = first; i < first + 16; ++i) ++met[reinterpret_cast<std::uintptr_t>(at(i)) / 8 % 16];
  return *std::ranges::max_element(met);
}

template <int Own>
void expect_parts_in_own_banks() {
  static ChannelParts<Own> parts;
  for (int groups = 1; groups * Own <= kBlock; groups *= 2) {
    for (int thread = 0; thread < kBlock; ++thread) {
      for (int k = 0; k < Own; ++k) parts.of(thread, k) = thread * Own + k;
    }
    const int channels = groups * Own;
    std::set<double> summed;
    for (int thread = 0; thread < kBlock; ++thread) {
      for (int k = 0; k < Own; ++k) {
        const int part = static_cast<int>(parts.to_sum(thread, k, groups));
        ASSERT_EQ(part / Own % groups * Own + part % Own, thread % channels);
        ASSERT_EQ(part / channels, thread / channels * Own + k);
        summed.insert(part);
      }
    }
    EXPECT_EQ(summed.size(), std::size_t{kBlock} * Own);
    for (int first = 0; first < kBlock; first += 16) {
      for (int k = 0; k < Own; ++k) {
        EXPECT_EQ(met_in_a_bank(first, [&](int i) { return &parts.of(i, k); }), 1);
        EXPECT_EQ(met_in_a_bank(first, [&](int i) { return &parts.to_sum(i, k, groups); }), 1)
            << Own << " channels of a thread, " << groups << " groups";
      }
    }
  }
}

TEST(ChannelParts, EachIsSummedOnceAndThreadsUseDifferentBanks) {
  expect_parts_in_own_banks<1>();
  expect_parts_in_own_banks<2>();
  expect_parts_in_own_banks<4>();
  expect_parts_in_own_banks<8>();
}

TEST(SlotTable, EveryElementBelongsToOneChunk) {
  std::vector<OptimSlot> slots;
  std::int64_t total = 0;
  for (int i = 0; i < 160; ++i) {
    OptimSlot slot;
    slot.n = i % 7 == 0 ? 0 : (i * 37) % 9000 + (i % 5 == 0 ? kChunk : 0);
    slot.param = reinterpret_cast<void*>(std::intptr_t{i + 1});
    total += slot.n;
    slots.push_back(slot);
  }
  std::int64_t seen = 0;
  int tables = 0;
  std::set<void*> addresses;
  for_each_table(slots, [&](const SlotTable& table) {
    ++tables;
    ASSERT_GT(table.count, 0);
    ASSERT_LE(table.count, kMaxSlots);
    for (std::int64_t c = 0; c < table.chunks(); ++c) {
      const auto [slot, begin, end] = table.chunk(c);
      EXPECT_EQ(&slot, &table.slot[table.slot_of(c)]);
      EXPECT_EQ(begin, c > 0 && &table.chunk(c - 1).slot == &slot ? table.chunk(c - 1).end : 0);
      EXPECT_EQ(end, std::min(begin + kChunk, slot.n));
      EXPECT_LT(begin, end);
      seen += end - begin;
      addresses.insert(slot.param);
    }
  });
  EXPECT_EQ(seen, total);
  EXPECT_EQ(tables, 3);
  std::set<void*> wanted;
  for (const OptimSlot& slot : slots) {
    if (slot.n > 0) wanted.insert(slot.param);
  }
  EXPECT_EQ(addresses, wanted);
}

TEST(SlotTable, GiantAndNone) {
  OptimSlot giant;
  giant.n = 5 * kTwo31 + 1;
  for_each_table(std::span(&giant, 1), [&](const SlotTable& table) {
    EXPECT_EQ(table.chunks(), 5 * kTwo31 / kChunk + 1);
    EXPECT_EQ(table.slot_of(table.chunks() - 1), 0);
  });
  bool called = false;
  for_each_table({}, [&](const SlotTable&) { called = true; });
  giant.n = 0;
  for_each_table(std::span(&giant, 1), [&](const SlotTable&) { called = true; });
  EXPECT_FALSE(called);
}

// 16-byte packs of any dtype must not cross chunk borders.
TEST(SlotTable, ChunksKeepAlignment) { EXPECT_EQ(kChunk % 8, 0); }

// The known answers of Random123's kat_vectors for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  const PhiloxWords zero = philox(0, 0);
  EXPECT_EQ(zero.w[0], 0x6627e8d5u);
  EXPECT_EQ(zero.w[1], 0xe169c58du);
  EXPECT_EQ(zero.w[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.w[3], 0x9b00dbd8u);
}

TEST(Philox, UniformStaysBelowOne) {
  EXPECT_EQ(unit_f32(0), 0.0f);
  EXPECT_LT(unit_f32(0xffffffffu), 1.0f);
  EXPECT_EQ(unit_f64(0, 0), 0.0);
  EXPECT_LT(unit_f64(0xffffffffu, 0xffffffffu), 1.0);
}

/// y = a b, reading memory as the problem tells cuBLAS: y^T = op(b) op(a), column-major.
std::vector<double> library_product(const CublasProblem& p, const std::vector<double>& a,
                                    const std::vector<double>& b) {
  const auto element = [](const Matrix& m, const std::vector<double>& data, std::int64_t batch,
                          std::int64_t row, std::int64_t column) {
    if (m.transposed) std::swap(row, column);
    EXPECT_LT(row, m.rows);
    EXPECT_LT(column, m.columns);
    EXPECT_GE(m.ld, m.rows);
    return data.at(static_cast<std::size_t>(batch * m.batch_stride + column * m.ld + row));
  };
  std::vector<double> y(static_cast<std::size_t>(p.y.extent(p.batch)));
  for (std::int64_t t = 0; t < p.batch; ++t) {
    for (std::int64_t i = 0; i < p.n; ++i) {
      for (std::int64_t j = 0; j < p.m; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < p.k; ++k) {
          sum += element(p.b, b, t, i, k) * element(p.a, a, t, k, j);
        }
        y[static_cast<std::size_t>(t * p.y.batch_stride + j * p.y.ld + i)] = sum;
      }
    }
  }
  return y;
}

TEST(CublasProblem, DescribesEveryOrientation) {
  for (const std::int64_t batch : {1, 3}) {
    for (const std::int64_t m : {1, 4}) {
      for (const std::int64_t n : {1, 5}) {
        for (const std::int64_t k : {1, 6}) {
          for (int orientation = 0; orientation < 16; ++orientation) {
            const bool a_transposed = orientation & 1, b_transposed = orientation & 2;
            const std::int64_t gap = orientation & 4 ? 3 : 0;
            const bool b_shared = orientation & 8;  // batch stride 0
            const Strides a = a_transposed ? Strides{(m + gap) * k, 1, m + gap}
                                           : Strides{m * (k + gap), k + gap, 1};
            Strides b = b_transposed ? Strides{n * (k + gap), 1, k + gap}
                                     : Strides{k * (n + gap), n + gap, 1};
            if (b_shared) b[0] = 0;
            MatmulArgs args;
            args.a = view({batch, m, k}, a);
            args.b = view({batch, k, n}, b);
            args.y = view({batch, m, n}, {m * n, n, 1});
            const auto filled = [&](std::int64_t size, int step) {
              std::vector<double> v(static_cast<std::size_t>(size));
              for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i * step % 11);
              return v;
            };
            const auto data_a = filled(batch * (m + gap) * (k + gap), 3);
            const auto data_b = filled(batch * (n + gap) * (k + gap), 5);
            const CublasProblem problem(args);
            const auto y = library_product(problem, data_a, data_b);
            for (std::int64_t t = 0; t < batch; ++t) {
              for (std::int64_t i = 0; i < m; ++i) {
                for (std::int64_t j = 0; j < n; ++j) {
                  double sum = 0;
                  for (std::int64_t l = 0; l < k; ++l) {
                    sum += data_a[static_cast<std::size_t>(t * a[0] + i * a[1] + l * a[2])] *
                           data_b[static_cast<std::size_t>(t * b[0] + l * b[1] + j * b[2])];
                  }
                  ASSERT_EQ(y[static_cast<std::size_t>((t * m + i) * n + j)], sum)
                      << m << " " << n << " " << k << " orientation " << orientation;
                }
              }
            }
          }
        }
      }
    }
  }
}

// A slice or a transpose leaves an arbitrary stride in a dimension of length 1.
TEST(CublasProblem, StridesOfLengthOneMeanNothing) {
  MatmulArgs args;
  args.a = view({1, 1, 6}, {99, 2, 1});
  args.b = view({1, 6, 1}, {99, 1, 77});
  args.y = view({1, 1, 1}, {1, 1, 1});
  const CublasProblem problem(args);
  EXPECT_FALSE(problem.a.transposed);
  EXPECT_EQ(problem.a.ld, 6);
  EXPECT_GE(problem.b.ld, problem.b.rows);
}

// Batches between the same powers of two share choices; nothing else does.
TEST(CublasProblem, AFamilyHasBatchesOfAKind) {
  const auto family_of = [](std::int64_t rows, std::int64_t columns, bool accumulate = false) {
    MatmulArgs args;
    args.a = view({1, rows, 64}, {rows * 64, 64, 1});
    args.b = view({1, 64, columns}, {64 * columns, columns, 1});
    args.y = view({1, rows, columns}, {rows * columns, columns, 1});
    args.accumulate = accumulate;
    return CublasProblem::family(CublasProblem(args).key(0, 0, false));
  };
  EXPECT_EQ(family_of(33, 40), family_of(63, 40));
  EXPECT_NE(family_of(31, 40), family_of(33, 40));
  EXPECT_NE(family_of(33, 40), family_of(64, 40));
  EXPECT_NE(family_of(33, 40), family_of(33, 4));
  EXPECT_NE(family_of(33, 40), family_of(33, 40, true));
}

TEST(CublasProblem, KeyTellsProblemsApart) {
  MatmulArgs args;
  args.a = view({2, 3, 4}, {12, 4, 1});
  args.b = view({2, 4, 5}, {20, 5, 1});
  args.y = view({2, 3, 5}, {15, 5, 1});
  std::set<std::array<std::int64_t, 18>> keys;
  const auto add = [&](const MatmulArgs& a, int device = 0, bool fixed = false, bool tf32 = false) {
    return keys.insert(CublasProblem(a).key(device, fixed, tf32)).second;
  };
  EXPECT_TRUE(add(args));
  EXPECT_FALSE(add(args));
  EXPECT_TRUE(add(args, 1));
  EXPECT_TRUE(add(args, 0, true));
  EXPECT_TRUE(add(args, 0, false, true));
  const auto differs = [&](auto change) {
    MatmulArgs other = args;
    change(other);
    return add(other);
  };
  float bias = 0;
  const auto with_bias = [&](std::int64_t stride) {
    return [&bias, stride](MatmulArgs& a) {
      a.bias = view({5}, {stride});
      a.bias.data = &bias;
    };
  };
  EXPECT_TRUE(differs(with_bias(1)));
  EXPECT_TRUE(differs(with_bias(2)));
  MatmulArgs strided = args;
  with_bias(2)(strided);
  EXPECT_FALSE(CublasProblem(strided).dense_bias);
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.accumulate = true; }));
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.row_sums.shape = {3}; }));
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.mask.shape = {3, 16}; }));
  MatmulArgs makes_mask = args;
  with_bias(1)(makes_mask);
  makes_mask.mask.shape = {3, 16};
  EXPECT_FALSE(add(makes_mask)) << "any plan with a bias may write one";
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.a.dtype = a.b.dtype = DType::bf16; }));  // to f32
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.a.dtype = a.b.dtype = a.y.dtype = DType::bf16; }));
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.a.strides = {12, 1, 3}; }));
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.a.strides[0] = 0; }));
  EXPECT_TRUE(differs([](MatmulArgs& a) { a.b.strides[0] = 0; }));
}

TEST(CudnnProblem, FormatsOfAView) {
  const Shape shape{2, 3, 4, 5};
  EXPECT_TRUE(formats_of(view(shape, contiguous_strides(shape))).nchw);
  EXPECT_FALSE(formats_of(view(shape, contiguous_strides(shape))).nhwc);
  EXPECT_TRUE(formats_of(view(shape, channels_last_strides(shape))).nhwc);
  const Formats one_channel = formats_of(view({2, 1, 4, 5}, {20, 99, 5, 1}));
  EXPECT_TRUE(one_channel.nchw && one_channel.nhwc);
  const Formats one_pixel = formats_of(view({2, 3, 1, 1}, {3, 1, 7, 9}));
  EXPECT_TRUE(one_pixel.nchw && one_pixel.nhwc);
  EXPECT_FALSE(formats_of(view(shape, {60, 20, 1, 4})).nchw);
  EXPECT_FALSE(formats_of(View{nullptr, DType::f32, shape, {}}).nchw) << "strides not known yet";
}

Conv2dArgs conv_args(bool transposed, ConvPass pass) {
  Conv2dArgs args;
  args.pass = pass;
  args.params.transposed = transposed;
  args.x = view({2, 4, 6, 6}, {144, 36, 6, 1});
  args.y = view({2, 8, 4, 4}, {128, 16, 4, 1});
  args.w = view({8, 4, 3, 3}, {36, 9, 3, 1});
  if (transposed) {
    std::swap(args.x, args.y);
    args.w = view({8, 4, 3, 3}, {36, 9, 3, 1});
  }
  return args;
}

TEST(CudnnProblem, TransposedSwapsThePasses) {
  const std::pair<ConvPass, ConvPass> swapped[] = {
      {ConvPass::forward, ConvPass::backward_data},
      {ConvPass::backward_data, ConvPass::forward},
      {ConvPass::backward_weights, ConvPass::backward_weights}};
  for (const auto& [pass, library] : swapped) {
    const CudnnProblem plain(conv_args(false, pass));
    EXPECT_EQ(plain.pass, pass);
    EXPECT_EQ(plain.big(), (Shape{2, 4, 6, 6}));
    const CudnnProblem transposed(conv_args(true, pass));
    EXPECT_EQ(transposed.pass, library);
    EXPECT_EQ(transposed.big(), (Shape{2, 4, 6, 6}));
    EXPECT_EQ(transposed.small(), (Shape{2, 8, 4, 4}));
    // For every pass of the library, the first dimension of the weights is the small image's
    // channels.
    EXPECT_EQ(transposed.weights()[0], transposed.small()[1]);
  }
}

// cuDNN 9.19 has no plan for the gradient of the image in f32 that uses less than all three.
TEST(CudnnProblem, AWorkspaceIsAGibibyteOrAllTensors) {
  Conv2dArgs args;
  args.pass = ConvPass::backward_data;
  const auto most = [&](std::int64_t n, DType dtype) {
    args.x = View{nullptr, dtype, {n, 256, 56, 56}, {}};
    args.w = View{nullptr, dtype, {128, 256, 1, 1}, {}};
    args.y = View{nullptr, dtype, {n, 128, 56, 56}, {}};
    return CudnnProblem(args).most_workspace();
  };
  constexpr std::size_t kMiB = 1 << 20;
  EXPECT_EQ(most(1, DType::f32), 1024 * kMiB);
  EXPECT_EQ(most(256, DType::bf16), 1024 * kMiB);
  EXPECT_EQ(most(256, DType::f32), (784 + 392) * kMiB + 128 * 256 * 4 + 3 * kCudnnAlignment);
}

TEST(CudnnProblem, AFamilyHasBatchesAndImagesOfAKind) {
  const auto family_of = [](std::int64_t images, std::int64_t height, std::int64_t channels) {
    Conv2dArgs args;
    const auto dense = [](const Shape& shape) { return view(shape, contiguous_strides(shape)); };
    args.x = dense({images, channels, height, 20});
    args.w = dense({8, channels, 3, 3});
    args.y = dense({images, 8, height - 2, 18});
    return CudnnProblem::family(CudnnProblem(args).key(0, 0, true));
  };
  EXPECT_EQ(family_of(5, 40, 4), family_of(7, 60, 4));
  EXPECT_NE(family_of(5, 40, 4), family_of(8, 40, 4));
  EXPECT_NE(family_of(5, 40, 4), family_of(5, 80, 4));
  EXPECT_NE(family_of(5, 40, 4), family_of(5, 40, 5));
}

TEST(CudnnProblem, KeyIgnoresTheOutputsStrides) {
  for (const bool transposed : {false, true}) {
    for (const ConvPass pass : {ConvPass::forward, ConvPass::backward_data}) {
      Conv2dArgs args = conv_args(transposed, pass);
      const auto key = CudnnProblem(args).key(0, false, true);
      View& written = pass == ConvPass::forward ? args.y : args.x;
      written.strides = channels_last_strides(written.shape);
      EXPECT_EQ(CudnnProblem(args).key(0, false, true), key);
      View& read = pass == ConvPass::forward ? args.x : args.y;
      read.strides = channels_last_strides(read.shape);
      EXPECT_NE(CudnnProblem(args).key(0, false, true), key);
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nhwc);
    }
  }
}

// As in PyTorch; then the images decide, and the weights again where these leave it open.
TEST(CudnnProblem, WeightsOfChannelsLastAskForTheirFormat) {
  for (const bool transposed : {false, true}) {
    for (const ConvPass pass :
         {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
      Conv2dArgs args = conv_args(transposed, pass);
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nchw);
      args.w.strides = channels_last_strides(args.w.shape);
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nhwc);
      args.w.shape = {8, 4, 1, 1};
      args.w.strides = {4, 1, 1, 1};
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nchw) << "as the images";
      for (View* image : {&args.x, &args.y}) {
        image->shape[1] = 1;
        image->strides = contiguous_strides(image->shape);
      }
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nhwc) << "all in both";
      Conv2dArgs of_rows = args;
      for (View* image : {&of_rows.x, &of_rows.y}) image->shape[2] = 1;
      EXPECT_EQ(CudnnProblem(of_rows).preferred_format(), MemoryFormat::nchw) << "sequences";
      args.w = view({8, 4, 3, 3}, {36, 9, 3, 1});
      EXPECT_EQ(CudnnProblem(args).preferred_format(), MemoryFormat::nchw);
    }
  }
}

TEST(CudnnProblem, KeyTellsProblemsApart) {
  std::set<CudnnProblem::Key> keys;
  const Conv2dArgs base = conv_args(false, ConvPass::forward);
  const auto add = [&](const Conv2dArgs& a, int device = 0, bool fixed = false, bool tf32 = true) {
    return keys.insert(CudnnProblem(a).key(device, fixed, tf32)).second;
  };
  EXPECT_TRUE(add(base));
  EXPECT_FALSE(add(base));
  EXPECT_TRUE(add(base, 1));
  EXPECT_TRUE(add(base, 0, true));
  EXPECT_TRUE(add(base, 0, false, false));
  const auto differs = [&](auto change) {
    Conv2dArgs other = base;
    change(other);
    return add(other);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(differs([i](Conv2dArgs& a) { a.params.stride[i] = 2; }));
    EXPECT_TRUE(differs([i](Conv2dArgs& a) { a.params.padding[i] = 1; }));
    EXPECT_TRUE(differs([i](Conv2dArgs& a) { a.params.dilation[i] = 2; }));
  }
  EXPECT_TRUE(differs([](Conv2dArgs& a) { a.params.groups = 2; }));
  EXPECT_TRUE(differs([](Conv2dArgs& a) { a.w.dtype = DType::f64; }));
  EXPECT_TRUE(differs([](Conv2dArgs& a) { a.w.strides = channels_last_strides(a.w.shape); }));
  alignas(kCudnnAlignment) float bias[8] = {};
  EXPECT_TRUE(differs([&](Conv2dArgs& a) { a.bias = View{bias, DType::f32, {8}, {1}}; }));
  EXPECT_TRUE(differs([&](Conv2dArgs& a) { a.bias = View{bias + 1, DType::f32, {8}, {1}}; }))
      << "not aligned";
  EXPECT_TRUE(add(conv_args(true, ConvPass::backward_data))) << "same pass of the library";
  EXPECT_TRUE(add(conv_args(false, ConvPass::backward_weights)));
}

TEST(CudnnProblem, TheForwardPassAloneFusesADenseAlignedBias) {
  alignas(kCudnnAlignment) float values[16] = {};
  const auto fusable = [&](bool transposed, ConvPass pass, const View& bias) {
    Conv2dArgs args = conv_args(transposed, pass);
    args.bias = bias;
    return CudnnProblem(args).fusable_bias;
  };
  const View dense{values, DType::f32, {8}, {1}};
  EXPECT_TRUE(fusable(false, ConvPass::forward, dense));
  EXPECT_FALSE(fusable(false, ConvPass::forward, View{}));
  EXPECT_FALSE(fusable(false, ConvPass::forward, View{values, DType::f32, {8}, {2}}));
  EXPECT_FALSE(fusable(false, ConvPass::forward, View{values + 1, DType::f32, {8}, {1}}));
  EXPECT_TRUE(fusable(false, ConvPass::forward, View{values, DType::f32, {1}, {5}}));
  EXPECT_FALSE(fusable(false, ConvPass::backward_weights, dense)) << "its gradient";
  EXPECT_FALSE(fusable(false, ConvPass::backward_data, dense)) << "none to add";
  // cuDNN's backward_data, which writes the big image, and its forward pass, which computes dL/dx.
  EXPECT_FALSE(fusable(true, ConvPass::forward, dense));
  EXPECT_FALSE(fusable(true, ConvPass::backward_data, dense));
}

TEST(CudnnProblem, LimitsAndEmptiness) {
  Conv2dArgs args = conv_args(false, ConvPass::forward);
  EXPECT_TRUE(CudnnProblem(args).fits_int());
  EXPECT_FALSE(CudnnProblem(args).empty());
  for (View Conv2dArgs::* one : {&Conv2dArgs::x, &Conv2dArgs::w, &Conv2dArgs::y}) {
    Conv2dArgs other = args;
    (other.*one).shape[2] = 0;
    EXPECT_TRUE(CudnnProblem(other).empty());
    (other.*one).shape[2] = kTwo31;
    EXPECT_FALSE(CudnnProblem(other).fits_int());
  }
  args.params.padding[1] = kTwo31;
  EXPECT_FALSE(CudnnProblem(args).fits_int());
}

// cuDNN has no output padding: it derives the small image's size from the big one's. If that is
// larger than the given one, the library gets a small image with zeros appended.
TEST(CudnnProblem, OutputPaddingOfAStrideOrMoreEnlargesTheSmallImage) {
  Conv2dArgs args = conv_args(true, ConvPass::forward);  // x [2,8,4,4], y [2,4,6,6]
  EXPECT_FALSE(CudnnProblem(args).pads_small());
  args.params.stride = {2, 3};
  args.params.dilation = {2, 5};
  args.params.output_padding = {1, 4};
  args.y = view({2, 4, 12, 24}, {1152, 288, 24, 1});
  for (const ConvPass pass :
       {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
    args.pass = pass;
    const CudnnProblem problem(args);
    EXPECT_TRUE(problem.pads_small());
    EXPECT_EQ(problem.small(), (Shape{2, 8, 4, 4}));
    EXPECT_EQ(problem.library_small(), (Shape{2, 8, 4, 5}));
  }
  args.params.transposed = false;  // not used there
  EXPECT_FALSE(CudnnProblem(args).pads_small());
}

// A slice may begin anywhere; memory that is not allocated yet will be aligned.
TEST(CudnnProblem, PlansForUnalignedViewsAreTheirOwn) {
  const Conv2dArgs base = conv_args(false, ConvPass::forward);
  const auto key = CudnnProblem(base).key(0, false, true);
  for (View Conv2dArgs::* one : {&Conv2dArgs::x, &Conv2dArgs::w, &Conv2dArgs::y}) {
    Conv2dArgs other = base;
    (other.*one).data = reinterpret_cast<void*>(std::uintptr_t{4096 + kCudnnAlignment});
    EXPECT_EQ(CudnnProblem(other).key(0, false, true), key);
    (other.*one).data = reinterpret_cast<void*>(std::uintptr_t{4096 + 8});
    EXPECT_NE(CudnnProblem(other).key(0, false, true), key);
  }
}

}  // namespace
}  // namespace weft::cuda
