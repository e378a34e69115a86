#include "weft/parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/parallel/run_by_hand.h"

namespace weft::parallel {
namespace {

using Kind = Action::Kind;
using Ints = std::vector<int>;

constexpr Recompute kModes[] = {Recompute::never, Recompute::except_last, Recompute::always};

// The schedules of all generators for p devices.
std::vector<Schedule> schedules(int p, int m, Recompute recompute) {
  std::vector<Schedule> all = {gpipe(p, m, recompute), one_f_one_b(p, m, recompute),
                               zero_bubble_h1(p, m, recompute), zero_bubble_v(p, m, recompute)};
  if (m >= 2 * p) all.push_back(dual_pipe_v(p, m, recompute));
  for (const int per_device : {1, 2, 3}) {
    all.push_back(interleaved_one_f_one_b(p, per_device, m, recompute));
  }
  return all;
}

Schedule mine(int stages, int micro_batches, const std::string& lists) {
  return parse_schedule("weft schedule mine stages " + std::to_string(stages) + " micro-batches " +
                        std::to_string(micro_batches) + "\n" + lists);
}

void expect_refused(int stages, int micro_batches, const std::string& lists,
                    const std::string& text) {
  SCOPED_TRACE(lists);
  EXPECT_WEFT_ERROR(check(mine(stages, micro_batches, lists)), InvalidArgument, text);
}

bool refuses(const Schedule& schedule) {
  try {
    check(schedule);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    return true;
  }
}

TEST(ScheduleTest, GPipe) {
  const std::string text =
      "weft schedule gpipe stages 3 micro-batches 4\n"
      "0: F0.0 F0.1 F0.2 F0.3 B0.3 B0.2 B0.1 B0.0\n"
      "1: F1.0 F1.1 F1.2 F1.3 B1.3 B1.2 B1.1 B1.0\n"
      "2: F2.0 F2.1 F2.2 F2.3 B2.3 B2.2 B2.1 B2.0\n";
  EXPECT_EQ(to_string(gpipe(3, 4)), text);
  EXPECT_EQ(to_string(with_communication(gpipe(3, 4))),
            "weft schedule gpipe stages 3 micro-batches 4\n"
            "0: F0.0 >F0.0 F0.1 >F0.1 F0.2 >F0.2 F0.3 >F0.3 "
            "<B0.3 B0.3 <B0.2 B0.2 <B0.1 B0.1 <B0.0 B0.0\n"
            "1: <F1.0 F1.0 >F1.0 <F1.1 F1.1 >F1.1 <F1.2 F1.2 >F1.2 <F1.3 F1.3 >F1.3 "
            "<B1.3 B1.3 >B1.3 <B1.2 B1.2 >B1.2 <B1.1 B1.1 >B1.1 <B1.0 B1.0 >B1.0\n"
            "2: <F2.0 F2.0 <F2.1 F2.1 <F2.2 F2.2 <F2.3 F2.3 "
            "B2.3 >B2.3 B2.2 >B2.2 B2.1 >B2.1 B2.0 >B2.0\n");
  EXPECT_EQ(make_schedule("gpipe", 3, 4), parse_schedule(text));
}

TEST(ScheduleTest, OneForwardOneBackward) {
  EXPECT_EQ(to_string(one_f_one_b(4, 4)),
            "weft schedule 1f1b stages 4 micro-batches 4\n"
            "0: F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3\n"
            "1: F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 B1.2 B1.3\n"
            "2: F2.0 F2.1 B2.0 F2.2 B2.1 F2.3 B2.2 B2.3\n"
            "3: F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F3.3 B3.3\n");
  const std::string longer = to_string(make_schedule("1f1b", 4, 8));
  EXPECT_HAS(longer,
             "\n0: F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 F0.6 B0.3 F0.7 B0.4 "
             "B0.5 B0.6 B0.7\n");
  EXPECT_EQ(to_string(with_communication(one_f_one_b(3, 2))),
            "weft schedule 1f1b stages 3 micro-batches 2\n"
            "0: F0.0 >F0.0 F0.1 >F0.1 <B0.0 B0.0 <B0.1 B0.1\n"
            "1: <F1.0 F1.0 >F1.0 <F1.1 F1.1 >F1.1 <B1.0 B1.0 >B1.0 <B1.1 B1.1 >B1.1\n"
            "2: <F2.0 F2.0 B2.0 >B2.0 <F2.1 F2.1 B2.1 >B2.1\n");
}

TEST(ScheduleTest, Interleaved) {
  EXPECT_EQ(to_string(interleaved_one_f_one_b(2, 2, 4)),
            "weft schedule interleaved stages 4 micro-batches 4\n"
            "0: F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3\n"
            "1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3\n");
  EXPECT_EQ(to_string(with_communication(make_schedule("interleaved", 4, 2, Recompute::never, 2))),
            "weft schedule interleaved stages 4 micro-batches 2\n"
            "0: F0.0 >F0.0 F0.1 >F0.1 <F2.0 F2.0 >F2.0 <F2.1 F2.1 >F2.1 "
            "<B2.0 B2.0 >B2.0 <B2.1 B2.1 >B2.1 <B0.0 B0.0 <B0.1 B0.1\n"
            "1: <F1.0 F1.0 >F1.0 <F1.1 F1.1 >F1.1 <F3.0 F3.0 B3.0 >B3.0 <F3.1 F3.1 B3.1 >B3.1 "
            "<B1.0 B1.0 >B1.0 <B1.1 B1.1 >B1.1\n");
  // Rounds of three and two micro-batches.
  EXPECT_EQ(to_string(interleaved_one_f_one_b(2, 2, 5)),
            "weft schedule interleaved stages 4 micro-batches 5\n"
            "0: F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4 B2.2 F2.3 B0.0 F2.4 B0.1 B0.2 "
            "B2.3 B2.4 B0.3 B0.4\n"
            "1: F1.0 F1.1 F1.2 F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F1.3 B1.0 F1.4 B1.1 F3.3 B1.2 F3.4 "
            "B3.3 B3.4 B1.3 B1.4\n");
  Schedule one_stage_each = interleaved_one_f_one_b(4, 1, 6);
  one_stage_each.name = "1f1b";
  EXPECT_EQ(one_stage_each, one_f_one_b(4, 6));
}

TEST(ScheduleTest, ZeroBubbleH1) {
  EXPECT_EQ(to_string(zero_bubble_h1(3, 4)),
            "weft schedule zb-h1 stages 3 micro-batches 4\n"
            "0: F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3\n"
            "1: F1.0 F1.1 I1.0 F1.2 I1.1 W1.0 F1.3 I1.2 W1.1 I1.3 W1.2 W1.3\n"
            "2: F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 W2.2 W2.3\n");
  EXPECT_EQ(to_string(with_communication(make_schedule("zb-h1", 3, 2))),
            "weft schedule zb-h1 stages 3 micro-batches 2\n"
            "0: F0.0 >F0.0 F0.1 >F0.1 <B0.0 I0.0 W0.0 <B0.1 I0.1 W0.1\n"
            "1: <F1.0 F1.0 >F1.0 <F1.1 F1.1 >F1.1 <B1.0 I1.0 >B1.0 <B1.1 I1.1 >B1.1 W1.0 W1.1\n"
            "2: <F2.0 F2.0 I2.0 >B2.0 <F2.1 F2.1 I2.1 >B2.1 W2.0 W2.1\n");
}

// The last device has two neighbouring stages: nothing is sent between them.
TEST(ScheduleTest, ZeroBubbleV) {
  EXPECT_EQ(to_string(zero_bubble_v(2, 3)),
            "weft schedule zb-v stages 4 micro-batches 3\n"
            "0: F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 F3.2 I3.2 W3.2 I0.1 W0.1 "
            "I0.2 W0.2\n"
            "1: F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 W2.1 I1.1 I2.2 I1.2 W1.1 "
            "W2.2 W1.2\n");
  EXPECT_EQ(to_string(with_communication(make_schedule("zb-v", 4, 1))),
            "weft schedule zb-v stages 4 micro-batches 1\n"
            "0: F0.0 >F0.0 <F3.0 F3.0 I3.0 >B3.0 W3.0 <B0.0 I0.0 W0.0\n"
            "1: <F1.0 F1.0 F2.0 >F2.0 <B2.0 I2.0 W2.0 I1.0 >B1.0 W1.0\n");
}

TEST(ScheduleTest, DualPipeV) {
  EXPECT_EQ(to_string(dual_pipe_v(2, 4)),
            "weft schedule dualpipev stages 4 micro-batches 4\n"
            "0: F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 F0.3 B3.1 F3.2 B0.0 B3.2 F3.3 B0.1 B3.3 I0.2 "
            "W0.2 I0.3 W0.3\n"
            "1: F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 F2.2 B1.0 F1.3 B2.1 F2.3 B1.1 B2.2 B1.2 I2.3 I1.3 "
            "W2.3 W1.3\n");
  EXPECT_EQ(make_schedule("dualpipev", 2, 2), dual_pipe_v(1, 2));
  EXPECT_EQ(to_string(dual_pipe_v(1, 2, Recompute::except_last)),
            "weft schedule dualpipev stages 2 micro-batches 2\n"
            "0: F0.0 F1.0 F0.1 R1.0 B1.0 F1.1 R0.0 B0.0 B1.1 I0.1 W0.1\n");
}

// FNV-1a, as write_schedule_goldens.py has it.
std::string hash_of(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

TEST(ScheduleTest, SchedulesInAVArePyTorchs) {
  const auto goldens = nlohmann::json::parse(std::ifstream("tests/parallel/schedule_goldens.json"));
  for (const std::string text : goldens["whole"]) {
    const Schedule theirs = parse_schedule(text);
    EXPECT_EQ(to_string(make_schedule(theirs.name, theirs.stages, theirs.micro_batches)), text);
  }
  for (const auto& [name, hashes] : goldens["hashes"].items()) {
    ASSERT_EQ(hashes.size(), 8U);
    for (int p = 1; p <= 8; ++p) {
      ASSERT_EQ(hashes[p - 1].size(), 4U * p);
      for (int m = 1; m <= 4 * p; ++m) {
        SCOPED_TRACE(name + ", " + std::to_string(p) + " devices, " + std::to_string(m));
        const auto make = [&] { return to_string(make_schedule(name, 2 * p, m)); };
        const auto& theirs = hashes[p - 1][m - 1];
        if (theirs.is_null()) {
          EXPECT_WEFT_ERROR(make(), InvalidArgument, "expected at least " + std::to_string(2 * p));
        } else {
          EXPECT_EQ(hash_of(make()), theirs.get<std::string>()) << make();
        }
      }
    }
  }
}

// Torchgpipe's modes, in the last stage too. The gradient is received before R, so that it can
// travel meanwhile.
TEST(ScheduleTest, RecomputesBeforeTheBackward) {
  EXPECT_EQ(to_string(gpipe(2, 3, Recompute::except_last)),
            "weft schedule gpipe stages 2 micro-batches 3\n"
            "0: F0.0 F0.1 F0.2 B0.2 R0.1 B0.1 R0.0 B0.0\n"
            "1: F1.0 F1.1 F1.2 B1.2 R1.1 B1.1 R1.0 B1.0\n");
  EXPECT_EQ(to_string(with_communication(one_f_one_b(2, 2, Recompute::always))),
            "weft schedule 1f1b stages 2 micro-batches 2\n"
            "0: F0.0 >F0.0 F0.1 >F0.1 <B0.0 R0.0 B0.0 <B0.1 R0.1 B0.1\n"
            "1: <F1.0 F1.0 R1.0 B1.0 >B1.0 <F1.1 F1.1 R1.1 B1.1 >B1.1\n");
  EXPECT_EQ(to_string(zero_bubble_h1(2, 2, Recompute::except_last)),
            "weft schedule zb-h1 stages 2 micro-batches 2\n"
            "0: F0.0 F0.1 R0.0 I0.0 W0.0 I0.1 W0.1\n"
            "1: F1.0 R1.0 I1.0 F1.1 I1.1 W1.0 W1.1\n");
}

TEST(ScheduleTest, EveryScheduleIsValidAndReadsBack) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      for (const Recompute recompute : kModes) {
        for (const Schedule& plain : schedules(p, m, recompute)) {
          const Schedule sending = with_communication(plain);
          for (const Schedule* schedule : {&plain, &sending}) {
            const std::string text = to_string(*schedule);
            EXPECT_EQ(parse_schedule(text), *schedule) << text;
            std::size_t actions = 0;
            for (const auto& list : schedule->devices) actions += list.size();
            ScheduleCheck checked;
            ASSERT_NO_THROW(checked = check(*schedule)) << text;
            EXPECT_EQ(checked.order.size(), actions) << text;
            const bool in_a_v = plain.name == "zb-v" || plain.name == "dualpipev";
            for (int s = 0; s < plain.stages; ++s) {
              EXPECT_EQ(checked.device_of_stage[s], in_a_v ? std::min(s, 2 * p - 1 - s) : s % p);
            }
          }
        }
      }
    }
  }
}

