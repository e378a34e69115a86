#include "weft/tools/picture/ring_steps.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/base/error.h"
#include "weft/tools/picture/drawing.h"

namespace weft::picture {
namespace {

constexpr const char* kOp = "ring_steps";

// --- Running -------------------------------------------------------------------------------------

// So many that the backend takes the ring, and few enough that a part is one message.
constexpr std::int64_t kNumbersInPart = 16384;

// What one rank saw.
struct RankLog {
  struct Exchange {
    std::vector<RankSet> before;
    RingMessage sent;
    bool adds;  // what comes
  };
  std::vector<Exchange> exchanges;
  std::vector<RankSet> result;
  std::int64_t bytes_sent = 0;
};

// Rank r's numbers are all 2^r, so that a sum shows whose numbers are in it.
class RecordedBackend final : public comm::Backend {
 public:
  RecordedBackend(std::unique_ptr<comm::Backend> ring, std::vector<std::int32_t>& x, RankLog& log)
      : Backend(ring->rank(), ring->size()), ring_(std::move(ring)), x_(x), log_(log) {}

  const char* name() const override { return "recorded"; }
  void abort() noexcept override { ring_->abort(); }

  void exchange(std::span<const comm::Outgoing> out, std::span<const comm::Incoming> in,
                const comm::Deadline& deadline) override {
    WEFT_CHECK(out.size() == 1 && in.size() == 1, Internal, kOp, "rank ", rank(), " sends ",
               out.size(), " messages at once and receives ", in.size());
    const RingMessage sent{rank(), out[0].to, part_at(out[0].bytes.data()), out[0].bytes.size()};
    log_.exchanges.push_back({parts(), sent, !holds(in[0].bytes.data())});
    ring_->exchange(out, in, deadline);
  }

  std::vector<RankSet> parts() const {
    std::vector<RankSet> sums;
    for (int p = 0; p < size(); ++p) {
      sums.push_back(static_cast<RankSet>(x_[static_cast<std::size_t>(p * kNumbersInPart)]));
    }
    return sums;
  }
  std::int64_t bytes_sent() const { return ring_->traffic().bytes_sent; }

 private:
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(x_)); }
  bool holds(const std::byte* place) const {
    return place >= bytes().data() && place < bytes().data() + bytes().size();
  }
  int part_at(const std::byte* place) const {
    WEFT_CHECK(holds(place), Internal, kOp, "rank ", rank(), " sends what is not in its buffer");
    return static_cast<int>((place - bytes().data()) / (kNumbersInPart * sizeof(std::int32_t)));
  }

  const std::unique_ptr<comm::Backend> ring_;
  const std::vector<std::int32_t>& x_;
  RankLog& log_;
};

}  // namespace

RingRun run_ring(int ranks) {
  WEFT_CHECK(ranks >= 2 && ranks <= kMostRanks, InvalidArgument, kOp, "got ", ranks,
             " ranks, can show 2 to ", kMostRanks);
  std::vector<RankLog> logs(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::ProcessGroup& group) {
    const auto meeting = std::make_shared<comm::PrefixStore>("ring", group.store());
    const comm::Deadline deadline(group.options().timeout);
    RankLog& log = logs[static_cast<std::size_t>(group.rank())];
    std::vector<std::int32_t> x(static_cast<std::size_t>(ranks * kNumbersInPart),
                                1 << group.rank());
    RecordedBackend backend(comm::ring_backend("127.0.0.1")(meeting, group.rank(), ranks, deadline),
                            x, log);
    backend.all_reduce({x.data(), std::ssize(x), DType::i32}, comm::ReduceOp::sum, deadline);
    log.result = backend.parts();
    log.bytes_sent = backend.bytes_sent();
  });

  RingRun run{.ranks = ranks, .buffer_bytes = static_cast<std::size_t>(ranks * kNumbersInPart) * 4};
  run.steps.resize(logs[0].exchanges.size());
  for (const RankLog& log : logs) {
    WEFT_CHECK(log.exchanges.size() == run.steps.size(), Internal, kOp, "ranks made ",
               log.exchanges.size(), " and ", run.steps.size(), " steps");
    run.result.push_back(log.result);
    run.bytes_sent.push_back(log.bytes_sent);
    for (std::size_t s = 0; s < run.steps.size(); ++s) {
      RingMessage message = log.exchanges[s].sent;
      message.added = logs[static_cast<std::size_t>(message.to)].exchanges[s].adds;
      run.steps[s].before.push_back(log.exchanges[s].before);
      run.steps[s].messages.push_back(message);
    }
  }
  return run;
}

// --- Drawing -------------------------------------------------------------------------------------

namespace {

using train::Canvas;
using train::Color;

constexpr Color kAdded{206, 92, 16}, kReplaced{40, 130, 70};
// By how many ranks' numbers are in a part, from one to all.
constexpr Color kOne{222, 232, 246}, kAll{164, 212, 176};
constexpr Color kMore{150, 186, 230};

constexpr int kBlockWidth = 50, kBlockHeight = 28, kArrow = 34, kStub = 26;
constexpr int kHeading = 28, kNames = 24, kPanelGap = 34, kMargin = 28;

// "abd"
std::string letters(RankSet set) {
  std::string text;
  for (int r = 0; r < kMostRanks; ++r) {
    if (set >> r & 1) text += static_cast<char>('a' + r);
  }
  return text;
}

class RingDrawing {
 public:
  explicit RingDrawing(const RingRun& run)
      : run_(run),
        columns_(run.ranks - 1),
        panel_width_(run.ranks * kBlockWidth + (run.ranks - 1) * kArrow + 2 * kStub),
        row_height_(kHeading + kNames + run.ranks * kBlockHeight + kPanelGap),
        canvas_(std::max(2 * kMargin + columns_ * (panel_width_ + kPanelGap) - kPanelGap,
                         2 * kMargin + panel_width_ + kPanelGap + kLegendWidth),
                kMargin + row_height_ * rows() + std::max(row_height_, kHeading + kLegendHeight),
                kWhite) {}

