#include "weft/core/runtime/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/base/simd_level.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/fake_runtime.h"

namespace weft {
namespace {

TEST(Mt19937, EqualsTheStandardEngine) {
  for (std::uint32_t seed : {0u, 1u, 5489u, 4294967295u}) {
    Mt19937 ours(seed);
    std::mt19937 standard(seed);
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(ours(), standard()) << seed << " draw " << i;
  }
}

TEST(Mt19937, TenThousandthDrawIsTheOneTheStandardGives) {
  Mt19937 engine;
  for (int i = 0; i < 9999; ++i) engine();
  EXPECT_EQ(engine(), 4123659995u);
}

template <class T>
T from_bits(const std::string& hex) {
  const std::uint64_t bits = std::stoull(hex, nullptr, 16);
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  if constexpr (sizeof(T) == 8) return std::bit_cast<double>(bits);
}

template <class T>
void check_uniform(Generator& g, std::istringstream& arguments,
                   const std::vector<std::string>& want) {
  std::string low, high;
  arguments >> low >> high;
  std::vector<T> got(want.size());
  g.uniform(std::span<T>(got), std::strtod(low.c_str(), nullptr),
            std::strtod(high.c_str(), nullptr));
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], from_bits<T>(want[i])) << i;
}

template <class T>
void check_normal(Generator& g, std::istringstream& arguments,
                  const std::vector<std::string>& want) {
  std::size_t n = 0;
  arguments >> n;
  std::vector<T> got(n);
  g.normal(std::span<T>(got), 0.5, 2.0);
  for (std::size_t i = 0; i < want.size(); ++i) {
    // PyTorch's own CPU levels differ by 1.8e-6 in f32; f64 uses the same libm functions.
    const double bound = sizeof(T) == 4 ? 2e-6 : 1e-14;
    ASSERT_NEAR(got[i], from_bits<T>(want[i]), bound * std::max<T>(1, std::abs(got[i]))) << i;
  }
}

// One line per case: NAME SEED ARGUMENTS : VALUES. Successive lines with the same name and seed
// continue one stream, as the script drew them.
TEST(Generator, DrawsWhatPyTorchDraws) {
  std::ifstream file("tests/core/goldens/rng.txt");
  ASSERT_TRUE(file) << "run from the source root";
  std::map<std::string, int> seen;
  std::string line, stream;
  Generator g;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) continue;
    SCOPED_TRACE(line.substr(0, 60));
    const auto colon = line.find(" :");
    std::istringstream arguments(line.substr(0, colon)), values(line.substr(colon + 2));
    std::string name;
    std::uint64_t seed = 0;
    arguments >> name >> seed;
    std::vector<std::string> want;
    for (std::string word; values >> word;) want.push_back(word);

    const bool continues = name.starts_with("normal") || name == "randperm";
    if (!continues || stream != name + std::to_string(seed)) g.manual_seed(seed);
    stream = name + std::to_string(seed);
    ++seen[name];
    if (name == "random64") {
      for (const auto& word : want) ASSERT_EQ(std::to_string(g.random64()), word);
    } else if (name == "uniform32") {
      check_uniform<float>(g, arguments, want);
    } else if (name == "uniform64") {
      check_uniform<double>(g, arguments, want);
    } else if (name == "normal32") {
      check_normal<float>(g, arguments, want);
    } else if (name == "normal64") {
      check_normal<double>(g, arguments, want);
    } else {
      std::int64_t n = 0;
      arguments >> n;
      const std::vector<std::int64_t> order = g.randperm(n);
      if (name == "randperm") {
        ASSERT_EQ(order.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(std::to_string(order[i]), want[i]);
      } else {
        ASSERT_EQ(name, "randperm_sum");
        std::int64_t sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += i * order[i];
        ASSERT_EQ(std::to_string(sum), want[0]);
        for (int i = 0; i < 4; ++i) ASSERT_EQ(std::to_string(order[n - 4 + i]), want[1 + i]);
      }
    }
  }
  EXPECT_EQ(seen, (std::map<std::string, int>{{"random64", 5},
                                              {"uniform32", 20},
                                              {"uniform64", 20},
                                              {"randperm", 30},
                                              {"randperm_sum", 2},
                                              {"normal32", 84},
                                              {"normal64", 84}}));
}

TEST(Generator, APermutationWithoutMemoryIsOutOfMemory) {
  Generator generator(1);
  EXPECT_WEFT_ERROR(generator.randperm(std::int64_t{1} << 62), OutOfMemory,
                    "[randperm] no memory for a permutation of 4611686018427387904");
}

TEST(Generator, UniformRoundsOnce) {
  Generator g(3), h(3);
  std::vector<float> got(1000);
  g.uniform(std::span<float>(got), -0.1, 0.1);
  for (float v : got) {
    const float x = static_cast<float>(h.random32() & 0xffffff) * 0x1p-24f;
    ASSERT_EQ(v, std::fma(x, 0.1f - -0.1f, -0.1f));
  }
}

