#include "weft/data/distributed_sampler.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::data {
namespace {
constexpr const char* kOp = "distributed_sampler";
// Far more than any memory holds; with padding the count still fits in 64 bits.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 62;
}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, const DistributedSamplerOptions& options)
    : size_(size), options_(options) {
  WEFT_CHECK(size >= 0 && size <= kMostSamples, InvalidArgument, kOp, "size is ", size,
             ", needs 0 to 2^62");
  WEFT_CHECK(options.num_replicas >= 1, InvalidArgument, kOp, "num_replicas is ",
             options.num_replicas, ", needs at least 1");
  WEFT_CHECK(options.rank >= 0 && options.rank < options.num_replicas, InvalidArgument, kOp,
             "rank is ", options.rank, ", needs 0 to ", options.num_replicas - 1, " for ",
             options.num_replicas, " replicas");
  WEFT_CHECK(options.pad || !options.drop_last, InvalidArgument, kOp,
             "drop_last gives all ranks as many samples, pad = false gives each sample to a rank: "
             "choose one");
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  WEFT_CHECK(epoch >= 0, InvalidArgument, kOp, "epoch is ", epoch, ", needs at least 0");
  epoch_ = epoch;
}

std::int64_t DistributedSampler::total_after(std::int64_t done) const {
  const std::int64_t left = std::max<std::int64_t>(0, size_ - done);
  const std::int64_t ranks = options_.num_replicas, rest = left % ranks;
  if (!options_.pad || rest == 0) return left;
  return left - rest + (options_.drop_last ? 0 : ranks);
}

std::int64_t DistributedSampler::num_replicas() const {
  return options_.contiguous && options_.num_replicas > 1 ? 0 : options_.num_replicas;
}

std::int64_t DistributedSampler::size_after(std::int64_t done) const {
  const std::int64_t ranks = options_.num_replicas, all = total_after(done);
  return all / ranks + (options_.rank < all % ranks ? 1 : 0);
}

std::string DistributedSampler::draw_seed(Generator&) const {
  constexpr std::uint64_t k63Bits = ~std::uint64_t{0} >> 1;
  const std::uint64_t seed = (options_.seed + static_cast<std::uint64_t>(epoch_)) & k63Bits;
  if (options_.shuffle && last_seed_ == seed && !warned_.exchange(true)) {
    log_warning(detail::concat("[", kOp,
                               "] this epoch has the very order of the one before (epoch ", epoch_,
                               "): call set_epoch() with its number before each epoch"));
  }
  return std::to_string(seed);
}

void DistributedSampler::order_after(const std::string& text, std::int64_t done,
                                     std::vector<std::int64_t>& order) const {
  if (options_.shuffle) last_seed_ = seed_number(text);
  const std::int64_t ranks = options_.num_replicas, all = total_after(done),
                     count = size_after(done);
  // Without padding the first ranks have one sample more.
  const std::int64_t first =
      options_.contiguous
          ? options_.rank * (all / ranks) + std::min<std::int64_t>(options_.rank, all % ranks)
          : options_.rank;
  const std::int64_t step = options_.contiguous ? 1 : ranks;
  std::vector<std::int64_t> permutation;
  if (options_.shuffle) permutation = Generator(seed_number(text)).randperm(size_);
  resize_order(order, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = (done + first + i * step) % size_;
    order[static_cast<std::size_t>(i)] =
        options_.shuffle ? permutation[static_cast<std::size_t>(place)] : place;
  }
}

}  // namespace weft::data
