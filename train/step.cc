#include "weft/train/step.h"

#include <algorithm>
#include <string>

#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"

namespace weft::train {

CaptureChoice::CaptureChoice(const Options& options) : findings_(options.findings) {
  if (options.findings->proof) {
    if (options.graph.value_or(false)) log_info("prove: steps run without --graph");
    captures_ = false;
    return;
  }
  // A replay is one span.
  const bool never = options.device.is_cpu() || !options.trace.empty();
  if (options.graph || never) captures_ = options.graph.value_or(false);
}

void CaptureChoice::try_out(std::int64_t batch_size, const std::function<void()>& body) {
  if (batch_size != largest_) {
    largest_ = std::max(largest_, batch_size);
    return body();
  }
  const std::string why_not = graph::why_not_capturable(body);
  if (!why_not.empty() && thread_state().rank == 0) {
    log_info("steps run without a CUDA graph: " + why_not);
  }
  captures_ = why_not.empty();
}

}  // namespace weft::train