// So one link per direction and kind is enough; messages need no tags.
TEST(ScheduleTest, ALinkReceivesInTheOrderInWhichItSends) {
  for (const int p : {1, 2, 3, 4, 6}) {
    for (const int m : {1, 2, 5, 12}) {
      for (const Schedule& plain : schedules(p, m, Recompute::except_last)) {
        const Schedule schedule = with_communication(plain);
        const Ints device_of = check(schedule).device_of_stage;
        // What the receiver gets, by sending device, receiving device and kind.
        std::map<std::tuple<int, int, Kind>, std::vector<Action>> sent, received;
        for (int d = 0; d < p; ++d) {
          for (const Action& a : schedule.devices[d]) {
            if (a.kind < Kind::send_activation) continue;
            const Action other = counterpart(a);
            const int other_device = device_of[other.stage];
            EXPECT_EQ(counterpart(other), a);
            if (a.kind == Kind::send_activation || a.kind == Kind::send_gradient) {
              sent[{d, other_device, other.kind}].push_back(other);
            } else {
              received[{other_device, d, a.kind}].push_back(a);
            }
          }
        }
        EXPECT_EQ(sent, received) << to_string(schedule);
      }
    }
  }
}

TEST(ScheduleTest, KeepsTheActivationsThatTheorySays) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      Ints of_1f1b;
      for (int s = 0; s < p; ++s) of_1f1b.push_back(std::min(p - s, m));
      const Ints none(p, 0), one(p, 1);

      ScheduleCheck checked = check(gpipe(p, m));
      EXPECT_EQ(checked.peak_activations, Ints(p, m));
      EXPECT_EQ(checked.peak_inputs, none);
      checked = check(gpipe(p, m, Recompute::always));
      EXPECT_EQ(checked.peak_activations, one);
      EXPECT_EQ(checked.peak_inputs, Ints(p, m));
      checked = check(gpipe(p, m, Recompute::except_last));
      EXPECT_EQ(checked.peak_activations, one);
      EXPECT_EQ(checked.peak_inputs, Ints(p, m - 1));

      checked = check(with_communication(one_f_one_b(p, m)));
      EXPECT_EQ(checked.peak_activations, of_1f1b);
      EXPECT_EQ(checked.peak_inputs, none);
      EXPECT_EQ(checked.peak_device_activations, of_1f1b);
      checked = check(one_f_one_b(p, m, Recompute::always));
      EXPECT_EQ(checked.peak_activations, one);
      EXPECT_EQ(checked.peak_inputs, of_1f1b);

      EXPECT_EQ(check(zero_bubble_h1(p, m)).peak_activations, Ints(p, std::min(p, m)));

      const Ints of_v = check(zero_bubble_v(p, m)).peak_device_activations;
      EXPECT_EQ(of_v[p - 1], std::min(2 * p, 2 * m));
      if (m >= 2 * p - 1) {
        EXPECT_EQ(of_v, Ints(p, 2 * p));
      }
      if (m >= 2 * p) {
        EXPECT_EQ(check(dual_pipe_v(p, m)).peak_device_activations, Ints(p, 2 * p + 1));
      }

      for (const int v : {2, 3}) {
        const int rounds = std::max(1, m / p);
        const int first_round = (m + rounds - 1) / rounds;
        Ints of_devices;  // one more than the warm-up
        for (int d = 0; d < p; ++d) {
          of_devices.push_back(std::min(m * v, 2 * (p - d - 1) + (v - 1) * first_round + 1));
        }
        EXPECT_EQ(check(interleaved_one_f_one_b(p, v, m)).peak_device_activations, of_devices);
      }
    }
  }
}

