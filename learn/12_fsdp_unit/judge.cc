// Judges exercise 12, and has typical wrong solutions of it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/learn/12_fsdp_unit/reference/reference.h"
#include "weft/learn/12_fsdp_unit/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"

namespace weft::learn {
namespace {

struct Three {
  void (*cut)(comm::ProcessGroup& group, Unit& unit);
  void (*gather)(comm::ProcessGroup& group, Unit& unit);
  void (*reduce)(comm::ProcessGroup& group, Unit& unit);
};

// The widths of a net's layers.
using Widths = std::vector<std::int64_t>;
using Tensors = std::vector<Tensor>;
using Numbers = std::vector<float>;

constexpr std::int64_t kRows = 2;  // of a rank
constexpr int kSteps = 2;

// Whole numbers other than 0. The gradients of the result are 12 times as large, so that all sums,
// and the means over up to 4 ranks, are exact in any order.
Tensor small(const Shape& shape, std::int64_t seed) {
  constexpr std::array<float, 4> kNumbers{-2, 1, 2, -1};
  Numbers values;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    values.push_back(kNumbers[(i * 3 + i / 5 + seed * 3) % 4]);
  }
  return from_vector(values, shape);
}

Tensors whole_parameters(const Widths& widths) {
  Tensors parameters;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::int64_t seed = static_cast<std::int64_t>(i);
    parameters.push_back(small({widths[i + 1], widths[i]}, seed).set_requires_grad());
    parameters.push_back(small({widths[i + 1]}, seed + 1).set_requires_grad());
  }
  return parameters;
}

// What a rank computes in a step: its rows through the net, and the gradient of the result.
Tensor forward(const Tensors& parameters, const Widths& widths, int rank, int step) {
  Tensor y = small({kRows, widths[0]}, rank + 2 * step + 1);
  for (std::size_t i = 0; i < parameters.size(); i += 2) {
    y = linear(y, parameters[i], parameters[i + 1]);
  }
  return y;
}
Tensor gradient_of_result(const Tensor& y, int rank, int step) {
  const Tensor dy = small(y.shape(), 2 * rank + step);
  raw::mul_(dy, 12);
  return dy;
}

// All numbers of the parameters, or of their gradients.
Numbers row_of(const Tensors& parameters, bool gradients) {
  Numbers row;
  for (const Tensor& p : parameters) {
    const Tensor x = gradients ? p.grad() : p.detach();
    const Numbers more = x.to_vector<float>();
    row.insert(row.end(), more.begin(), more.end());
  }
  return row;
}

// One process: all numbers before each step, and after the last, and the mean gradients.
struct Alone {
  std::vector<Numbers> before, means;
};
Alone alone(const Widths& widths, int n) {
  Alone result;
  const Tensors parameters = whole_parameters(widths);
  for (int step = 0; step < kSteps; ++step) {
    result.before.push_back(row_of(parameters, false));
    for (int rank = 0; rank < n; ++rank) {
      const Tensor y = forward(parameters, widths, rank, step);
      y.backward(gradient_of_result(y, rank, step));
    }
    Numbers means = row_of(parameters, true);
    for (float& x : means) x /= static_cast<float>(n);
    for (const Tensor& p : parameters) {
      raw::add_scaled_(p.detach(), -1.0 / n, p.grad());
      p.set_grad({});
    }
    result.means.push_back(means);
  }
  result.before.push_back(row_of(parameters, false));
  return result;
}

// What a rank should have, and what it has.
class Checks {
 public:
  Checks(const Unit& unit, int rank, int n, std::int64_t all)
      : unit_(unit),
        rank_(rank),
        n_(n),
        all_(all),
        each_((all + n - 1) / n),
        device_(thread_state().device),
        before_(memory_stats(device_).in_use_bytes) {}

