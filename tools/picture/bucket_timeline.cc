#include "weft/tools/picture/bucket_timeline.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/tools/json_file.h"
#include "weft/tools/picture/drawing.h"
#include "weft/train/pictures.h"

namespace weft::picture {
namespace {

using nlohmann::json;

constexpr const char* kOp = "bucket_timeline";
constexpr std::size_t kMostBuckets = 65536;

// --- Reading -------------------------------------------------------------------------------------

Interval interval_of(const json& event) {
  const double begin = event.at("ts"), length = event.at("dur");
  WEFT_CHECK(begin >= 0 && length >= 0, Io, kOp, "a span begins at ", begin, " us and lasts ",
             length, " us");
  return {begin / 1000, (begin + length) / 1000};
}

bool within(const Interval& inner, const Interval& outer) {
  return inner.begin >= outer.begin && inner.end <= outer.end;
}

// 2 of "bucket 2" at the end of a module path.
std::optional<std::size_t> bucket_number(const json& event) {
  const std::string module = event.at("args").value("module", "");
  const std::size_t at = module.rfind("bucket ");
  if (event.at("cat") != "comm" || at == std::string::npos) return {};
  const char* const end = module.data() + module.size();
  std::size_t number = 0;
  const auto [stop, error] = std::from_chars(module.data() + at + 7, end, number);
  return stop == end && error == std::errc() ? std::optional(number) : std::nullopt;
}

// Adds what the event says of its rank. Spans stand in the order in which they end: of those within
// each other the outermost comes last.
void take(const json& event, RankTimes& rank) {
  const std::string category = event.at("cat"), name = event.at("name");
  const Interval times = interval_of(event);
  const json& args = event.at("args");
  if (category == "forward") rank.forward = times;
  if (category == "phase" && name == "backward") rank.backward = times;
  if (category == "backward") rank.rules.push_back(times);
  if (category == "optim") rank.optimizer = times;
  if (name == "wait for buckets") rank.waiting = times;
  const auto bucket = name == "send bucket" ? std::optional(args.at("bucket").get<std::size_t>())
                                            : bucket_number(event);
  if (!bucket) return;
  WEFT_CHECK(*bucket < kMostBuckets, InvalidArgument, kOp, "got bucket ", *bucket,
             ", expected less than ", kMostBuckets);
  if (rank.buckets.size() <= *bucket) rank.buckets.resize(*bucket + 1);
  BucketTimes& of_bucket = rank.buckets[*bucket];
  of_bucket.bytes = args.at("bytes");
  if (name == "send bucket") {
    of_bucket.sent = times.begin;
  } else {
    of_bucket.reduction = times;
  }
}

bool is_whole(const RankTimes& rank) {
  return rank.forward.end > 0 && rank.backward.end > 0 && rank.optimizer.end > rank.forward.begin &&
         !rank.buckets.empty() && std::ranges::all_of(rank.buckets, [](const BucketTimes& bucket) {
           return bucket.sent > 0 && bucket.reduction.end > 0;
         });
}

void shift(Interval& times, double by) {
  times.begin += by;
  times.end += by;
}

void count_from_begin(StepTimes& step) {
  double begin = step.ranks[0].forward.begin;
  for (const RankTimes& rank : step.ranks) begin = std::min(begin, rank.forward.begin);
  for (RankTimes& rank : step.ranks) {
    std::erase_if(rank.rules, [&](const Interval& rule) { return !within(rule, rank.backward); });
    for (Interval* times : {&rank.forward, &rank.backward, &rank.waiting, &rank.optimizer}) {
      shift(*times, -begin);
    }
    for (Interval& rule : rank.rules) shift(rule, -begin);
    for (BucketTimes& bucket : rank.buckets) {
      bucket.sent -= begin;
      shift(bucket.reduction, -begin);
    }
  }
}

using Steps = std::map<std::int64_t, std::map<std::int64_t, RankTimes>>;  // by step and rank

Steps steps_of(const json& trace) {
  Steps steps;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X" || !event.at("args").contains("step")) continue;
    take(event, steps[event.at("args").at("step")][event.at("pid")]);
  }
  return steps;
}

}  // namespace

double StepTimes::end() const {
  double last = 0;
  for (const RankTimes& rank : ranks) last = std::max(last, rank.optimizer.end);
  return last;
}

StepTimes read_step(const std::string& path, std::int64_t wanted) {
  Steps steps = tools::read_json(path, kOp, "no trace that --trace wrote", steps_of);
  std::size_t ranks = 0;
  for (const auto& [number, of_ranks] : steps) ranks = std::max(ranks, of_ranks.size());
  std::vector<StepTimes> whole;
  for (auto& [number, of_ranks] : steps) {
    StepTimes step{.step = number};
    for (auto& [rank, times] : of_ranks) {
      if (is_whole(times)) step.ranks.push_back(std::move(times));
    }
    if (step.ranks.size() != ranks || (wanted >= 0 && number != wanted)) continue;
    count_from_begin(step);
    whole.push_back(std::move(step));
  }
  WEFT_CHECK(!whole.empty(), InvalidArgument, kOp, path, " has no whole step ",
             wanted < 0 ? "" : std::to_string(wanted) + " ",
             "of DistributedDataParallel: needs forward, backward with its buckets and optimizer "
             "of every rank");
  const auto sizes = [](const StepTimes& step) {
    std::vector<std::int64_t> bytes;
    for (const BucketTimes& bucket : step.ranks[0].buckets) bytes.push_back(bucket.bytes);
    return bytes;
  };
  const auto last = sizes(whole.back());
  std::erase_if(whole, [&](const StepTimes& step) { return sizes(step) != last; });
  const auto middle = whole.begin() + std::ssize(whole) / 2;
  std::ranges::nth_element(whole, middle, {}, &StepTimes::end);
  return *middle;
}