  io::Image draw() {
    for (std::size_t s = 0; s < run_.steps.size(); ++s) draw_step(static_cast<int>(s));
    const int top = kMargin + rows() * row_height_;
    canvas_.text(kMargin, top, "at the end", kInk);
    draw_parts(kMargin, top + kHeading, run_.result);
    draw_legend(kMargin + panel_width_ + kPanelGap, top + kHeading);
    return canvas_.image();
  }

 private:
  static constexpr int kLine = Canvas::kTextHeight + 6;
  static constexpr int kLegendWidth = 480, kLegendHeight = 6 * kLine;

  int rows() const { return (static_cast<int>(run_.steps.size()) + columns_ - 1) / columns_; }

  void draw_step(int s) {
    const RingStep& step = run_.steps[static_cast<std::size_t>(s)];
    const int left = kMargin + s % columns_ * (panel_width_ + kPanelGap);
    const int top = kMargin + s / columns_ * row_height_;
    const bool adds = step.messages[0].added;
    canvas_.text(left, top,
                 detail::concat("step ", s + 1, ": ", adds ? "reduce-scatter" : "all-gather"),
                 adds ? kAdded : kReplaced);
    draw_parts(left, top + kHeading, step.before);
    for (const RingMessage& message : step.messages) draw_message(left, top + kHeading, message);
  }

  int block_left(int left, int rank) const { return left + kStub + rank * (kBlockWidth + kArrow); }

  void draw_parts(int left, int top, const std::vector<std::vector<RankSet>>& parts) {
    for (int r = 0; r < run_.ranks; ++r) {
      const int x = block_left(left, r);
      text_centred(canvas_, x + kBlockWidth / 2, top, "rank " + std::to_string(r), kFaint);
      for (int p = 0; p < run_.ranks; ++p) {
        const RankSet set = parts[static_cast<std::size_t>(r)][static_cast<std::size_t>(p)];
        const int y = top + kNames + p * kBlockHeight;
        const std::string text = letters(set);
        const int ranks = static_cast<int>(text.size());
        canvas_.fill(x, y, kBlockWidth, kBlockHeight - 1,
                     ranks == run_.ranks ? kAll
                     : ranks > 1         ? kMore
                                         : kOne);
        text_centred(canvas_, x + kBlockWidth / 2, y + (kBlockHeight - Canvas::kTextHeight) / 2,
                     text, kInk);
      }
    }
  }

  // To the rank on the right; from the last one out of the picture, and in again on the left.
  void draw_message(int left, int top, const RingMessage& message) {
    const double y = top + kNames + message.part * kBlockHeight + (kBlockHeight - 1) / 2.0;
    const Color color = message.added ? kAdded : kReplaced;
    const int begin = block_left(left, message.from) + kBlockWidth;
    const int end = block_left(left, message.to);
    if (end > begin) return arrow(canvas_, begin + 3, y, end - 3, color);
    canvas_.line(begin + 3, y, begin + kStub - 3, y, 2.5, color);
    arrow(canvas_, end - kStub + 3, y, end - 3, color);
  }

  void draw_legend(int left, int top) {
    const int n = run_.ranks;
    std::string names;
    for (int r = 0; r < n; ++r) names += letters(1u << r) + (r + 1 < n ? ", " : "");
    const std::size_t bytes = run_.steps[0].messages[0].bytes;
    const auto sent = run_.bytes_sent[0];
    const auto say = [&](const std::string& text, int indent = 0) {
      canvas_.text(left + indent, top, text, kInk);
      top += kLine;
    };
    const auto explain = [&](const std::string& text, Color color) {
      arrow(canvas_, left, top + Canvas::kTextHeight / 2.0, left + kArrow, color);
      say(text, kArrow + 10);
    };
    explain("sent, and added by the next rank to its own", kAdded);
    explain("sent, and kept by the next rank in place of its own", kReplaced);
    say(names + ": numbers of rank 0, 1 ...; " + letters((1u << n) - 1) + ": the sum of all");
    say("each step as it begins; rows are the parts of the buffer");
    say(detail::concat("each rank sent ", run_.steps.size(), " messages of ", bytes, " bytes, ",
                       sent, " in all:"));
    say(detail::concat(static_cast<double>(sent) / static_cast<double>(run_.buffer_bytes),
                       " of its buffer's ", run_.buffer_bytes, " bytes; 2(n-1)/n is ",
                       2.0 * (n - 1) / n));
  }

  const RingRun& run_;
  const int columns_, panel_width_, row_height_;
  Canvas canvas_;
};

}  // namespace

io::Image ring_picture(const RingRun& run) { return RingDrawing(run).draw(); }

}  // namespace weft::picture