  // Compares a part with its place in all numbers. `what_else(numbers)` explains a wrong part.
  template <class WhatElse>
  void part(const Tensor& got, const char* name, const Numbers& row,
            const WhatElse& what_else) const {
    require(got.defined(), "rank ", rank_, " has no ", name);
    require(got.shape() == Shape{each_}, "rank ", rank_, "'s ", name, " has shape ",
            to_string(got.shape()), ", expected [", each_, "]: all parts are as long, ", all_,
            " / ", n_, ", rounded up, and padded");
    const Numbers numbers = got.to_vector<float>();
    for (std::int64_t i = 0; i < each_; ++i) {
      const std::int64_t at = rank_ * each_ + i;
      const float right = at < all_ ? row[at] : 0;
      if (numbers[i] == right) continue;
      require(at < all_, "rank ", rank_, "'s ", name, " is ", numbers[i], " at number ", i,
              ", behind the end of all numbers: there should be zeros, or a norm over all parts "
              "would count it");
      throw Wrong(detail::concat("rank ", rank_, "'s ", name, " is ", numbers[i], " at number ", i,
                                 ", which is number ", at, " of all; expected ", right,
                                 what_else(numbers)));
    }
  }

  // After cut().
  void cut_part(const Tensor& got, const Numbers& row) const {
    part(got, "part", row,
         [&](const Numbers&) { return detail::concat(": part r begins at number r * ", each_); });
  }
  // After reduce() of a step: the gradient must be the mean. `own`: this rank's gradients;
  // `before`: the means of the step before.
  void gradient(const Tensor& got, int step, const Numbers& means, const Numbers& own,
                const Numbers& before) const {
    part(got, "gradient", means,
         [&](const Numbers& numbers) { return what_it_is(numbers, step, means, own, before); });
  }
  // After reduce().
  void same_part(const Tensor& got, const Numbers& row) const {
    part(got, "part after reduce()", row, [](const Numbers&) {
      return ": the step of the part is the optimiser's, which comes afterwards";
    });
  }

  // After gather().
  void whole(const Numbers& row, const Numbers& stale) const {
    std::int64_t at = 0;
    for (std::size_t p = 0; p < unit_.parameters.size(); ++p) {
      const Tensor& parameter = unit_.parameters[p];
      require(!parameter.storage()->released(), "after gather() rank ", rank_, "'s parameter ", p,
              " has no memory: take_memory() gives it some");
      for (const float got : parameter.detach().to_vector<float>()) {
        if (const float right = row[at]; got != right) {
          require(false, "after gather() rank ", rank_, "'s parameter ", p, " is ", got,
                  " where all numbers have ", right, " (number ", at, ")",
                  got == 0 ? ": has the all-gather been waited for?"
                  : got == stale[at]
                      ? ": it is as before the step"
                      : ": the parts lie side by side, and each parameter begins where "
                        "the one before ends. And has the all-gather been waited for?");
        }
        ++at;
      }
    }
  }

