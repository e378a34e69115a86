// Reads the steps of DistributedDataParallel out of a trace.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/median.h"
#include "weft/tools/simulate/replay/ddp.h"
#include "weft/tools/simulate/replay/parts.h"
#include "weft/tools/simulate/replay/traced_ranks.h"

namespace weft::simulator {
namespace {

// The spans of one rank in one step, in the order of the file.
struct RankSpans : TracedTimes {
  struct Bucket {
    double bytes = 0, sent_bytes = 0, sent = -1, begun = -1, reduced = -1;
  };
  double waited = -1;
  std::vector<TracedSpan> others;  // all-reduces of no bucket
  std::map<int, Bucket> buckets;
  std::vector<std::pair<TracedGradient, double>> gradients;

  // Whether the rank has one backward, and has sent and reduced all buckets from 0 on.
  bool is_whole() const {
    return TracedTimes::is_whole() && waited >= 0 && !buckets.empty() &&
           buckets.begin()->first == 0 && buckets.rbegin()->first == std::ssize(buckets) - 1 &&
           std::ranges::all_of(buckets, [](const auto& each) {
             return each.second.sent >= 0 && each.second.reduced >= 0;
           });
  }
};

using Spans = std::map<int, std::map<int, RankSpans>>;  // by step and rank

// The number in "bucket 3", the end of `module`; -1 if there is none.
int bucket_in(const std::string& module) {
  constexpr std::string_view word = "bucket ";
  const std::size_t at = module.rfind(word);
  int number = -1;
  if (at == std::string::npos) return -1;
  const char* const end = module.data() + module.size();
  const auto [stop, error] = std::from_chars(module.data() + at + word.size(), end, number);
  return error == std::errc() && stop == end ? number : -1;
}

void take(const TracedSpan& span, Spans& steps) {
  if (span.step < 0) return;
  RankSpans& rank = steps[static_cast<int>(span.step)][span.rank];
  const std::string &category = span.category, &name = span.name;
  rank.take(span);
  if (name == "wait for buckets") rank.waited = span.end;
  if (category == "ddp" && name == "gradient") {
    rank.gradients.push_back(
        {{span.module, span.bytes, static_cast<int>(span.parameter)}, span.begin});
  }
  if (name == "send bucket") {
    RankSpans::Bucket& bucket = rank.buckets[static_cast<int>(span.bucket)];
    bucket.sent = span.begin;
    bucket.bytes = span.bytes;
  }
  if (category != "comm" || name != "all_reduce") return;
  if (const int number = bucket_in(span.module); number >= 0) {
    rank.buckets[number].begun = span.begin;
    rank.buckets[number].reduced = span.end;
    rank.buckets[number].sent_bytes = span.bytes;
  } else if (!span.module.ends_with("used parameters") && !span.module.ends_with("join")) {
    rank.others.push_back(span);
  }
}

std::vector<double> bytes_of(const RankSpans& rank) {
  std::vector<double> bytes;
  for (const auto& [number, bucket] : rank.buckets) bytes.push_back(bucket.bytes);
  return bytes;
}

// Adds the step, unless a rank lacks one of the trace's gradients.
void add_step(int number, const std::map<int, RankSpans>& ranks, DdpTrace& trace) {
  double begin = std::numeric_limits<double>::infinity();
  for (const auto& [r, rank] : ranks) begin = std::min(begin, rank.forward);
  const auto since = [&](double at) { return at - begin; };
  TracedStep step{.number = number, .ranks = {}};
  for (const auto& [r, spans] : ranks) {
    TracedRank& rank = step.ranks.emplace_back();
    rank.forward = since(spans.forward);
    rank.backward = since(spans.backward);
    rank.waited = since(spans.waited);
    rank.end = since(spans.end);
    for (const TracedGradient& gradient : trace.gradients) {
      const auto found = std::ranges::find(spans.gradients, gradient.parameter,
                                           [](const auto& g) { return g.first.parameter; });
      if (found == spans.gradients.end()) return;
      rank.ready.push_back(since(found->second));
    }
    for (const auto& [index, bucket] : spans.buckets) {
      rank.sent.push_back(since(bucket.sent));
      rank.begun.push_back(since(bucket.begun));
      rank.reduced.push_back(since(bucket.reduced));
    }
  }
  trace.steps.push_back(std::move(step));
}

// How long after their gradients were ready the buckets were sent, summed over all ranks; infinity
// if one was sent before.
double lateness(const BucketPlan& plan, const TracedStep& step) {
  double sum = 0;
  for (const TracedRank& rank : step.ranks) {
    double complete = 0;
    for (std::size_t k = 0; k < plan.size(); ++k) {
      for (const std::size_t i : plan[k]) complete = std::max(complete, rank.ready[i]);
      if (rank.sent[k] < complete) return std::numeric_limits<double>::infinity();
      sum += rank.sent[k] - complete;
    }
  }
  return sum;
}
bool sends_when_ready(const BucketPlan& plan, const TracedStep& step) {
  return std::isfinite(lateness(plan, step));
}

// The order that gives buckets of these sizes, and in which they were sent soonest after their
// gradients were ready; arrival if no order does.
parallel::BucketOrder order_of_buckets(DdpTrace trace) {
  using enum parallel::BucketOrder;
  parallel::BucketOrder best = arrival;
  double least = std::numeric_limits<double>::infinity();
  for (const auto order : {arrival, reversed, given}) {
    trace.recorded_order = order;
    try {
      const double late = lateness(trace.recorded_plan(), trace.steps.back());
      if (late < least) least = late, best = order;
    } catch (const Error&) {  // this order gives buckets of other sizes
    }
  }
  return best;
}

// Latency and bandwidth of a ring's step, from a line through the all-reduces' times over their
// bytes. Where cores are shared, an all-reduce beside backward counts with half of its time, and
// one that still ran when backward ended is left out.
Link fit_link(const DdpTrace& trace) {
  const BucketPlan plan = trace.recorded_plan();
  std::vector<std::vector<double>> seconds(plan.size());
  for (const TracedStep& step : trace.steps) {
    double before = 0, backward_end = 0;
    for (const TracedRank& rank : step.ranks) {
      backward_end = std::max(backward_end, rank.sent.back());
    }
    for (std::size_t k = 0; k < plan.size(); ++k) {
      double begin = before, end = 0;
      for (const TracedRank& rank : step.ranks) {
        begin = std::max(begin, rank.sent[k]);
        end = std::max(end, rank.reduced[k]);
      }
      before = std::max(before, end);
      const double took = std::max(end - begin, 0.0);
      if (begin >= backward_end || !trace.all_reduce_computes) {
        seconds[k].push_back(took);
      } else if (end <= backward_end) {
        seconds[k].push_back(took / 2);
      }
    }
  }
  std::vector<TimedMessage> messages;
  for (std::size_t k = 0; k < plan.size(); ++k) {
    if (seconds[k].empty()) continue;
    messages.emplace_back(trace.sent_bytes({}, trace.bytes_of(plan[k])), median(seconds[k]));
  }
  const auto [latency, per_byte] = fit(messages);
  const double ranks = trace.ranks();
  return {latency / (2 * (ranks - 1)), per_byte > 0 ? 2 * (ranks - 1) / ranks / per_byte : 0};
}

}  // namespace

double TracedStep::seconds() const { return std::ranges::max(ranks, {}, &TracedRank::end).end; }

std::vector<double> DdpTrace::step_seconds() const {
  std::vector<double> all;
  for (const TracedStep& step : steps) all.push_back(step.seconds());
  return all;
}

double DdpTrace::gradient_bytes() const {
  return std::accumulate(
      gradients.begin(), gradients.end(), 0.0,
      [](double sum, const TracedGradient& gradient) { return sum + gradient.bytes; });
}

double DdpTrace::bytes_of(const std::vector<std::size_t>& bucket) const {
  return std::accumulate(bucket.begin(), bucket.end(), 0.0,
                         [&](double sum, std::size_t i) { return sum + gradients[i].bytes; });
}

std::string DdpTrace::what() const {
  return concat("DDP on ", ranks(), " ranks, ", simulator::counted(gradients.size(), "gradient"),
                " in ", simulator::counted(bucket_bytes.size(), "bucket"));
}

std::vector<std::size_t> DdpTrace::in_order(parallel::BucketOrder order) const {
  std::vector<std::size_t> all(gradients.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order != parallel::BucketOrder::arrival) {
    std::ranges::sort(all, {}, [&](std::size_t i) { return gradients[i].parameter; });
  }
  return all;
}

BucketPlan DdpTrace::recorded_plan() const {
  const bool from_back = recorded_order == parallel::BucketOrder::reversed;
  const std::vector<std::size_t> order = in_order(recorded_order);
  std::vector<double> sizes = bucket_bytes;
  if (from_back) std::ranges::reverse(sizes);
  BucketPlan plan;
  std::size_t next = 0;
  for (const double bytes : sizes) {
    double filled = 0;
    std::vector<std::size_t>& bucket = plan.emplace_back();
    while (filled < bytes && next < gradients.size()) {
      filled += gradients[order[next]].bytes;
      bucket.push_back(order[next++]);
    }
    WEFT_CHECK(filled == bytes, Io, kOp, "a bucket of ", bytes, " bytes does not have the ", filled,
               " bytes of the next gradients: a replay knows only buckets of one dtype, and in the "
               "order of their gradients or parameters");
  }
  WEFT_CHECK(next == gradients.size(), Io, kOp, gradients.size() - next,
             " gradients are in no bucket");
  if (from_back) std::ranges::reverse(plan);
  return plan;
}

DdpTrace ddp_trace(const TracedSpans& traced) {
  DdpTrace trace;
  trace.has_thin_links = traced.has_thin_links;
  trace.all_reduce_computes = !traced.on_cuda;
  Spans spans;
  for (const TracedSpan& span : traced.spans) take(span, spans);
  bool sends = false, has_moments = false;
  for (const auto& [number, ranks] : spans) {
    for (const auto& [r, rank] : ranks) {
      sends |= !rank.buckets.empty();
      has_moments |= !rank.gradients.empty();
    }
  }
  WEFT_CHECK(
      sends, Io, kOp,
      "it has no step of DistributedDataParallel, fully_shard or a Pipeline; record one with "
      "--trace FILE of a program as mlp_ddp, char_transformer_fsdp or autoencoder_pipe_ddp "
      "under ./weft launch");
  WEFT_CHECK(has_moments, Io, kOp,
             "it does not say when each gradient was ready (spans 'gradient'), from which other "
             "buckets are made: an older weft recorded it; record it again with --trace FILE");
  const EngineWords words{
      "DDP", "gradients and buckets",
      "is of no bucket: a replay knows only DDP among all ranks, of whole layers"};
  const auto whole =
      whole_steps(traced, spans, words, [](const RankSpans& rank, const RankSpans& first) {
        return rank.is_whole() && bytes_of(rank) == bytes_of(first);
      });
  const RankSpans& last = whole.back()->second.begin()->second;
  trace.bucket_bytes = bytes_of(last);
  trace.bf16 = std::ranges::all_of(last.buckets, [](const auto& each) {
    return each.second.sent_bytes > 0 && 2 * each.second.sent_bytes <= each.second.bytes;
  });
  auto gradients = last.gradients;
  std::ranges::sort(gradients, {}, [](const auto& each) { return each.second; });
  for (const auto& [gradient, at] : gradients) trace.gradients.push_back(gradient);
  for (const auto* const step : whole) {
    if (bytes_of(step->second.begin()->second) == trace.bucket_bytes) {
      add_step(step->first, step->second, trace);
    }
  }
  WEFT_CHECK(!trace.steps.empty(), Io, kOp, "the ranks of no step have the same gradients");
  trace.recorded_order = order_of_buckets(trace);
  const BucketPlan plan = trace.recorded_plan();
  const TracedStep& latest = trace.steps.back();
  WEFT_CHECK(sends_when_ready(plan, latest), Io, kOp, "in step ", latest.number,
             " a bucket was sent before all of its gradients were ready, if buckets are in the "
             "order of their gradients or parameters: a replay knows only such");
  std::erase_if(trace.steps, [&](const TracedStep& step) { return !sends_when_ready(plan, step); });
  trace.link = fit_link(trace);
  return trace;
}

}  // namespace weft::simulator
