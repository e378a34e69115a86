// Judges exercise 7, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "weft/learn/07_buckets/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/parallel/gradient_buckets.h"

namespace weft::learn {
namespace {

using Sizes = std::vector<std::int64_t>;
using Buckets = std::vector<std::vector<std::size_t>>;
using Plan = Buckets (*)(const Sizes& bytes, std::int64_t first_limit, std::int64_t limit);

Buckets weft_s(const Sizes& bytes, std::int64_t first_limit, std::int64_t limit) {
  std::vector<parallel::GradientSize> gradients;
  for (const std::int64_t size : bytes) gradients.push_back({.bytes = size});
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  const Sizes limits{first_limit, limit};
  return parallel::plan_buckets(gradients, limits, order);
}

template <class Numbers>
std::string list(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) {
    if (text.size() > 60) return text + " ...";
    text += detail::concat(text.empty() ? "" : " ", number);
  }
  return text;
}

void check(Plan f, const Sizes& bytes, std::int64_t first_limit, std::int64_t limit) {
  begin_case(detail::concat("gradients of ", bytes.empty() ? "no" : list(bytes), " bytes, limits ",
                            first_limit, " and ", limit));
  Buckets buckets;
  within_patience("is there a loop that does not end?",
                  [&] { buckets = f(bytes, first_limit, limit); });
  std::vector<int> count(bytes.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    require(!buckets[b].empty(), "bucket ", b, " is empty: it would be a message of nothing");
    for (const std::size_t i : buckets[b]) {
      require(i < bytes.size(), "bucket ", b, " has gradient ", i, ", but there are ",
              bytes.size());
      ++count[i];
    }
  }
  for (std::size_t i = 0; i < count.size(); ++i) {
    require(count[i] > 0, "gradient ", i,
            " is in no bucket, so the ranks' weights would drift apart");
    require(count[i] == 1, "gradient ", i, " is in ", count[i], " buckets");
  }
  std::size_t last = bytes.size();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::int64_t size = 0;
    const std::int64_t most = b == 0 ? first_limit : limit;
    for (const std::size_t i : buckets[b]) {
      require(i < last, "gradient ", i, " comes after gradient ", last, " (bucket ", b,
              "): backward finishes the gradients of the last parameters first, and a bucket is "
              "sent when all of it is there");
      require(size < most, "bucket ", b, " has ", size, " bytes before gradient ", i,
              " is added: its limit of ", most, " is reached, so it should be closed and sent");
      last = i;
      size += bytes[i];
    }
    require(size >= most || b + 1 == buckets.size(), "bucket ", b, " is closed with ", size,
            " bytes before its limit of ", most,
            " is reached: more gradients fit, and fewer messages cost less. (A bucket may exceed "
            "its limit by its last gradient.)");
  }
}

std::string judge(Plan f) {
  check(f, {40, 30, 20, 10}, 10, 50);
  check(f, {10, 10, 10, 10, 10}, 10, 20);
  check(f, {4, 4, 4}, 100, 100);
  check(f, {7}, 10, 10);
  check(f, {}, 10, 10);
  check(f, {5, 1000, 5, 5, 5}, 8, 20);
  check(f, {0, 10, 0, 30, 0}, 5, 25);
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Sizes bytes;
    std::uint64_t x = seed;
    for (std::uint64_t i = 0; i < seed; ++i) {
      x = x * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
      bytes.push_back(static_cast<std::int64_t>(x >> 54) + 1);
    }
    check(f, bytes, 500, 2000);
    require(f(bytes, 500, 2000) == weft_s(bytes, 500, 2000),
            "the buckets are not those of DDP, though each is allowed");
  }
  return "the buckets of DDP, which it sends in this order";
}

// --- Wrong ones ----------------------------------------------------------------------------------

struct Habits {
  bool forwards = false, packs = false, keeps_first = false, forgets_last = false,
       empty_last = false, strict = false;
};

Buckets with(const Habits& h, const Sizes& bytes, std::int64_t first_limit, std::int64_t limit) {
  Buckets buckets;
  std::vector<std::size_t> open;
  std::int64_t size = 0;
  const auto close = [&] { buckets.push_back(std::move(open)), open.clear(), size = 0; };
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    const std::size_t i = h.forwards ? k : bytes.size() - 1 - k;
    const std::int64_t most = buckets.empty() || h.keeps_first ? first_limit : limit;
    if (h.packs && !open.empty() && size + bytes[i] > most) close();
    open.push_back(i);
    size += bytes[i];
    if (!h.packs && (h.strict ? size > most : size >= most)) close();
  }
  if (h.empty_last || (!open.empty() && !h.forgets_last)) close();
  return buckets;
}

Buckets forwards(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.forwards = true}, b, f, l);
}
// As a knapsack: nothing may exceed the limit.
Buckets packs(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.packs = true}, b, f, l);
}
Buckets keeps_first(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.keeps_first = true}, b, f, l);
}
Buckets forgets_last(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.forgets_last = true}, b, f, l);
}
Buckets empty_last(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.empty_last = true}, b, f, l);
}
Buckets strict(const Sizes& b, std::int64_t f, std::int64_t l) {
  return with({.strict = true}, b, f, l);
}
Buckets one_bucket(const Sizes& b, std::int64_t, std::int64_t) {
  return with({}, b, std::int64_t{1} << 40, 1);
}
Buckets one_each(const Sizes& b, std::int64_t, std::int64_t) { return with({}, b, 0, 0); }
Buckets past_the_end(const Sizes& b, std::int64_t f, std::int64_t l) {
  Buckets buckets = weft_s(b, f, l);
  for (std::vector<std::size_t>& bucket : buckets) {
    for (std::size_t& i : bucket) ++i;
  }
  return buckets;
}
Buckets largest_first(const Sizes& b, std::int64_t f, std::int64_t l) {
  Buckets buckets = weft_s(b, f, l);
  for (std::vector<std::size_t>& bucket : buckets) std::ranges::reverse(bucket);
  return buckets;
}
// Waits until the gradient fits.
Buckets endless(const Sizes& b, std::int64_t f, std::int64_t l) {
  volatile std::int64_t room = f;
  while (!b.empty() && room < b[0]) {
  }
  return weft_s(b, f, l);
}

const std::vector<WrongOne<Plan>> kWrong = {
    {"forwards", forwards, "backward finishes the gradients of the last parameters first"},
    {"packs", packs, "more gradients fit, and fewer messages cost less"},
    {"keeps_first", keeps_first, "is closed with 20 bytes before its limit of 50"},
    {"forgets_last", forgets_last, "is in no bucket"},
    {"empty_last", empty_last, "is empty: it would be a message of nothing"},
    {"strict", strict, "its limit of 10 is reached, so it should be closed and sent"},
    {"one_bucket", one_bucket, "its limit of 10 is reached, so it should be closed and sent"},
    {"one_each", one_each, "is closed with 20 bytes before its limit of 50"},
    {"past_the_end", past_the_end, "has gradient 4, but there are 4"},
    {"largest_first", largest_first, "(bucket 1): backward finishes"},
    {"endless", endless, "it has not returned after 8 s"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "07_buckets", judge, plan_buckets, weft_s, kWrong);
}