TEST(ScheduleTest, SizesAreLimited) {
  EXPECT_WEFT_ERROR(gpipe(0, 1), InvalidArgument, "gpipe: got 0 stages, expected 1 to 4096");
  EXPECT_WEFT_ERROR(one_f_one_b(4097, 1), InvalidArgument, "1f1b: got 4097 stages");
  EXPECT_WEFT_ERROR(zero_bubble_h1(2, 0), InvalidArgument,
                    "zb-h1: got 0 micro-batches, expected 1 to 65536");
  EXPECT_WEFT_ERROR(gpipe(1, 65537), InvalidArgument, "got 65537 micro-batches");
  EXPECT_WEFT_ERROR(gpipe(4096, 65536), InvalidArgument, "could need more than 1000000 actions");
  EXPECT_WEFT_ERROR(interleaved_one_f_one_b(-1, 2, 4), InvalidArgument, "got -1 devices");
  EXPECT_WEFT_ERROR(interleaved_one_f_one_b(2, 0, 4), InvalidArgument, "got 0 stages per device");
  EXPECT_WEFT_ERROR(zero_bubble_v(0, 1), InvalidArgument,
                    "zb-v: got 0 devices, expected 1 to 4096");
  EXPECT_WEFT_ERROR(zero_bubble_v(std::numeric_limits<int>::max(), 1), InvalidArgument,
                    "zb-v: got ");
  EXPECT_WEFT_ERROR(zero_bubble_v(2049, 1), InvalidArgument, "zb-v: got 4098 stages");
  EXPECT_WEFT_ERROR(zero_bubble_v(2048, 65536), InvalidArgument, "could need more than 1000000");
  EXPECT_WEFT_ERROR(dual_pipe_v(2, 0), InvalidArgument, "dualpipev: got 0 micro-batches");
  EXPECT_WEFT_ERROR(
      dual_pipe_v(2, 3), InvalidArgument,
      "dualpipev: got 3 micro-batches on 2 devices, expected at least 4, two for each "
      "device; zb-v takes fewer");
  Schedule schedule = gpipe(1, 1);
  for (const int wrong : {0, -1, 4097, std::numeric_limits<int>::max()}) {
    schedule.stages = wrong;
    EXPECT_WEFT_ERROR(check(schedule), InvalidArgument,
                      "got " + std::to_string(wrong) + " stages, expected 1 to 4096");
  }
  const Schedule largest = gpipe(4096, 61);
  EXPECT_EQ(parse_schedule(to_string(largest)), largest);
  EXPECT_EQ(check(largest).order.size(), 4096U * 61 * 2);
}

