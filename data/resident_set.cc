#include "weft/data/resident_set.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "dataloader";
constexpr std::int64_t kSamplesAtOnce = 1024;

std::int64_t bytes_of(const Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const Tensor left = raw::contiguous(a), right = raw::contiguous(b);
  return std::memcmp(left.raw_data(), right.raw_data(), static_cast<std::size_t>(bytes_of(a))) == 0;
}

}  // namespace

void ResidentSet::fill(const Read& read) {
  const Span span("loader", "device_resident");
  const Scoped no_grad(&ThreadState::grad_enabled, false);
  std::vector<std::int64_t> indices;
  for (std::int64_t begin = 0; begin < size_; begin += kSamplesAtOnce) {
    const std::int64_t count = std::min(kSamplesAtOnce, size_ - begin);
    indices.resize(static_cast<std::size_t>(count));
    std::iota(indices.begin(), indices.end(), begin);
    std::vector<Tensor> parts[2];
    for (int pass = 0; pass < 2; ++pass) {
      // Sets without a seed parameter draw from the thread's generator.
      GeneratorSet generators(static_cast<std::uint64_t>(pass) + 1);
      const Scoped own(&ThreadState::generators, &generators);
      parts[pass] = read(indices, generators.host().random64(), pass);
    }
    for (const Tensor& part : parts[0]) {
      WEFT_CHECK(part.dim() > 0 && part.shape(0) == count, InvalidArgument, kOp,
                 "device_resident needs a row for each sample: got ", part.shape(), " for ", count,
                 " samples");
    }
    const bool alike =
        std::equal(parts[0].begin(), parts[0].end(), parts[1].begin(), parts[1].end(), same_bytes);
    WEFT_CHECK(alike, InvalidArgument, kOp,
               "device_resident would freeze the random transforms of this set, which gives other "
               "samples each time; leave the option or the transforms off");
    if (begin == 0) {
      std::int64_t bytes = 0;  // per sample
      for (const Tensor& part : parts[0]) bytes += bytes_of(part) / count;
      WEFT_CHECK(bytes == 0 || size_ <= limit_ / bytes, InvalidArgument, kOp,
                 "device_resident: ", size_, " samples of ", bytes,
                 " bytes each are above the limit of ", limit_,
                 " bytes; raise device_resident_limit, or leave the option off");
      for (const Tensor& part : parts[0]) {
        Shape shape = part.shape();
        shape[0] = size_;
        const Scoped owner(&ThreadState::memory_owner, MemoryOwner::data_set);
        tensors_.push_back(empty(shape, TensorOptions(part.dtype(), device_)));
      }
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      raw::copy_(raw::narrow(tensors_[i], 0, begin, count), raw::contiguous(parts[0][i]));
    }
  }
}

void ResidentSet::start_epoch(std::span<const std::int64_t> order) {
  order_ = raw::to(from_span(order, {static_cast<std::int64_t>(order.size())}, Device()), device_);
}

Tensor ResidentSet::rows(std::span<const std::int64_t> order,
                         std::span<const std::int64_t> indices) const {
  return raw::narrow(order_, 0, indices.data() - order.data(),
                     static_cast<std::int64_t>(indices.size()));
}

Tensor ResidentSet::gather(std::size_t i, const Tensor& rows) const {
  return raw::index_select(tensors_[i], 0, rows, false);  // the core has checked the order
}

}  // namespace weft::data
