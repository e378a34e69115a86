// Judges exercise 4, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/data/distributed_sampler.h"
#include "weft/learn/04_distributed_sampler/solution.h"
#include "weft/learn/judge/lab.h"

namespace weft::learn {
namespace {

using Samples = std::vector<std::int64_t>;
using SamplesOf = Samples (*)(std::int64_t size, const Share& share);

Samples weft_s_of(std::int64_t size, const Share& share, bool contiguous) {
  data::DistributedSampler sampler(size, {.num_replicas = share.ranks,
                                          .rank = share.rank,
                                          .seed = share.seed,
                                          .drop_last = share.drop_last,
                                          .contiguous = contiguous});
  sampler.set_epoch(share.epoch);
  Samples order;
  sampler.order(std::to_string(share.seed + share.epoch), order);
  return order;
}
Samples weft_s(std::int64_t size, const Share& share) { return weft_s_of(size, share, false); }

// The samples of all ranks.
std::vector<Samples> all_of(SamplesOf f, std::int64_t size, Share share) {
  std::vector<Samples> all;
  for (share.rank = 0; share.rank < share.ranks; ++share.rank) {
    within_patience("is there a loop that does not end?", [&] { all.push_back(f(size, share)); });
  }
  return all;
}

void check_counts(const std::vector<Samples>& all, std::int64_t size, const Share& share) {
  const std::int64_t up = share.drop_last ? 0 : share.ranks - 1, each = (size + up) / share.ranks;
  for (int r = 0; r < share.ranks; ++r) {
    require(std::ssize(all[r]) == each, "rank ", r, " has ", all[r].size(), " samples, each needs ",
            each, " (", size, " / ", share.ranks, " rounded ", share.drop_last ? "down" : "up",
            "): if ranks have different numbers of batches, one ends its epoch earlier, and the "
            "others wait for its gradients for ever");
  }
}

void check_who_visits(const std::vector<Samples>& all, std::int64_t size, const Share& share) {
  std::map<std::int64_t, std::vector<int>> ranks_of;
  std::int64_t total = 0;
  for (int r = 0; r < share.ranks; ++r) {
    for (const std::int64_t sample : all[r]) {
      require(sample >= 0 && sample < size, "rank ", r, " visits sample ", sample,
              ", but the samples are 0 to ", size - 1);
      ranks_of[sample].push_back(r);
      ++total;
    }
  }
  const std::size_t most = (total + size - 1) / std::max<std::int64_t>(size, 1);
  for (std::int64_t sample = 0; sample < size; ++sample) {
    const std::vector<int>& ranks = ranks_of[sample];
    require(share.drop_last || !ranks.empty(), "no rank visits sample ", sample,
            ", and others are visited twice: do all ranks shuffle in the same way?");
    require(ranks.size() <= most, "sample ", sample, " is visited ", ranks.size(),
            " times, by rank ", ranks.empty() ? 0 : ranks.front(), " and rank ",
            ranks.empty() ? 0 : ranks.back(), "; at most ", most,
            " is needed: do all ranks shuffle in the same way, and is the epoch padded with "
            "different samples?");
  }
}

void check(SamplesOf f, std::int64_t size, Share share) {
  begin_case(detail::concat(size, size == 1 ? " sample, " : " samples, ", share.ranks,
                            share.ranks == 1 ? " rank" : " ranks", ", seed ", share.seed,
                            ", epoch ", share.epoch, share.drop_last ? ", drop_last" : ""));
  const std::vector<Samples> all = all_of(f, size, share);
  check_counts(all, size, share);
  check_who_visits(all, size, share);
  require(all_of(f, size, share) == all,
          "the same call gives other samples the second time: the permutation must come from seed "
          "and epoch alone, or the ranks will not agree");
  Share next = share;
  ++next.epoch;
  require(size < 8 || all_of(f, size, next) != all, "epoch ", next.epoch,
          " has the order of epoch ", share.epoch,
          ": the model sees the same batches again and again, and each rank only its own samples");
  for (share.rank = 0; share.rank < share.ranks; ++share.rank) {
    const Samples &got = all[share.rank], expected = weft_s(size, share);
    if (got == expected) continue;
    require(
        got != weft_s_of(size, share, true), "rank ", share.rank,
        " has a block of the order: PyTorch's sampler deals the samples like cards, rank r gets "
        "number r, r + ranks, r + 2 ranks ...");
    const auto at = std::ranges::mismatch(got, expected).in1 - got.begin();
    require(!std::ranges::is_permutation(got, expected), "rank ", share.rank,
            " has the right samples in another order: its number ", at, " is ", got[at],
            ", PyTorch's sampler has ", expected[at], " there");
    require(false, "rank ", share.rank, "'s sample number ", at, " is ", got[at],
            ", PyTorch's sampler has ", expected[at],
            ": the order is randperm of a generator with seed + epoch, padded with its own first "
            "samples, and rank r gets number r, r + ranks, r + 2 ranks ...");
  }
}

std::string judge(SamplesOf f) {
  for (const std::int64_t size : {10, 12, 1, 3, 2, 0, 100}) {
    for (const int ranks : {4, 1, 3, 2, 5}) {
      for (const bool drop_last : {false, true}) {
        check(f, size, {.ranks = ranks, .drop_last = drop_last});
        check(f, size, {.ranks = ranks, .seed = 5, .epoch = 3, .drop_last = drop_last});
      }
    }
  }
  return "index for index torch.utils.data.DistributedSampler's samples, for 1 to 5 ranks, with "
         "padding and with drop_last";
}

// --- Wrong ones ----------------------------------------------------------------------------------

Samples no_padding(std::int64_t size, const Share& share) {
  const Samples all = Generator(share.seed + share.epoch).randperm(size);
  Samples mine;
  for (std::int64_t i = share.rank; i < size; i += share.ranks) mine.push_back(all[i]);
  return mine;
}

Samples blocks(std::int64_t size, const Share& share) { return weft_s_of(size, share, true); }

Samples own_seed(std::int64_t size, const Share& share) {
  Share other = share;
  other.seed += share.rank;
  return weft_s(size, other);
}

Samples no_epoch(std::int64_t size, const Share& share) {
  Share other = share;
  other.epoch = 0;
  return weft_s(size, other);
}

Samples other_seed(std::int64_t size, const Share& share) {
  Share other = share;
  other.seed = share.seed + 1000 * share.epoch, other.epoch = 0;
  return weft_s(size, other);
}

Samples always_drops(std::int64_t size, const Share& share) {
  Share other = share;
  other.drop_last = true;
  return weft_s(size, other);
}

Samples last_again(std::int64_t size, const Share& share) {
  if (share.drop_last || size == 0) return weft_s(size, share);
  Samples all = Generator(share.seed + share.epoch).randperm(size), mine;
  while (all.size() % share.ranks) all.push_back(all.back());
  for (std::size_t i = share.rank; i < all.size(); i += share.ranks) mine.push_back(all[i]);
  return mine;
}

Samples pads_once(std::int64_t size, const Share& share) {
  if (share.drop_last || size == 0) return weft_s(size, share);
  Samples all = Generator(share.seed + share.epoch).randperm(size), mine;
  const std::size_t missing = (share.ranks - size % share.ranks) % share.ranks;
  const Samples first = all;
  for (std::size_t i = 0; i < missing; ++i) all.push_back(first.at(i));
  for (std::size_t i = share.rank; i < all.size(); i += share.ranks) mine.push_back(all[i]);
  return mine;
}

// It shows if the padding is longer than the samples, and these are two or more.
Samples ends_with_the_last(std::int64_t size, const Share& share) {
  if (share.drop_last || size == 0) return weft_s(size, share);
  const Samples all = Generator(share.seed + share.epoch).randperm(size);
  const std::int64_t each = (size + share.ranks - 1) / share.ranks;
  Samples mine;
  for (std::int64_t i = share.rank; i < each * share.ranks; i += share.ranks) {
    mine.push_back(all[i < size ? i : std::min(i - size, size - 1)]);
  }
  return mine;
}

Samples one_generator(std::int64_t size, const Share& share) {
  static std::uint64_t calls = 0;
  Share other = share;
  other.seed = calls++ / share.ranks;
  return weft_s(size, other);
}

Samples sorted(std::int64_t size, const Share& share) {
  Samples mine = weft_s(size, share);
  std::ranges::sort(mine);
  return mine;
}

Samples endless(std::int64_t size, const Share& share) {
  volatile std::int64_t rest = size % share.ranks;
  while (rest != 0) {
  }
  return weft_s(size, share);
}

const std::vector<WrongOne<SamplesOf>> kWrong = {
    {"no_padding", no_padding, "rank 2 has 2 samples, each needs 3 (10 / 4 rounded up)",
     "each rank takes every ranks-th sample, as far as there are any"},
    {"blocks", blocks, "has a block of the order", "each rank takes a block of the order"},
    {"own_seed", own_seed, "do all ranks shuffle in the same way?",
     "each rank shuffles with a seed of its own"},
    {"no_epoch", no_epoch, "has the order of epoch 0", "the epoch is not in the seed"},
    {"other_seed", other_seed, "PyTorch's sampler has", "seed + 1000 epoch"},
    {"always_drops", always_drops, "rank 0 has 2 samples, each needs 3",
     "as if drop_last were always set"},
    {"last_again", last_again, "is visited 3 times, by rank", "fills up with the last sample"},
    {"pads_once", pads_once, "it threw an exception: vector::_M_range_check",
     "looks for padding behind the end, if there are more ranks than samples"},
    {"ends_with_the_last", ends_with_the_last, "rank 4's sample number 0 is",
     "pads with all samples once, and then with the last one only"},
    {"one_generator", one_generator, "other samples the second time",
     "a generator that goes on from call to call"},
    {"sorted", sorted, "has the right samples in another order: its number 0 is 3",
     "the right samples, sorted"},
    {"endless", endless, "it has not returned after 8 s",
     "waits until the division leaves no rest"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "04_distributed_sampler", judge, samples_of, weft_s, kWrong);
}