TEST(ScheduleTest, NamesAreOfferedWhenOneIsWrong) {
  const std::vector<std::string> names{
      "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev",
  };
  EXPECT_EQ(schedule_names(), names);
  EXPECT_WEFT_ERROR(make_schedule("gpip", 2, 2), InvalidArgument,
                    "got 'gpip', expected gpipe, 1f1b, interleaved");
  EXPECT_WEFT_ERROR(make_schedule("gpip", 2, 2), InvalidArgument,
                    " or " + names.back() + "; did you mean gpipe?");
  EXPECT_WEFT_ERROR(make_schedule("interleaved", 4, 4), InvalidArgument,
                    "got 4 stages on 0 devices, expected a number of devices that divides");
  EXPECT_WEFT_ERROR(make_schedule("interleaved", 4, 6, Recompute::never, 3), InvalidArgument,
                    "got 4 stages on 3 devices");
  EXPECT_WEFT_ERROR(make_schedule("1f1b", 4, 4, Recompute::never, 2), InvalidArgument,
                    "1f1b: got 4 stages on 2 devices, expected one stage per device");
  EXPECT_EQ(make_schedule("1f1b", 4, 4, Recompute::never, 4), one_f_one_b(4, 4));
  EXPECT_EQ(make_schedule("zb-v", 4, 4, Recompute::never, 2), zero_bubble_v(2, 4));
  EXPECT_WEFT_ERROR(make_schedule("zb-v", 4, 4, Recompute::never, 4), InvalidArgument,
                    "zb-v: got 4 stages on 4 devices, expected two stages per device");
  EXPECT_WEFT_ERROR(make_schedule("dualpipev", 5, 10), InvalidArgument,
                    "dualpipev: got 5 stages, expected an even number: two per device");
  EXPECT_EQ(stages_per_device("zb-h1"), 1);
  for (const std::string name : {"interleaved", "zb-v", "dualpipev"}) {
    EXPECT_EQ(stages_per_device(name), 2);
  }
  EXPECT_WEFT_ERROR(stages_per_device("dualpipe"), InvalidArgument, "did you mean dualpipev?");
  for (const Recompute mode : kModes) EXPECT_EQ(parse_recompute(to_string(mode)), mode);
  EXPECT_STREQ(to_string(Recompute::except_last), "except_last");
  EXPECT_WEFT_ERROR(parse_recompute("except-last"), InvalidArgument,
                    "got 'except-last' as what to recompute, expected never, except_last or "
                    "always; did you mean except_last?");
}

