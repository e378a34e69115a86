#include "weft/parallel/deferred_batch_norm.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/nn/batch_norm.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

// What one layer has seen of the batch so far, per channel.
struct Seen {
  Tensor layer = {};  // its running mean, held so that no other tensor gets this address
  Tensor mean = {}, squares = {};  // f64; sum (x - mean)^2
  std::int64_t count = 0;
  int forwards = 0;

  void add(const Tensor& x) {
    const raw::Moments more = raw::moments("deferred_batch_norm", x, {0, 2, 3}, false);
    const Tensor more_mean = raw::reshape(more.mean, more.shape);
    const Tensor more_squares = raw::reshape(more.squares, more.shape);
    if (count == 0) {
      mean = more_mean, squares = more_squares, count = more.n;
      return;
    }
    // Both sums are moved to the common mean (Chan, Golub and LeVeque 1983): sums of x^2 would lose
    // digits if the mean is large.
    const auto before = static_cast<double>(count);
    count += more.n;
    const double share = static_cast<double>(more.n) / static_cast<double>(count);
    const Tensor step = raw::sub(more_mean, mean);
    raw::add_scaled_(squares, 1, more_squares);
    raw::add_scaled_(squares, before * share, raw::mul(step, step));
    raw::add_scaled_(mean, share, step);
  }
};

class Deferred {
 public:
  explicit Deferred(int chunks) : chunks_(chunks) {}

  void see(const Tensor& x, const RunningStats& running, const BatchNormParams& params) {
    Seen& seen = of(running.mean);  // forwards of one layer do not overlap
    if (x.numel() > 0) seen.add(x);
    if (++seen.forwards < chunks_) return;
    seen.forwards = 0;
    if (seen.count == 0) return;
    const Tensor mean = seen.mean;
    const Tensor var = raw::div(seen.squares, static_cast<double>(seen.count));
    raw::add_(running.num_batches, 1);
    const double momentum =
        params.cumulative ? 1 / running.num_batches.item<double>() : params.momentum;
    for (const auto& [kept, batch] : {std::pair(running.mean, mean), {running.var, var}}) {
      const Tensor before = raw::to(kept, DType::f64);
      raw::add_scaled_(before, momentum, raw::sub(batch, before));
      raw::copy_(kept, before);
    }
    // `layer` is not changed: the threads of other layers read it.
    seen.mean = seen.squares = {};
    seen.count = 0;
  }

 private:
  Seen& of(const Tensor& layer) {
    const std::lock_guard lock(mutex_);
    // Removes entries of layers that no longer exist, for example of copies made for timing.
    std::erase_if(seen_,
                  [](const auto& entry) { return entry.second.layer.impl()->use_count() == 1; });
    return seen_.try_emplace(layer.impl(), Seen{.layer = layer}).first->second;
  }

  const int chunks_;
  std::mutex mutex_;
  std::map<const TensorImpl*, Seen> seen_;
};

}  // namespace

void convert_deferred_batch_norm(nn::ModuleBase& module, int chunks) {
  WEFT_CHECK(chunks >= 1, InvalidArgument, "convert_deferred_batch_norm", "chunks: got ", chunks,
             ", expected at least 1");
  nn::replace_batch_norms(
      module, "Deferred",
      [all = std::make_shared<Deferred>(chunks)](
          const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStats& running,
          const BatchNormParams& params, const BatchNormEpilogue& then) {
        if (running.mean.defined()) all->see(x, running, params);
        BatchNormParams own = params;
        own.cumulative = false;
        return batch_norm(x, weight, bias, {}, own, then);
      });
}

}  // namespace weft::parallel
