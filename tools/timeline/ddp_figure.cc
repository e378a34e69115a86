// A step of DistributedDataParallel: two lanes a rank.
#include "weft/core/base/error.h"
#include "weft/tools/timeline/figures.h"

namespace weft::timeline {

using weft::detail::concat;

Figure ddp_figure(const picture::StepTimes& step) {
  constexpr Color kForward{210, 60, 78}, kBackward{215, 20, 84}, kRule{215, 55, 42};
  constexpr Color kWaiting{8, 75, 62}, kOptimizer{285, 38, 68}, kReduction{150, 45, 38};
  const double length = step.end();
  double waiting = 0;
  Figure figure{concat("Step ", step.step, " of DistributedDataParallel on ", step.ranks.size(),
                       " ranks, ", step.ranks[0].buckets.size(), " buckets")};
  Panel panel{"Measured: " + milliseconds(length / 1e3)};
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    const picture::RankTimes& rank = step.ranks[r];
    const auto bar = [](const picture::Interval& times, Color color, const std::string& text,
                        const std::string& what) {
      const double begin = times.begin / 1e3, end = times.end / 1e3;
      return Bar{
          begin, end, color, text,
          concat(what, "\nbegins at ", milliseconds(begin), ", takes ", milliseconds(end - begin))};
    };
    Row computing{concat("rank ", r)}, reducing{"all-reduce"};
    computing.bars = {bar(rank.forward, kForward, "forward", "forward"),
                      bar(rank.backward, kBackward, "", "backward, between its operations")};
    for (const picture::Interval& rule : rank.rules) {
      computing.bars.push_back(bar(rule, kRule, "", "an operation of backward"));
    }
    if (rank.waiting.end > rank.waiting.begin) {
      computing.bars.push_back(bar(rank.waiting, kWaiting, "wait", "wait for buckets"));
    }
    computing.bars.push_back(bar(rank.optimizer, kOptimizer, "optimizer", "optimizer"));
    double sent = 0;
    for (std::size_t b = 0; b < rank.buckets.size(); ++b) {
      const picture::BucketTimes& bucket = rank.buckets[b];
      reducing.bars.push_back(bar(bucket.reduction, kReduction, concat("bucket ", b),
                                  concat("bucket ", b, ": all_reduce of ", bucket.bytes,
                                         " bytes, ready at ", milliseconds(bucket.sent / 1e3))));
      sent += bucket.reduction.end - bucket.reduction.begin;
    }
    const double exposed = rank.waiting.end - rank.waiting.begin;
    waiting += exposed;
    reducing.note = "exposed " + percent(exposed / length);
    figure.facts.push_back(concat("Rank ", r, ": the all-reduces take ", milliseconds(sent / 1e3),
                                  "; ", milliseconds(exposed / 1e3),
                                  " of waiting for them are exposed communication, ",
                                  percent(exposed / length), " of the step."));
    panel.rows.push_back(std::move(computing));
    panel.rows.push_back(std::move(reducing));
  }
  const auto ranks = static_cast<double>(step.ranks.size());
  panel.title += ", exposed communication " + percent(waiting / ranks / length) + " on average";
  figure.legend = {{"forward", kForward},     {"backward", kBackward},
                   {"its operations", kRule}, {"wait for buckets", kWaiting},
                   {"optimizer", kOptimizer}, {"all_reduce of a bucket", kReduction}};
  figure.panels = {std::move(panel)};
  return figure;
}

}  // namespace weft::timeline