TEST(ScheduleTest, ReadsCommentsAndBlanks) {
  const Schedule schedule = parse_schedule(
      "# mine\n\n  weft\tschedule 1f1b stages 2 micro-batches 1\r\n"
      "0: F0.0\tB0.0#end\n   # between\n  1:   F1.0 B1.0");
  EXPECT_EQ(schedule, one_f_one_b(2, 1));
}

TEST(ScheduleTest, WhatCannotBeReadIsNamedByLineAndColumn) {
  const std::string first = "weft schedule mine stages 2 micro-batches 4\n";
  for (const std::string wrong :
       {"", "# nothing\n", "weft", "weft schedule stages 2 micro-batches 4",
        "weft schedule a b stages 2 micro-batches 4", "weft schedule a, stages 2 micro-batches 4",
        "weft schedule a stages 0 micro-batches 4", "weft schedule a stages -2 micro-batches 4",
        "weft schedule a stages 4097 micro-batches 4", "weft schedule a stages 2 micro-batches 4 5",
        "weft schedule a stages 2 micro-batches 65537", "0: F0.0"}) {
    EXPECT_WEFT_ERROR(parse_schedule(wrong), InvalidArgument,
                      "line 1: expected 'weft schedule NAME stages P micro-batches M'");
  }
  EXPECT_WEFT_ERROR(parse_schedule("\n \n0: F0.0\n"), InvalidArgument,
                    "line 3: expected 'weft schedule NAME");
  EXPECT_WEFT_ERROR(parse_schedule(first + "0: F0.0 Q0.1\n"), InvalidArgument,
                    "line 2, column 9: got 'Q0.1', expected F, B, I, W, R, >F, <F, >B or <B with "
                    "STAGE.MICRO-BATCH, as in F0.3");
  for (const std::string wrong : {"F", ">", "<", "F0", "F.0", "F0.", "F0.1.2", "F-0.1", "F+0.1",
                                  "F0.1,", "f0.1", ">R0.1", "F 0.1", "F0.99999999999"}) {
    EXPECT_WEFT_ERROR(parse_schedule(first + "0: " + wrong), InvalidArgument,
                      "line 2, column 4: got '");
  }
  EXPECT_WEFT_ERROR(
      parse_schedule(first + "0: F0.0\n1: B2.0"), InvalidArgument,
      "line 3, column 4: got 'B2.0', expected stages 0 to 1 and micro-batches 0 to 3; "
      "correct it, or the numbers in the first line");
  EXPECT_WEFT_ERROR(parse_schedule(first + "0: <F0.4"), InvalidArgument,
                    "line 2, column 4: got '<F0.4', expected stages 0 to 1 and");
  EXPECT_WEFT_ERROR(
      parse_schedule(first + "\n1: F0.0"), InvalidArgument,
      "line 3, column 1: got '1:', expected '0:' and that device's actions, on one line");
  EXPECT_WEFT_ERROR(parse_schedule(first + "0: F0.0\nF0.1 F0.2"), InvalidArgument,
                    "line 3, column 1: got 'F0.1', expected '1:'");
  EXPECT_WEFT_ERROR(
      parse_schedule(first + "0: \x01\xff" + std::string(1, '\0') + std::string(100, 'x')),
      InvalidArgument, "got '???xxxxxxxxxxxxxxxxxxxxx...', expected F");
}