  // Between two calls: nothing whole may be left in memory.
  void memory(const std::string& when) const {
    for (std::size_t p = 0; p < unit_.parameters.size(); ++p) {
      const Tensor& parameter = unit_.parameters[p];
      require(parameter.storage()->released(), when, " rank ", rank_, " still has parameter ", p,
              " whole (", parameter.storage()->bytes(),
              " bytes), and should have its part of all, ", each_ * 4,
              " bytes: free_whole() gives the memory back");
      require(!parameter.grad().defined(), when, " rank ", rank_,
              " still has the whole gradient of parameter ", p,
              ": the next backward would add to it, and it takes memory");
    }
    for (const Tensor& x : {unit_.part, unit_.gradient}) {
      if (!x.defined()) continue;
      const std::int64_t bytes = static_cast<std::int64_t>(x.storage()->bytes());
      require(bytes <= each_ * 4, when, " rank ", rank_, " holds ", bytes_of(bytes, each_ * 4),
              " for a part: is it a view, which keeps alive what it "
              "was cut from? clone() makes a copy with memory of its own");
    }
  }
  // Called when the tape is gone, so that memory can be counted.
  void bytes(const std::string& when) const {
    constexpr std::int64_t kBlock = 512;  // of which the allocator gives multiples
    const std::int64_t block = (each_ * 4 + kBlock - 1) / kBlock * kBlock,
                       enough = unit_.gradient.defined() ? 2 * block : block;
    const auto held = [this] { return memory_stats(device_).in_use_bytes - before_; };
    // The group's thread may still be freeing what it has sent.
    for (int ms = 0; ms < 1000 && held() > enough; ++ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    require(held() <= enough, when, " rank ", rank_, " holds ", bytes_of(held(), enough),
            ": what else than its parts does it keep?");
  }

 private:
  // Explains a part of the gradients that is not that of the means.
  std::string what_it_is(const Numbers& part, int step, const Numbers& means, const Numbers& own,
                         const Numbers& before) const {
    const auto all_are = [&](const auto& number) {
      for (std::int64_t i = 0; i < each_ && rank_ * each_ + i < all_; ++i) {
        if (part[i] != number(rank_ * each_ + i)) return false;
      }
      return true;
    };
    const auto if_reduced = [&](const char* text) {
      if (wait_until_begun(step + 1, "reduce_scatter")) return std::string(text);
      return detail::concat(": rank ", rank_, " has begun no reduce-scatter in step ", step + 1,
                            ": all ranks must make the same calls");
    };
    if (all_are([](std::int64_t) { return 0.0f; })) {
      return if_reduced(": has the work been waited for, and does `all` have the gradients?");
    }
    if (all_are([&](std::int64_t at) { return own[at]; })) {
      return detail::concat(": it is that of rank ", rank_, " alone");
    }
    if (all_are([&](std::int64_t at) { return means[at] * static_cast<float>(n_); })) {
      return ": it is the sum; divide by the number of ranks";
    }
    if (all_are([&](std::int64_t at) { return means[at] / static_cast<float>(n_); })) {
      return ": it is the mean divided once more; divide once, which ReduceOp::avg does, too";
    }
    if (!before.empty() && all_are([&](std::int64_t at) { return means[at] + before[at]; })) {
      return ": it has the gradient of the step before in it, too";
    }
    return if_reduced(
        ": has the reduce-scatter been waited for, on all ranks, and are the gradients where "
        "gather() has the parameters?");
  }

  const Unit& unit_;
  const int rank_, n_;
  const std::int64_t all_, each_;
  const Device device_;
  const std::int64_t before_;  // bytes in use
};

std::int64_t count_of(const Widths& widths) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) count += (widths[i] + 1) * widths[i + 1];
  return count;
}

void judge_ranks(Three three, const Widths& widths, int n) {
  const std::int64_t all = count_of(widths);
  begin_case(detail::concat(n, n == 1 ? " rank" : " ranks", " and a unit of ", all, " numbers"));
  const Alone right = alone(widths, n);
  const std::vector<Traffic> traffic = on_groups(n, [&](comm::ProcessGroup& group) {
    const int rank = group.rank();
    // One for each rank, so that its memory is counted. cpu:0 is used on the way to the others.
    const Scoped device(&ThreadState::device, Device(DeviceType::cpu, rank + 1));
    Unit unit;
    const Checks check(unit, rank, n, all);
    unit.parameters = whole_parameters(widths);
    three.cut(group, unit);
    check.cut_part(unit.part, right.before[0]);
    check.memory("after cut()");
    check.bytes("after cut()");
    for (int step = 0; step < kSteps; ++step) {
      const Numbers &now = right.before[step], &stale = right.before[step > 0 ? step - 1 : 0];
      Numbers own;
      {
        three.gather(group, unit);
        check.whole(now, stale);
        const Tensor y = forward(unit.parameters, widths, rank, step);
        free_whole(unit);
        check.memory("between forward and backward");
        three.gather(group, unit);
        check.whole(now, stale);
        try {
          y.backward(gradient_of_result(y, rank, step));
        } catch (const Error& error) {
          throw Wrong(detail::concat("rank ", rank, ": backward refuses: ", text_of(error),
                                     ": gather() before backward should write by numbers_of(), "
                                     "which the tape does not see"));
        }
        own = row_of(unit.parameters, true);
      }
      three.reduce(group, unit);
      check.gradient(unit.gradient, step, right.means[step], own,
                     step > 0 ? right.means[step - 1] : Numbers());
      check.same_part(unit.part, now);
      const std::string when = detail::concat("after reduce() of step ", step + 1);
      check.memory(when);
      check.bytes(when);
      raw::add_scaled_(unit.part, -1, unit.gradient);
    }
  });
  const std::int64_t enough = kSteps * 3 * (n - 1) * ((all + n - 1) / n) * 4;
  for (int r = 0; r < n; ++r) {
    require(traffic[r].bytes() >= enough, "rank ", r, " sent only ",
            bytes_of(traffic[r].bytes(), enough), " in ", kSteps,
            " steps: between forward and backward a rank has its part alone, and gathers the "
            "whole again; is it kept somewhere else meanwhile?");
    require(traffic[r].bytes() <= enough, "rank ", r, " sent ",
            bytes_of(traffic[r].bytes(), enough), " in ", kSteps,
            " steps: two all-gathers and a reduce-scatter a step send its part, or one as long, to "
            "each other rank, and cut() sends nothing");
  }
}

