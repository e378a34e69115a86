#include "weft/tools/simulate/replay/ddp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "weft/parallel/gradient_buckets.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tools/simulate/cost_terms.h"
#include "weft/tools/simulate/replay/parts.h"
#include "weft/tools/simulate/scaling.h"

namespace weft::simulator {
namespace {

BucketPlan plan_of(const DdpTrace& trace, const Setting& setting) {
  if (!setting.cap_mib && !setting.default_caps) return trace.recorded_plan();
  const parallel::BucketOrder kind = setting.order.value_or(trace.recorded_order);
  const std::vector<std::size_t> order = trace.in_order(kind);
  std::vector<parallel::GradientSize> sizes;
  for (const std::size_t i : order) {
    sizes.push_back({.bytes = static_cast<std::int64_t>(trace.gradients[i].bytes)});
  }
  std::vector<std::int64_t> limits = {parallel::kFirstBucketBytes,
                                      parallel::kDefaultBucketMb << 20};
  if (setting.cap_mib)
    limits = {static_cast<std::int64_t>(std::min(*setting.cap_mib * 0x1p20, 0x1p62))};
  BucketPlan plan = parallel::plan_buckets(sizes, limits);
  for (std::vector<std::size_t>& bucket : plan) {
    for (std::size_t& i : bucket) i = order[i];
  }
  // As the Reducer does: it plans buckets in the order of the parameters and sends the last one
  // first. So the first bucket's cap applies to the one that is sent last.
  if (kind == parallel::BucketOrder::reversed) std::ranges::reverse(plan);
  return plan;
}

// When each bucket may be sent: all its gradients are there, and the buckets before it are sent.
std::vector<double> complete(const BucketPlan& plan, const std::vector<double>& ready) {
  std::vector<double> times;
  double last = 0;
  for (const std::vector<std::size_t>& bucket : plan) {
    for (const std::size_t i : bucket) last = std::max(last, ready[i]);
    times.push_back(last);
  }
  return times;
}

// All-reduces whose bytes are moved by the cores that compute: while an all-reduce and computing
// run at the same time, each gets half of the cores' time.
class SharedCores {
 public:
  explicit SharedCores(bool shared) : shared_(shared) {}

  void send(double work) {
    if (shared_) left_.push_back(work);
    taken_.push_back(0);
  }
  // How long all-reduces hold up computing that needs `own` seconds alone, or computing that took
  // `both` seconds with them beside it.
  double beside_own(double own) { return take(std::min(pending(), own)); }
  double within(double both) { return take(std::min(pending(), both / 2)); }
  // How much longer each all-reduce lasts.
  const std::vector<double>& taken() const { return taken_; }

 private:
  double pending() const {
    return std::accumulate(left_.begin() + static_cast<std::ptrdiff_t>(front_), left_.end(), 0.0);
  }
  double take(double all) {
    for (double rest = all; rest > 0 && front_ < left_.size();) {
      const double part = std::min(rest, left_[front_]);
      taken_[front_] += part;
      left_[front_] -= part;
      rest -= part;
      if (left_[front_] <= 0) ++front_;
    }
    return all;
  }