TEST(ScheduleTest, WhatIsReadIsLimited) {
  const std::string first = "weft schedule mine stages 2 micro-batches 4\n";
  std::string text = first + "0:";
  for (int i = 0; i <= kMostActions; ++i) text += " F0.0";
  {
    testing::CheapScope cheap;
    EXPECT_WEFT_ERROR(parse_schedule(text), InvalidArgument, "at most 1000000 actions are read");
  }
  text = first + "0:";
  while (text.size() < 32'000'000) text += " x";
  {
    testing::CheapScope cheap;
    EXPECT_WEFT_ERROR(parse_schedule(text), InvalidArgument, "line 2, column 4: got 'x', expected");
  }
  text = first;
  for (int i = 0; i <= kMostStages; ++i) text += std::to_string(i) + ":\n";
  EXPECT_WEFT_ERROR(parse_schedule(text), InvalidArgument,
                    "line 4098, column 1: got '4096:', at most 4096 devices are read");
  EXPECT_WEFT_ERROR(parse_schedule(std::string((32 << 20) + 1, ' ')), InvalidArgument,
                    "got 33554433 bytes, at most 33554432 are read");
}

TEST(ScheduleTest, ANameThatCannotBeReadBackIsNotWritten) {
  Schedule schedule = gpipe(1, 1);
  const std::vector<std::string> wrong = {"", "two words", "a#b", "a\nb", std::string(65, 'a')};
  for (const std::string& name : wrong) {
    schedule.name = name;
    EXPECT_WEFT_ERROR(to_string(schedule), InvalidArgument, "expected up to 64 letters");
  }
  schedule.name = "My-own_1.2";
  EXPECT_EQ(parse_schedule(to_string(schedule)), schedule);
}

TEST(ScheduleTest, AnIncompleteScheduleIsRefused) {
  expect_refused(1, 2, "0: F0.0 B0.0 B0.1", "F0.1 is missing; add it on device 0");
  expect_refused(1, 2, "0: F0.0 F0.1 B0.0", "B0.1 is missing, or I and W in its place; add it");
  expect_refused(1, 1, "0: F0.0 W0.0",
                 "I0.0 is missing, without which there is no W0.0 (device 0, action 2)");
  expect_refused(1, 1, "0: F0.0 I0.0",
                 "W0.0 is missing, which completes I0.0 (device 0, action 2); add it on device 0");
  expect_refused(2, 1, "0: F0.0 B0.0", "stage 1 of 2 is on no device");
  expect_refused(1, 1, "", "stage 0 of 1 is on no device");
  expect_refused(1, 1, "0: F0.0 B0.0\n1:", "device 1 has nothing to do; leave it out");
}