std::string judge(Three three) {
  set_host_devices(5);
  for (const Widths& widths : {Widths{2, 3, 2}, {3, 5, 2}, {1, 1}, {32, 64, 16}}) {
    for (const int n : {2, 1, 3, 4}) judge_ranks(three, widths, n);
  }
  return "parts and gradients of two steps are those of one process, to the bit, for 1 to 4 ranks "
         "and units that they do not divide; between the moves a rank holds an n-th, and it sends "
         "3 (n - 1) / n of the unit a step, where DDP sends 2 (n - 1) / n";
}

// --- Wrong ones ----------------------------------------------------------------------------------

using Group = comm::ProcessGroup;

std::int64_t each_of(Group& group, std::int64_t all) {
  return (all + group.size() - 1) / group.size();
}
// All numbers, padded.
Numbers padded(Group& group, const Unit& unit) {
  Numbers row = row_of(unit.parameters, false);
  row.resize(static_cast<std::size_t>(group.size() * each_of(group, std::ssize(row))));
  return row;
}
Tensor part_of(const Numbers& row, std::int64_t first, std::int64_t count) {
  return from_vector(Numbers(row.begin() + first, row.begin() + first + count), {count});
}

void keeps_whole(Group& group, Unit& unit) {
  const Numbers row = padded(group, unit);
  const std::int64_t each = std::ssize(row) / group.size();
  unit.part = part_of(row, group.rank() * each, each);
}
// Keeps a view, and with it the whole tensor.
void cuts_a_view(Group& group, Unit& unit) {
  const Numbers row = padded(group, unit);
  const std::int64_t each = std::ssize(row) / group.size();
  unit.part = from_vector(row, {std::ssize(row)}).narrow(0, group.rank() * each, each);
  free_whole(unit);
}
// The rest belongs to nobody.
void rounds_down(Group& group, Unit& unit) {
  const Numbers row = row_of(unit.parameters, false);
  const std::int64_t each = std::ssize(row) / group.size();
  unit.part = part_of(row, group.rank() * each, each);
  free_whole(unit);
}
// The last rank has what is left.
void no_padding(Group& group, Unit& unit) {
  const Numbers row = row_of(unit.parameters, false);
  const std::int64_t all = std::ssize(row), each = each_of(group, all);
  const std::int64_t first = std::min(group.rank() * each, all);
  unit.part = part_of(row, first, std::min(each, all - first));
  free_whole(unit);
}
// As cards are dealt.
void deals_numbers(Group& group, Unit& unit) {
  const Numbers row = padded(group, unit);
  Numbers mine;
  for (std::size_t i = group.rank(); i < row.size(); i += group.size()) mine.push_back(row[i]);
  unit.part = from_vector(mine, {std::ssize(mine)});
  free_whole(unit);
}