TEST(Generator, UniformHasTheSameBitsAtEveryLevel) {
  const auto draw = [](SimdLevel level) {
    set_simd_level(level);
    Generator g(3);
    std::pair<std::vector<float>, std::vector<double>> drawn{1001, 1001};
    g.uniform(std::span<float>(drawn.first), -0.1, 0.1);
    g.uniform(std::span<double>(drawn.second), -0.1, 0.1);
    return drawn;
  };
  const auto want = draw(SimdLevel::baseline);
  EXPECT_TRUE(draw(best_simd_level()) == want);
}

TEST(Generator, SeedIsKeptWholeAndDropsTheCachedNormal) {
  Generator g(0x123456789abcdef0ull), low(0x9abcdef0ull);
  EXPECT_EQ(g.initial_seed(), 0x123456789abcdef0ull);
  EXPECT_EQ(g.random32(), low.random32()) << "the engine sees 32 bits";

  double first = 0, again = 0;
  g.manual_seed(5);
  g.normal(std::span<double>(&first, 1));  // a second value is cached now
  g.manual_seed(5);
  g.normal(std::span<double>(&again, 1));
  EXPECT_EQ(first, again);
}

TEST(Generator, StateRoundTripsAtEveryPhase) {
  Generator g(11);
  for (int draws : {0, 1, 623, 624, 625}) {
    for (int i = 0; i < draws; ++i) g.random32();
    double one = 0;
    g.normal(std::span<double>(&one, 1));
    Generator copy;
    copy.set_state(g.state());
    EXPECT_EQ(copy.initial_seed(), 11u);
    EXPECT_EQ(copy.state(), g.state());
    std::vector<double> a(700), b(700);
    g.normal(std::span<double>(a).first(3));
    copy.normal(std::span<double>(b).first(3));
    g.uniform(a);
    copy.uniform(b);
    EXPECT_EQ(a, b);
  }
}

TEST(Generator, RefusesStatesItDidNotWrite) {
  Generator g(1);
  const std::string good = g.state();
  const auto refuse = [&](const std::string& text, const char* why) {
    EXPECT_WEFT_ERROR(g.set_state(text), InvalidArgument,
                      std::string("[generator] bad state: ") + why);
    EXPECT_EQ(g.state(), good);
  };
  refuse("", "expected text that begins with 'weft-mt19937-1'");
  refuse("weft-mt19937-1", "got '', expected a whole number");
  refuse(good.substr(0, good.rfind(' ')), "got '', expected a whole number up to 4294967295");
  refuse(good + " 1", "text after the last number");
  refuse("weft-mt19937-1 1 0 0 625 1", "got '625', expected a whole number up to 624");
  refuse("weft-mt19937-1 1 2 0 0", "got '2', expected a whole number up to 1");
  refuse(good.substr(0, good.rfind(' ')) + " 4294967296", "got '4294967296'");
  refuse(good.substr(0, good.rfind(' ')) + " -1", "got '-1'");
}

TEST(Generator, BernoulliKeepsToItsProbability) {
  Generator g(9);
  std::vector<std::uint8_t> out(100000);
  for (double p : {0.0, 0.25, 1.0}) {
    g.bernoulli(out, p);
    const double mean = std::count(out.begin(), out.end(), 1) / 1e5;
    EXPECT_EQ(std::count(out.begin(), out.end(), 0) + std::count(out.begin(), out.end(), 1),
              100000);
    EXPECT_NEAR(mean, p, 5 * std::sqrt(p * (1 - p) / 1e5));
  }
  EXPECT_WEFT_ERROR(g.bernoulli(out, 1.5), InvalidArgument,
                    "[bernoulli] probability: got 1.5, expected 0 to 1");
  EXPECT_WEFT_ERROR(g.bernoulli(out, std::nan("")), InvalidArgument, "got nan");
  EXPECT_WEFT_ERROR(g.randperm(-1), InvalidArgument, "[randperm] got -1, expected 0 or more");
}

TEST(DefaultGenerator, IsTheThreadsOwnUnlessOneIsSet) {
  manual_seed(21);
  EXPECT_EQ(default_generator().initial_seed(), 21u);
  std::thread([] {
    EXPECT_EQ(default_generator().initial_seed(), Generator::kDefaultSeed);
    manual_seed(22);
  }).join();
  EXPECT_EQ(default_generator().initial_seed(), 21u);
  GeneratorSet mine(5);
  const Scoped scope(&ThreadState::generators, &mine);
  manual_seed(6);
  EXPECT_EQ(mine.host().initial_seed(), 6u);
}

const Device kCpu1(DeviceType::cpu, 1), kCpu2(DeviceType::cpu, 2), kCuda0(DeviceType::cuda, 0);