TEST(ScheduleTest, WhatIsTooMuchIsRefused) {
  expect_refused(1, 1, "0: F0.0 B0.0 F0.0",
                 "F0.0 (device 0, action 3) stands twice, first F0.0 (device 0, action 1); leave "
                 "one out");
  expect_refused(1, 1, "0: F0.0 B0.0\n1: F0.0", "F0.0 (device 1, action 1) stands twice");
  expect_refused(2, 1, "0: F0.0 F1.0 B1.0\n1: B0.0",
                 "B0.0 (device 1, action 1): stage 0 is on device 0 already; put all its actions "
                 "on one device");
  for (const std::string part : {"I", "W"}) {
    expect_refused(1, 1, "0: F0.0 B0.0 " + part + "0.0",
                   "B0.0 (device 0, action 2) and " + part +
                       "0.0 (device 0, action 3) exclude each other: B is both I and W");
  }
}

TEST(ScheduleTest, WhatComesBeforeWhatItNeedsIsRefused) {
  expect_refused(1, 1, "0: B0.0 F0.0",
                 "B0.0 (device 0, action 1) comes before F0.0 (device 0, action 2), which it "
                 "needs; put it behind");
  expect_refused(1, 1, "0: F0.0 W0.0 I0.0",
                 "W0.0 (device 0, action 2) comes before I0.0 (device 0, action 3)");
  expect_refused(1, 1, "0: R0.0 F0.0 B0.0", "R0.0 (device 0, action 1) comes before F0.0");
  expect_refused(1, 1, "0: F0.0 B0.0 R0.0", "B0.0 (device 0, action 2) comes before R0.0");
  expect_refused(2, 1, "0: F1.0 F0.0 B1.0 B0.0", "F1.0 (device 0, action 1) comes before F0.0");
  expect_refused(2, 1, "0: F0.0 F1.0 I0.0 B1.0 W0.0",
                 "I0.0 (device 0, action 3) comes before B1.0");
  expect_refused(2, 1, "0: F0.0 >F0.0 <B0.0 B0.0\n1: F1.0 <F1.0 B1.0 >B1.0",
                 "F1.0 (device 1, action 1) comes before <F1.0 (device 1, action 2)");
  expect_refused(2, 1, "0: >F0.0 F0.0 <B0.0 B0.0\n1: <F1.0 F1.0 B1.0 >B1.0",
                 ">F0.0 (device 0, action 1) comes before F0.0 (device 0, action 2)");
  expect_refused(2, 1, "0: F0.0 >F0.0 <B0.0 B0.0\n1: <F1.0 F1.0 >B1.0 I1.0 W1.0",
                 ">B1.0 (device 1, action 3) comes before I1.0 (device 1, action 4)");
}

TEST(ScheduleTest, ASendHasItsReceive) {
  expect_refused(2, 1, "0: F0.0 >F0.0 <B0.0 B0.0\n1: F1.0 B1.0 >B1.0",
                 "<F1.0 is missing, the receive of >F0.0 (device 0, action 2); add it on device 1");
  expect_refused(2, 1, "0: F0.0 >F0.0 <B0.0 B0.0\n1: <F1.0 F1.0 B1.0",
                 ">B1.0 is missing, the send of <B0.0 (device 0, action 3); add it on device 1");
  expect_refused(2, 1, "0: F0.0 >F0.0 B0.0\n1: <F1.0 F1.0 B1.0",
                 ">B1.0 is missing and so is <B0.0, in a schedule that sends; add it on device 1");
  expect_refused(2, 1, "0: F0.0 >F0.0 F1.0 B1.0 B0.0",
                 ">F0.0 (device 0, action 2): stages 0 and 1 are both on device 0; leave it out");
  expect_refused(1, 1, "0: <F0.0 F0.0 B0.0",
                 "<F0.0 (device 0, action 1) has no stage on its other side; leave it out");
  expect_refused(1, 1, "0: F0.0 <B0.0 B0.0", "<B0.0 (device 0, action 2) has no stage on its");
  EXPECT_WEFT_ERROR(with_communication(with_communication(gpipe(2, 1))), InvalidArgument,
                    "gpipe sends and receives already: >F0.0; take it as it is");
  EXPECT_WEFT_ERROR(counterpart({Kind::forward, 0, 1}), InvalidArgument,
                    "F0.1 neither sends nor receives");
}

