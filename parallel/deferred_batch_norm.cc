#include "weft/parallel/deferred_batch_norm.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "weft/autograd/ops.h"
#include "weft/core/error.h"
#include "weft/nn/batch_norm.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

// What one layer has seen of the batch so far, by channel.
struct Seen {
  Tensor layer = {};  // its running mean: as long as it is here, no other has its address
  Tensor sum = {}, squares = {};  // f64
  std::int64_t count = 0;
  int forwards = 0;
};

class Deferred {
 public:
  explicit Deferred(int chunks) : chunks_(chunks) {}

  void see(const Tensor& x, const RunningStats& running, const BatchNormParams& params) {
    const Tensor values = raw::to(x, DType::f64);
    const Tensor sum = raw::sum(values, {0, 2, 3});
    const Tensor squares = raw::sum(raw::mul(values, values), {0, 2, 3});
    Seen& seen = of(running.mean);  // one forward of a layer at a time
    if (seen.forwards == 0) {
      seen.sum = sum;
      seen.squares = squares;
    } else {
      raw::add_scaled_(seen.sum, 1, sum);
      raw::add_scaled_(seen.squares, 1, squares);
    }
    seen.count += x.numel() / x.shape(1);
    if (++seen.forwards < chunks_) return;
    const Tensor mean = raw::div(seen.sum, static_cast<double>(seen.count));
    const Tensor var =
        raw::sub(raw::div(seen.squares, static_cast<double>(seen.count)), raw::mul(mean, mean));
    raw::add_(running.num_batches, 1);
    const double momentum =
        params.cumulative ? 1 / running.num_batches.item<double>() : params.momentum;
    for (const auto& [kept, batch] : {std::pair(running.mean, mean), {running.var, var}}) {
      const Tensor before = raw::to(kept, DType::f64);
      raw::add_scaled_(before, momentum, raw::sub(batch, before));
      raw::copy_(kept, before);
    }
    // `layer` stays as it is: other layers' threads look at it.
    seen.sum = seen.squares = {};
    seen.count = seen.forwards = 0;
  }

 private:
  Seen& of(const Tensor& layer) {
    const std::lock_guard lock(mutex_);
    // Copies of the model share this, and have gone: those that were made to be timed, say.
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