TEST(GeneratorSet, EachDeviceHasNumbersOfItsOwn) {
  GeneratorSet set(5);
  EXPECT_EQ(&set.of(Device()), &set.host());
  EXPECT_EQ(set.host().random64(), Generator(5).random64()) << "the host's are PyTorch's";
  std::set<std::uint64_t> first;
  for (const Device device : {kCpu1, kCpu2, kCuda0}) {
    EXPECT_EQ(set.of(device).initial_seed(), device_seed(5, device));
    first.insert(set.of(device).random32());
  }
  first.insert(Generator(5).random32());
  EXPECT_EQ(first.size(), 4u);
  // Neighbouring seeds give different numbers on neighbouring devices: each has 32 bits of seed.
  std::set<std::uint32_t> seeds;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (int i = 1; i < kMaxDevices; ++i) {
      seeds.insert(static_cast<std::uint32_t>(device_seed(seed, Device(DeviceType::cpu, i))));
    }
  }
  EXPECT_EQ(seeds.size(), 6300u);
}

TEST(GeneratorSet, WhenADeviceIsFirstUsedDoesNotMatter) {
  GeneratorSet early(5), late(5);
  const std::uint64_t number = early.of(kCpu1).random64();
  for (int i = 0; i < 1000; ++i) late.host().random64();
  EXPECT_EQ(late.of(kCpu1).random64(), number);
  early.manual_seed(5);
  EXPECT_EQ(early.of(kCpu1).random64(), number);
  early.manual_seed(6);
  EXPECT_NE(early.of(kCpu1).random64(), number);
}

TEST(GeneratorSet, DevicesAreDrawnOnByThreadsOfTheirOwn) {
  GeneratorSet expected(3), set(3);
  std::vector<std::uint64_t> drawn(8), wanted(8);
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < 1000; ++k) wanted[i] += expected.of({DeviceType::cpu, i}).random64();
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Scoped own(&ThreadState::generators, &set);
      for (int k = 0; k < 1000; ++k) drawn[i] += default_generator({DeviceType::cpu, i}).random64();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(drawn, wanted);
}

TEST(GeneratorSet, StateRoundTrip) {
  GeneratorSet set(8);
  set.host().random64();
  set.of(kCpu2).random64();
  set.of(kCuda0).random64();
  const std::string text = set.state();
  GeneratorSet other(1);
  other.of(kCpu1).random64();  // not in the text: begins again
  other.set_state(text);
  EXPECT_EQ(other.of(kCpu1).random64(), Generator(device_seed(8, kCpu1)).random64());
  for (const Device device : {Device(), kCpu2, kCuda0}) {
    EXPECT_EQ(other.of(device).random64(), set.of(device).random64());
  }
  // The text of a single generator sets the host's.
  Generator host(9);
  host.random64();
  other.set_state(host.state());
  EXPECT_EQ(other.host().random64(), host.random64());
  EXPECT_EQ(other.of(kCpu2).random64(), Generator(device_seed(9, kCpu2)).random64());

  const std::string before = other.state();
  for (const std::string& bad : {text + "x", text + "\n", text + "\ncpu:0 " + host.state(),
                                 text + "\ncpu:64 " + host.state(),
                                 text + "\ntpu:1 " + host.state(), std::string("nonsense")}) {
    EXPECT_THROW(other.set_state(bad), Error) << bad.substr(bad.size() - 20);
    EXPECT_EQ(other.state(), before);
  }
}

TEST(GeneratorSet, ASnapshotDrawsTheSameNumbersAgain) {
  static testing::FakeRuntime host(DeviceType::cpu);  // the copies are storages
  register_runtime(DeviceType::cpu, &host);
  manual_seed(4);
  default_generator(kCpu1).random64();
  GeneratorSnapshot outer, inner, none;
  std::vector<std::uint64_t> drawn;
  const auto draw = [] {
    return std::vector<std::uint64_t>{default_generator().random64(),
                                      default_generator(kCpu1).random64(),
                                      default_generator(kCpu1).random64()};
  };
  {
    const RecordGenerators recording(outer);
    default_generator(kCpu1).random64();
    const RecordGenerators nested(inner);
    drawn = draw();
  }
  {
    const RecordGenerators recording(none);
  }
  EXPECT_TRUE(none.empty());
  const std::uint64_t next = default_generator(kCpu1).random64();
  {
    GeneratorSet again(inner);
    const Scoped own(&ThreadState::generators, &again);
    EXPECT_EQ(draw(), drawn);
  }
  {
    GeneratorSet again(outer);
    const Scoped own(&ThreadState::generators, &again);
    default_generator(kCpu1).random64();
    EXPECT_EQ(draw(), drawn);
    EXPECT_EQ(default_generator(kCpu1).random64(), next);
    EXPECT_EQ(default_generator(kCpu2).initial_seed(), device_seed(4, kCpu2));
  }
}

TEST(GeneratorSet, SeedingWhileRecordingReachesAllDevices) {
  static testing::FakeRuntime host(DeviceType::cpu);
  register_runtime(DeviceType::cpu, &host);
  manual_seed(4);
  default_generator(kCpu1).random64();
  GeneratorSnapshot outer, inner;
  {
    const RecordGenerators recording(outer);
    const RecordGenerators nested(inner);
    manual_seed(5);
  }
  EXPECT_EQ(default_generator().random64(), Generator(5).random64());
  EXPECT_EQ(default_generator(kCpu1).random64(), Generator(device_seed(5, kCpu1)).random64());
}

}  // namespace
}  // namespace weft
