// What traces of the engines show: schedules predicted and measured, idle devices, communication
// that nobody computes beside.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/tools/picture/bucket_timeline.h"
#include "weft/tools/timeline/figure.h"
#include "weft/tools/timeline/spans.h"

namespace weft::timeline {

/// One step of a pipeline.
struct PipelineStep {
  std::int64_t step = 0;
  std::vector<std::string> devices;  ///< in the order of their first stages
  parallel::Schedule schedule;       ///< what each of them did, in order
  parallel::Timeline measured;       ///< from the first action on
  int pipelines = 1;                 ///< in the trace, of the same length; this is the first
};

/// The steps in whose spans a whole schedule is. Throws what check() says of the last one where
/// there is none, InvalidArgument for spans without stage and micro-batch or without any step.
std::vector<PipelineStep> pipeline_steps(const std::vector<TraceSpan>& spans);

/// By stage, medians over the steps of that schedule, without step `without` where there are
/// others.
parallel::StageCosts median_costs(const std::vector<PipelineStep>& steps, std::size_t without);

/// Of the first of these that the spans are of: a pipeline; DataParallel. `step`: choose_step().
/// Throws InvalidArgument for another trace.
Figure pipeline_figure(const std::vector<TraceSpan>& spans, std::int64_t step);
Figure data_parallel_figure(const std::vector<TraceSpan>& spans, std::int64_t step);
Figure ddp_figure(const picture::StepTimes& step);

/// Of a trace of any of the three.
Figure trace_figure(const std::string& path, std::int64_t step);

}  // namespace weft::timeline
