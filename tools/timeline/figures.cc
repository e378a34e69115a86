#include "weft/tools/timeline/figures.h"

#include <algorithm>

#include "weft/core/base/error.h"

namespace weft::timeline {

Figure trace_figure(const std::string& path, std::int64_t step) {
  const std::vector<TraceSpan> spans = read_spans(path);
  const auto has = [&](const char* category) {
    return std::ranges::find(spans, category, &TraceSpan::category) != spans.end();
  };
  if (has("pipeline")) return pipeline_figure(spans, step);
  if (has("ddp")) return ddp_figure(picture::read_step(path, step));
  WEFT_CHECK(has("parallel"), InvalidArgument, "timeline", path,
             " has no spans of a Pipeline, of DataParallel or of DistributedDataParallel");
  return data_parallel_figure(spans, step);
}

}  // namespace weft::timeline
