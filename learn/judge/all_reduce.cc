#include "weft/learn/judge/all_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include "weft/learn/judge/verdict.h"

namespace weft::learn {
namespace {

// Numbers around x that no rank may change.
constexpr std::size_t kMargin = 16;
constexpr float kUntouched = -7777;

struct Guarded {
  explicit Guarded(std::size_t count) : all(count + 2 * kMargin, kUntouched) {}

  std::span<float> x() { return std::span(all).subspan(kMargin, all.size() - 2 * kMargin); }
  void check(int rank) const {
    const std::size_t count = all.size() - 2 * kMargin;
    for (std::size_t i = 0; i < 2 * kMargin; ++i) {
      const std::size_t at = i < kMargin ? i : i + count;
      require(all[at] == kUntouched, "rank ", rank, " wrote outside of x: to x[",
              static_cast<std::int64_t>(at) - static_cast<std::int64_t>(kMargin), "] of an x of ",
              count, ". Are all parts as long as you think?");
    }
  }

  std::vector<float> all;
};

// As whole numbers rank r has place_factor(i) 4^r at place i. So a wrong sum shows what is in it,
// and sums of up to 8 ranks are exact in float. The factors are primes, so that what is added from
// another place is hardly ever a multiple.
constexpr int kBase = 4;
float place_factor(std::int64_t i) {
  constexpr std::array<float, 7> kPrimes{11, 13, 17, 19, 23, 29, 31};
  return kPrimes[i % kPrimes.size()];
}
float whole(int rank, std::int64_t i) {
  return place_factor(i) * static_cast<float>(std::int64_t{1} << (2 * rank));
}

// A number that is not a sum of a few powers of 2: a hash of its place (with the constants of
// splitmix64).
float broken(int rank, std::int64_t i) {
  std::uint64_t z = (static_cast<std::uint64_t>(i) * 8 + rank + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<double>(z >> 40) / (1 << 24) - 0.5);
}

// What is in a wrong sum of whole numbers: "lacks rank 2", "has rank 0 twice".
std::string what_is_in(float got, float sum, int n, std::int64_t i) {
  if (std::isnan(got)) return "is not a number: was memory added that nobody has written to?";
  if (got * static_cast<float>(n) == sum) {
    return "is the sum divided by the number of ranks, their mean: only add up here";
  }
  const float times = got / place_factor(i);
  if (!(times >= 0 && times < static_cast<float>(1 << 20)) || times != std::floor(times)) {
    return "is no sum of the ranks' numbers at this place: were parts of different places added?";
  }
  std::string text;
  auto rest = static_cast<std::int64_t>(times);
  for (int r = 0; r < n; ++r, rest /= kBase) {
    const std::int64_t share = rest % kBase;
    if (share == 1) continue;
    text += detail::concat(text.empty() ? "" : ", ", share == 0 ? "lacks rank " : "has rank ", r);
    if (share > 1) text += share == 2 ? " twice" : detail::concat(" ", share, " times");
  }
  return rest == 0 ? text : "has some ranks many times";
}

using AllX = std::vector<std::span<const float>>;  // by rank

float sum_at(int n, std::int64_t i) {
  float sum = 0;
  for (int r = 0; r < n; ++r) sum += whole(r, i);
  return sum;
}

// Whether each sum is on some rank.
bool all_added(const AllX& all) {
  const int n = static_cast<int>(all.size());
  for (std::int64_t i = 0; i < std::ssize(all[0]); ++i) {
    const float sum = sum_at(n, i);
    if (std::ranges::none_of(all, [&](std::span<const float> x) { return x[i] == sum; })) {
      return false;
    }
  }
  return true;
}

void check_whole(const AllX& all, int rank) {
  const int n = static_cast<int>(all.size());
  const std::span<const float> x = all[rank];
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    const float sum = sum_at(n, i);
    if (x[i] == sum) continue;
    require(false, "rank ", rank, " has x[", i, "] = ", digits(x[i]), ", the sum of all is ",
            digits(sum), ": it ", what_is_in(x[i], sum, n, i),
            all_added(all)
                ? ". Each sum is on some rank already, and need only be copied to the others"
                : "");
  }
}

void check_broken(const AllX& all, int rank) {
  const int n = static_cast<int>(all.size());
  const std::span<const float> x = all[rank], first = all[0];
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    double sum = 0, magnitude = 0;
    for (int r = 0; r < n; ++r) {
      sum += broken(r, i);
      magnitude += std::abs(broken(r, i));
    }
    // n - 1 additions, each of which rounds by half an epsilon of at most the sum of magnitudes.
    const double bound = (n - 1) * magnitude * std::numeric_limits<float>::epsilon() / 2;
    require(
        std::abs(x[i] - sum) <= bound * 1.001, "rank ", rank, " has x[", i, "] = ", digits(x[i]),
        ", the sum of all is ", sum,
        ": that is more than additions in float round. Is it rounded, or is something still there "
        "from the call before?");
    require(
        std::bit_cast<std::uint32_t>(x[i]) == std::bit_cast<std::uint32_t>(first[i]),
        "the ranks have different bits: x[", i, "] is ", digits(first[i]), " on rank 0 and ",
        digits(x[i]), " on rank ", rank,
        ": each number should be added up in one order on all ranks, or on one rank, and copied");
  }
}

// Runs f with the numbers value(rank, place), and calls check(all x, rank) for each rank.
template <class Value, class Check>
std::vector<Traffic> run_and_check(AllReduce f, int n, std::int64_t count,
                                   const std::string& advice, Value value, Check check) {
  begin_case(detail::concat(n, n == 1 ? " rank and " : " ranks and ", count,
                            count == 1 ? " number" : " numbers"));
  std::vector<Guarded> buffers(n, Guarded(count));
  for (int r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < count; ++i) buffers[r].x()[i] = value(r, i);
  }
  std::vector<Traffic> traffic =
      on_ranks(n, [&](Messages& me) { f(me, buffers[me.rank()].x()); }, advice);
  AllX all;
  for (Guarded& buffer : buffers) all.push_back(buffer.x());
  for (int r = 0; r < n; ++r) {
    buffers[r].check(r);
    check(all, r);
  }
  return traffic;
}

}  // namespace

std::vector<Traffic> check_exact(AllReduce f, int n, std::int64_t count,
                                 const std::string& advice) {
  return run_and_check(f, n, count, advice, whole, check_whole);
}

std::vector<Traffic> check_bits(AllReduce f, int n, std::int64_t count, const std::string& advice) {
  return run_and_check(f, n, count, advice, broken, check_broken);
}

std::vector<Traffic> check_all_reduce(AllReduce f, int n, std::int64_t count,
                                      const std::string& advice) {
  check_exact(f, n, count, advice);
  return check_bits(f, n, count, advice);
}

void check_sums(AllReduce f, int most, const std::string& advice, CheckOne check) {
  for (int n = 1; n <= most; ++n) {
    for (const int count : {12, 60, 1, 0, 2, 3, 5, 7, 1001}) check(f, n, count, advice);
  }
}

namespace wrong {

void add(std::span<float> to, std::span<const float> from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void receive_and_add(Messages& me, int from, std::span<float> x) {
  std::vector<float> received(x.size());
  me.receive(from, received);
  add(x, received);
}

}  // namespace wrong

}  // namespace weft::learn