// --- Drawing -------------------------------------------------------------------------------------

namespace {

using train::Canvas;
using train::Color;

constexpr Color kForward{196, 214, 236}, kBackward{226, 230, 238}, kRule{126, 160, 206};
constexpr Color kOptimizer{206, 196, 226}, kWaiting{240, 190, 180};
constexpr std::array<Color, 6> kBuckets = {
    {{40, 140, 70}, {214, 130, 20}, {150, 60, 150}, {31, 130, 150}, {190, 60, 60}, {120, 110, 40}}};

constexpr int kWidth = 1000, kLeft = 104, kRight = 28, kTop = 92;
constexpr int kBar = 30, kBetween = 22, kRow = 2 * kBar + kBetween, kRankGap = 30;

class TimelineDrawing {
 public:
  explicit TimelineDrawing(const StepTimes& times)
      : times_(times),
        bottom_(kTop + static_cast<int>(times.ranks.size()) * (kRow + kRankGap)),
        canvas_(kWidth, bottom_ + 64, kWhite) {}

  io::Image draw() {
    draw_axis();
    for (std::size_t r = 0; r < times_.ranks.size(); ++r) draw_rank(static_cast<int>(r));
    draw_legend();
    return canvas_.image();
  }

 private:
  int at(double ms) const {
    const double part = std::clamp(ms / times_.end(), 0.0, 1.0);
    return kLeft + static_cast<int>(std::lround(part * (kWidth - kLeft - kRight)));
  }

  void draw_axis() {
    for (const double tick : train::axis_ticks(0, times_.end(), 8)) {
      canvas_.fill(at(tick), kTop - 12, 1, bottom_ - kTop + 12, kGrid);
      text_centred(canvas_, at(tick), bottom_ + 8, detail::concat(tick), kFaint);
    }
    canvas_.text(kLeft, bottom_ + 34, "milliseconds from the beginning of forward", kInk);
  }

  void bar(const Interval& times, int y, Color color) {
    canvas_.fill(at(times.begin), y, std::max(at(times.end) - at(times.begin), 1), kBar, color);
  }

  // Where there is room for it.
  void label(const Interval& times, int y, const std::string& text, Color color) {
    const int width = at(times.end) - at(times.begin);
    if (Canvas::text_width(text) + 4 > width) return;
    text_centred(canvas_, at(times.begin) + width / 2, y + (kBar - Canvas::kTextHeight) / 2, text,
                 color);
  }

  void draw_rank(int r) {
    const RankTimes& rank = times_.ranks[static_cast<std::size_t>(r)];
    const int computing = kTop + r * (kRow + kRankGap), sending = computing + kBar + kBetween;
    const int text = (kBar - Canvas::kTextHeight) / 2;
    canvas_.text(12, computing + text, "rank " + std::to_string(r), kInk);
    canvas_.text(12, sending + text, "all-reduce", kFaint);
    bar(rank.forward, computing, kForward);
    bar(rank.backward, computing, kBackward);
    for (const Interval& rule : rank.rules) {
      bar(rule, computing, kRule);
      canvas_.fill(at(rule.end), computing, 1, kBar, kBackward);
    }
    bar(rank.waiting, computing, kWaiting);
    bar(rank.optimizer, computing, kOptimizer);
    for (std::size_t b = 0; b < rank.buckets.size(); ++b) {
      const BucketTimes& bucket = rank.buckets[b];
      const Color color = kBuckets[b % kBuckets.size()];
      canvas_.line(at(bucket.sent), computing + kBar, at(bucket.reduction.begin), sending, 1.5,
                   color);
      bar(bucket.reduction, sending, color);
      label(bucket.reduction, sending, std::to_string(b), kWhite);
    }
  }

  void draw_legend() {
    canvas_.text(kLeft, 12, "step " + std::to_string(times_.step), kInk);
    int end = kWidth - kRight;
    const auto entry = [&](const std::string& name, Color color, int y) {
      end -= Canvas::text_width(name);
      canvas_.text(end, y, name, kInk);
      canvas_.fill(end - 24, y + 2, 16, 14, color);
      end -= 24 + 18;
    };
    entry("optimizer", kOptimizer, 12);
    entry("waiting", kWaiting, 12);
    entry("between them", kBackward, 12);
    entry("operations of backward", kRule, 12);
    entry("forward", kForward, 12);
    end = kWidth - kRight;
    const auto& buckets = times_.ranks[0].buckets;
    for (std::size_t b = buckets.size(); b-- > 0;) {
      char mib[16];
      std::snprintf(mib, sizeof mib, "%.3g", static_cast<double>(buckets[b].bytes) / (1 << 20));
      entry(detail::concat(b, ": ", mib, " MiB"), kBuckets[b % kBuckets.size()], 42);
    }
    canvas_.text(kLeft, 42, "buckets", kInk);
  }

  const StepTimes& times_;
  const int bottom_;
  Canvas canvas_;
};

}  // namespace

io::Image bucket_picture(const StepTimes& times) { return TimelineDrawing(times).draw(); }

}  // namespace weft::picture