  bool shared_;
  std::vector<double> left_, taken_;
  std::size_t front_ = 0;
};

Link ring_of(const Link& step, int ranks) {
  return all_reduce_link(
      AllReduce::ring, ranks,
      {.per_node = ranks, .inside = step, .between = {}, .ports = 1, .sources = {}});
}

// The seconds of a bucket's all-reduce, without those on a thin link.
double work_of(const DdpTrace& trace, const Setting& setting, double bytes) {
  const int ranks = setting.ranks > 0 ? setting.ranks : trace.ranks();
  return ring_of(link_of(trace.link, setting), ranks).seconds(trace.sent_bytes(setting, bytes));
}

// The seconds of a bucket's messages on the thin link. Small messages go to every rank; others go
// around the ring, where each rank sends only to the next one.
double thin_seconds(const Setting& setting, int ranks, double bytes) {
  if (!setting.thin_link) return 0;
  const double rate = setting.thin_link->bytes_per_second;
  if (bytes * ranks <= kDirectBytes) return bytes / rate;
  return is_in_ring(*setting.thin_link, ranks) ? 2.0 * (ranks - 1) / ranks * bytes / rate : 0;
}

// The time of a step under the setting, and how much of it is waiting.
ReplayedStep replay_step(const DdpTrace& trace, const TracedStep& step, const Setting& setting,
                         const BucketPlan& plan) {
  // When each gradient is ready on all ranks: the others wait for the slowest one.
  std::vector<double> ready(trace.gradients.size());
  double backward = 0, behind = 0;
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    const TracedRank& rank = step.ranks[r];
    const bool slow = static_cast<int>(r) == setting.slow_rank;
    const double by = slow ? setting.slow_by : 0, times = slow ? setting.slow_times : 1;
    const auto at = [&](double time) { return rank.forward + by + (time - rank.forward) * times; };
    for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = std::max(ready[i], at(rank.ready[i]));
    backward = std::max(backward, at(rank.backward));
    behind = std::max(behind, (rank.end - rank.waited) * times);
  }
  // The same without the time that the recorded all-reduces took from backward.
  const BucketPlan recorded = trace.recorded_plan();
  const std::vector<double> borders = complete(recorded, ready);
  SharedCores then(trace.all_reduce_computes);
  std::vector<double> pure = ready;
  for (std::size_t k = 0; k + 1 < borders.size(); ++k) {
    then.send(work_of(trace, {}, trace.bytes_of(recorded[k])));
    const double length = borders[k + 1] - borders[k];
    const double taken = then.within(length);
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (ready[i] <= borders[k]) continue;
      const double inside = std::min(ready[i], borders[k + 1]) - borders[k];
      pure[i] -= length > 0 ? taken * inside / length : 0;
    }
  }
  // The step with the all-reduces of the new plan, and with the time that they take from backward.
  const std::vector<double> sent = complete(plan, pure);
  SharedCores now(trace.all_reduce_computes && !setting.has_own_links());
  const int buckets = static_cast<int>(plan.size());
  parallel::StepCosts costs;
  costs.forward.resize(plan.size());
  costs.backward.resize(plan.size());
  costs.reduce.resize(plan.size());
  costs.forward[0] = std::min(backward, sent[0]);
  costs.optimizer = behind;
  const int ranks = setting.ranks > 0 ? setting.ranks : trace.ranks();
  for (std::size_t k = 0; k < plan.size(); ++k) {
    const std::size_t unit = plan.size() - 1 - k;  // the first bucket has the last layers
    const double own = sent[k] - (k > 0 ? sent[k - 1] : costs.forward[0]);
    costs.backward[unit] = own + now.beside_own(own);
    const double bytes = trace.bytes_of(plan[k]), work = work_of(trace, setting, bytes);
    now.send(work);
    costs.reduce[unit] = work + thin_seconds(setting, ranks, trace.sent_bytes(setting, bytes));
  }
  for (std::size_t k = 0; k < plan.size(); ++k) {
    costs.reduce[plan.size() - 1 - k] += now.taken()[k];
  }
  // All ranks have the same times, so one rank is simulated.
  const parallel::StepTimeline timeline = parallel::simulate(parallel::ddp_step(buckets, 1), costs);
  return {timeline.end, timeline.waiting[0]};
}

}  // namespace

std::string DdpTrace::model(const Setting& setting) const {
  const int size = setting.ranks > 0 ? setting.ranks : ranks();
  return concat(size, " ranks and ", gradients.size(), " gradients of ",
                static_cast<std::int64_t>(gradient_bytes()), " bytes in ",
                simulator::counted(plan_of(*this, setting).size(), "bucket"),
                setting.bf16 || bf16 ? ", sent as bf16" : "");
}

Replayed DdpTrace::replay(const Setting& setting) const {
  check_bf16(setting, bf16);
  const BucketPlan plan = plan_of(*this, setting);
  std::vector<ReplayedStep> all;
  for (const TracedStep& step : steps) all.push_back(replay_step(*this, step, setting, plan));
  return replayed(setting, static_cast<int>(plan.size()), all);
}

std::vector<std::string> DdpTrace::usual_settings() const {
  std::vector<std::string> texts = {"cap=0.25", "cap=1",          "cap=5",      "cap=default",
                                    "cap=inf",  "order=reversed", "order=given"};
  if (!bf16) texts.push_back("bf16");
  for (const int times : {2, 4}) texts.push_back(concat("ranks=", times * ranks()));
  return texts;
}

// Caps from a 64th of all gradients to all of them.
std::vector<train::LogLogChart> DdpTrace::charts() const {
  std::vector<double> caps;
  const double all = gradient_bytes() / 0x1p20;
  for (double cap = std::exp2(std::floor(std::log2(all / 64))); cap < 2 * all; cap *= 2) {
    caps.push_back(cap);
  }
  std::vector<train::PointCurve> curves;
  for (const char* order : {"arrival", "reversed", "given"}) {
    std::vector<Setting> settings;
    for (const double cap : caps) {
      settings.push_back(parse(concat("order=", order)));
      settings.back().cap_mib = cap;
    }
    curves.push_back(curve(order, caps, settings));
  }
  curves.push_back(curve("as recorded", caps, std::vector<Setting>(caps.size())));
  // Extrapolated, with links of another machine: where cores move the bytes, no cap can hide them
  // behind backward.
  std::vector<Setting> linked;
  for (const double cap : caps) {
    linked.push_back(parse("bandwidth=1GB/s"));
    linked.back().cap_mib = cap;
  }
  curves.push_back(curve("1 GB/s links", caps, linked));
  const std::vector<Setting> lines = {parse("recorded"), parse("cap=inf")};
  return {{concat("Predicted: DDP on ", ranks(), " ranks; extrapolated: its last line"),
           "bucket cap, MiB", "ms of a step", std::move(curves)},
          over_bandwidth(lines),
          over_ranks(lines)};
}

}  // namespace weft::simulator