// Writes all numbers to the parameters.
void put_whole(Unit& unit, const Tensor& all) {
  take_memory(unit);
  const float* from = numbers_of(all).data();
  for (const Tensor& parameter : unit.parameters) {
    std::copy_n(from, parameter.numel(), numbers_of(parameter).data());
    from += parameter.numel();
  }
}
void does_not_wait(Group& group, Unit& unit) {
  const Tensor all = zeros({group.size(), unit.part.numel()});
  const comm::Work work = group.all_gather(all, unit.part);
  put_whole(unit, all);
}
// The same with fresh memory, in which there is anything.
void gathers_too_early(Group& group, Unit& unit) {
  const Tensor all = full({group.size(), unit.part.numel()}, 7777);
  const comm::Work work = group.all_gather(all, unit.part);
  put_whole(unit, all);
}
void no_memory(Group& group, Unit& unit) {
  const Tensor all = empty({group.size(), unit.part.numel()});
  group.all_gather(all, unit.part).wait();
  const float* from = numbers_of(all).data();
  for (const Tensor& parameter : unit.parameters) {
    std::copy_n(from, parameter.numel(), numbers_of(parameter).data());
    from += parameter.numel();
  }
}
void tape_sees(Group& group, Unit& unit) {
  const Tensor all = empty({group.size() * unit.part.numel()});
  group.all_gather(all.view({group.size(), unit.part.numel()}), unit.part).wait();
  take_memory(unit);
  std::int64_t first = 0;
  for (const Tensor& parameter : unit.parameters) {
    const std::int64_t count = parameter.numel();
    raw::copy_(parameter.detach().view({count}), all.narrow(0, first, count));
    first += count;
  }
}
// Right numbers, of which most are sent as zeros.
void adds_up(Group& group, Unit& unit) {
  const Tensor all = zeros({group.size(), unit.part.numel()});
  raw::copy_(all.select(0, group.rank()), unit.part);
  group.all_reduce(all).wait();
  put_whole(unit, all);
}

// Gathers for the forward, and keeps all numbers until backward, where nobody looks.
void keeps_numbers(Group& group, Unit& unit) {
  thread_local Numbers kept;
  Tensor all = empty({group.size(), unit.part.numel()});
  if (kept.empty()) {
    group.all_gather(all, unit.part).wait();
    kept = all.to_vector<float>();
  } else {
    all = from_vector(kept, all.shape());
    kept.clear();
  }
  put_whole(unit, all);
}

// The gradients in a row, as the parameters.
Tensor row_of_gradients(Group& group, Unit& unit, float padding = 0) {
  const Tensor all = full({group.size(), unit.part.numel()}, padding);
  std::ranges::copy(row_of(unit.parameters, true), numbers_of(all).begin());
  return all;
}
void drop_gradients(Unit& unit) {
  for (const Tensor& parameter : unit.parameters) parameter.set_grad({});
}
void sums(Group& group, Unit& unit) {
  const Tensor all = row_of_gradients(group, unit);
  unit.gradient = empty({unit.part.numel()});
  group.reduce_scatter(unit.gradient, all).wait();
  drop_gradients(unit);
  free_whole(unit);
}
void divides_again(Group& group, Unit& unit) {
  reference::reduce(group, unit);
  raw::div_(unit.gradient, group.size());
}
void adds_to_the_step_before(Group& group, Unit& unit) {
  const Tensor before = unit.gradient;
  reference::reduce(group, unit);
  if (before.defined()) raw::add_scaled_(unit.gradient, 1, before);
}
void makes_the_step(Group& group, Unit& unit) {
  reference::reduce(group, unit);
  raw::add_scaled_(unit.part, -1, unit.gradient);
}
// Whose part is fresh memory, in which there is anything.
void reads_too_early(Group& group, Unit& unit) {
  const Tensor all = row_of_gradients(group, unit);
  unit.gradient = full({unit.part.numel()}, 7777);
  const comm::Work work = group.reduce_scatter(unit.gradient, all, comm::ReduceOp::avg);
  drop_gradients(unit);
  free_whole(unit);
}
void one_leaves_it_out(Group& group, Unit& unit) {
  if (group.rank() != 1) return reference::reduce(group, unit);
  unit.gradient = full({unit.part.numel()}, 7777);
  drop_gradients(unit);
  free_whole(unit);
}
void own_alone(Group& group, Unit& unit) {
  unit.gradient = row_of_gradients(group, unit).select(0, group.rank()).clone();
  drop_gradients(unit);
  free_whole(unit);
}
void all_reduces(Group& group, Unit& unit) {
  const Tensor all = row_of_gradients(group, unit);
  group.all_reduce(all, comm::ReduceOp::avg).wait();
  unit.gradient = all.select(0, group.rank()).clone();
  drop_gradients(unit);
  free_whole(unit);
}
void pads_with_anything(Group& group, Unit& unit) {
  const Tensor all = row_of_gradients(group, unit, 7777);
  unit.gradient = empty({unit.part.numel()});
  group.reduce_scatter(unit.gradient, all, comm::ReduceOp::avg).wait();
  drop_gradients(unit);
  free_whole(unit);
}
void keeps_gradients(Group& group, Unit& unit) {
  const Tensor all = row_of_gradients(group, unit);
  unit.gradient = empty({unit.part.numel()});
  group.reduce_scatter(unit.gradient, all, comm::ReduceOp::avg).wait();
  free_whole(unit);
}
void keeps_whole_afterwards(Group& group, Unit& unit) {
  reference::reduce(group, unit);
  take_memory(unit);
}

