// Runs Backend::all_reduce() over the connections of the ring backend, once, between ranks that are
// threads, and prints as JSON what each exchange() sent: `traced_ring RANKS`.
//
// The numbers of rank r are all 2^r, so that a sum shows whose numbers are in it: bit r for rank r.
// "before" and "result" are such sums, by rank and part of the buffer. "added": the receiver adds
// the message to its own numbers, else it replaces them.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "weft/comm/backend/backends.h"
#include "weft/comm/group/process_group.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kOp = "traced_ring";
constexpr int kMostRanks = 5;
// Large enough that the backend uses the ring, and small enough that a part is one message.
constexpr std::int64_t kNumbersInPart = 16384;

// What one rank saw.
struct RankLog {
  struct Exchange {
    std::vector<std::int32_t> before;  // by part
    json sent;
    bool adds;  // whether the receiver adds the message
  };
  std::vector<Exchange> exchanges;
  std::vector<std::int32_t> result;
  std::int64_t bytes_sent = 0;  // as counted by the connections
};

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
    log_.exchanges.push_back({parts(),
                              {{"from", rank()},
                               {"to", out[0].to},
                               {"part", part_at(out[0].bytes.data())},
                               {"bytes", out[0].bytes.size()}},
                              !holds(in[0].bytes.data())});
    ring_->exchange(out, in, deadline);
  }

  std::vector<std::int32_t> parts() const {
    std::vector<std::int32_t> sums;
    for (int p = 0; p < size(); ++p) {
      sums.push_back(x_[static_cast<std::size_t>(p * kNumbersInPart)]);
    }
    return sums;
  }
  std::int64_t bytes_sent() const { return ring_->traffic().bytes_sent; }

 private:
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(x_)); }
  bool holds(const std::byte* place) const {
    return place >= bytes().data() && place < bytes().data() + bytes().size();
  }
  std::ptrdiff_t part_at(const std::byte* place) const {
    WEFT_CHECK(holds(place), Internal, kOp, "rank ", rank(), " sends what is not in its buffer");
    return (place - bytes().data()) / (kNumbersInPart * std::ptrdiff_t{sizeof(std::int32_t)});
  }

  const std::unique_ptr<comm::Backend> ring_;
  const std::vector<std::int32_t>& x_;
  RankLog& log_;
};

json run_ring(int ranks) {
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

  const std::size_t steps = logs[0].exchanges.size();
  json run = {{"ranks", ranks}, {"buffer_bytes", ranks * kNumbersInPart * 4}};
  for (const RankLog& log : logs) {
    WEFT_CHECK(log.exchanges.size() == steps, Internal, kOp, "ranks made ", log.exchanges.size(),
               " and ", steps, " steps");
    run["result"].push_back(log.result);
    run["bytes_sent"].push_back(log.bytes_sent);
    for (std::size_t s = 0; s < steps; ++s) {
      json message = log.exchanges[s].sent;
      message["added"] = logs[message["to"].get<std::size_t>()].exchanges[s].adds;
      run["steps"][s]["before"].push_back(log.exchanges[s].before);
      run["steps"][s]["messages"].push_back(message);
    }
  }
  return run;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    int ranks = 0;
    if (argc == 2) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), ranks);
    std::printf("%s\n", weft::run_ring(ranks).dump().c_str());
    weft::flush_stdout();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "traced_ring: error: %s\n", error.what());
    return 2;
  }
}