TEST(ScheduleTest, ADeadlockIsToldAsACircle) {
  expect_refused(
      2, 2, "0: F0.0 B0.0 F0.1 B0.1\n1: F1.0 F1.1 B1.0 B1.1",
      "deadlock: B0.0 (device 0, action 2) waits for B1.0 (device 1, action 3); before that F1.1 "
      "(device 1, action 2) waits for F0.1 (device 0, action 3); before that stands B0.0 (device "
      "0, "
      "action 2); on one of these devices put what is waited for before what waits");
  expect_refused(2, 2,
                 "0: F0.0 >F0.0 <B0.0 B0.0 F0.1 >F0.1 <B0.1 B0.1\n"
                 "1: <F1.1 F1.1 <F1.0 F1.0 B1.1 >B1.1 B1.0 >B1.0",
                 "deadlock: B0.0 (device 0, action 4) waits for >B1.0 (device 1, action 8); "
                 "before that F1.1 (device 1, action 2) waits for >F0.1 (device 0, action 6)");

  // Twelve devices that each run their second stage first.
  std::string lists;
  for (int d = 0; d < 12; ++d) {
    lists += std::to_string(d) + ":";
    for (const char kind : {'F', 'B'}) {
      for (const int stage : {d + 12, d}) {
        lists += std::string(" ") + kind + std::to_string(stage) + ".0";
      }
    }
    lists += '\n';
  }
  expect_refused(24, 1, lists,
                 "deadlock: F12.0 (device 0, action 1) waits for F11.0 (device 11, action 2); "
                 "before that F23.0 (device 11, action 1) waits for F22.0");
  expect_refused(24, 1, lists,
                 "; before that 4 more devices wait; before that stands F12.0 (device 0, ");
}

TEST(ScheduleTest, AFileIsReadAndCheckedAndItsLinesAreNamed) {
  const testing::TempFolder folder;
  const std::string file = folder.path("mine");
  const auto load = [&](const std::string& lists) {
    testing::write_file(file, "# mine\nweft schedule mine stages 2 micro-batches 1\n" + lists);
    return load_schedule(file);
  };
  EXPECT_EQ(load("0: F0.0 B0.0\n1: F1.0 B1.0").devices, one_f_one_b(2, 1).devices);
  EXPECT_WEFT_ERROR(load("0: F0.0 B0.0\n\n1: B1.0 F1.0"), InvalidArgument,
                    "B1.0 (device 1, action 1; line 5, column 4) comes before F1.0 (device 1, "
                    "action 2; line 5, column 9)");
  EXPECT_WEFT_ERROR(load("0: F0.0 B0.0\n\n1: F1.0"), InvalidArgument,
                    "B1.0 is missing, or I and W in its place; add it on device 1, in line 5");
  EXPECT_WEFT_ERROR(load("0: F0.0 G0.0"), InvalidArgument, "line 3, column 9: got 'G0.0'");
  EXPECT_WEFT_ERROR(load("0: F0.0 G0.0"), InvalidArgument, " in " + file);
  EXPECT_WEFT_ERROR(load_schedule(folder.path("nothing")), Io, "cannot read " + folder.path(""));
  EXPECT_WEFT_ERROR(load_schedule(folder.root()), Io, "cannot read ");
}

// Every changed schedule is either refused, or it runs.
TEST(ScheduleTest, NoMutantSlipsThrough) {
  std::vector<Schedule> schedules;
  for (const Schedule& plain :
       {gpipe(2, 3, Recompute::except_last), one_f_one_b(3, 3), zero_bubble_h1(3, 3),
        zero_bubble_h1(2, 2, Recompute::always), interleaved_one_f_one_b(2, 2, 2),
        zero_bubble_v(2, 2), dual_pipe_v(1, 3)}) {
    schedules.push_back(plain);
    schedules.push_back(with_communication(plain));
  }
  int refused = 0, ran = 0;
  for (const Schedule& schedule : schedules) {
    const StageCosts costs = equal_costs(schedule.stages, 1, 1, 1);
    const int devices = static_cast<int>(schedule.devices.size());
    for (int d = 0; d < devices; ++d) {
      const std::vector<Action>& list = schedule.devices[d];
      for (std::size_t i = 0; i < list.size(); ++i) {
        Schedule mutant = schedule;
        mutant.devices[d].erase(mutant.devices[d].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_EQ(refuses(mutant), list[i].kind != Kind::recompute) << to_string(mutant);
        for (int other = 0; other < devices; ++other) {
          mutant = schedule;
          mutant.devices[other].push_back(list[i]);
          EXPECT_TRUE(refuses(mutant)) << to_string(mutant);
          const std::vector<Action>& others = schedule.devices[other];
          for (std::size_t j = 0; j < others.size(); ++j) {
            mutant = schedule;
            std::swap(mutant.devices[d][i], mutant.devices[other][j]);
            const bool runs = d == other && testing::run_by_hand(mutant, costs).has_value();
            EXPECT_EQ(refuses(mutant), !runs) << to_string(mutant);
            ++(runs ? ran : refused);
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(ran, 300);
}

}  // namespace
}  // namespace weft::parallel