constexpr auto kCut = reference::cut, kGather = reference::gather, kReduce = reference::reduce;

const std::vector<WrongOne<Three>> kWrong = {
    {"keeps_whole", {keeps_whole, kGather, kReduce}, "still has parameter 0 whole"},
    {"cuts_a_view", {cuts_a_view, kGather, kReduce}, "for a part: is it a view"},
    {"rounds_down", {rounds_down, kGather, kReduce}, "part has shape [8], expected [9]"},
    {"no_padding", {no_padding, kGather, kReduce}, "rank 1's part has shape [8], expected [9]"},
    {"deals_numbers", {deals_numbers, kGather, kReduce}, "part r begins at number r * 9"},
    {"does_not_wait", {kCut, does_not_wait, kReduce}, "has the all-gather been waited for?"},
    {"gathers_too_early",
     {kCut, gathers_too_early, kReduce},
     "And has the all-gather been waited for?"},
    {"no_memory", {kCut, no_memory, kReduce}, "the parameters have given their memory back"},
    {"tape_sees", {kCut, tape_sees, kReduce}, "which the tape does not see"},
    {"adds_up", {kCut, adds_up, kReduce}, "two all-gathers and a reduce-scatter"},
    {"keeps_numbers", {kCut, keeps_numbers, kReduce}, "sent only 144 of 216 bytes in 2 steps"},
    {"sums", {kCut, kGather, sums}, "it is the sum; divide"},
    {"divides_again", {kCut, kGather, divides_again}, "it is the mean divided once more"},
    {"adds_to_the_step_before",
     {kCut, kGather, adds_to_the_step_before},
     "it has the gradient of the step before"},
    {"makes_the_step", {kCut, kGather, makes_the_step}, "the step of the part is the optimiser's"},
    {"reads_too_early", {kCut, kGather, reads_too_early}, "has the reduce-scatter been waited for"},
    {"one_leaves_it_out",
     {kCut, kGather, one_leaves_it_out},
     "rank 1 has begun no reduce-scatter in step 1: all ranks must make the same calls"},
    {"own_alone", {kCut, kGather, own_alone}, "alone"},
    {"all_reduces", {kCut, kGather, all_reduces}, "two all-gathers and a reduce-scatter"},
    {"pads_with_anything", {kCut, kGather, pads_with_anything}, "behind the end of all numbers"},
    {"keeps_gradients", {kCut, kGather, keeps_gradients}, "still has the whole gradient"},
    {"keeps_whole_afterwards", {kCut, kGather, keeps_whole_afterwards}, "after reduce() of step 1"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "12_fsdp_unit", judge, Three{cut, gather, reduce},
                 Three{kCut, kGather, kReduce}, kWrong);
}
