// Judges exercise 10, and has typical wrong solutions of it.
#include <any>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/checkpoint.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/grad.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/learn/10_checkpointing/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::learn {
namespace {

using MakeCheckpoint = Tensor (*)(const Block& block, const Tensor& x);

constexpr std::int64_t kRows = 64, kColumns = 256, kLayers = 6;
constexpr std::int64_t kTensorBytes = kRows * kColumns * 4;

struct Net {
  std::vector<Tensor> weights;
  int calls = 0;
  std::vector<bool> recorded = {};  // in each call, whether it was
};

// kLayers layers, of which backward needs the results; with dropout if asked for.
Block block_of(Net& net, bool with_dropout) {
  return [&net, with_dropout](const Tensor& x) {
    ++net.calls;
    net.recorded.push_back(thread_state().grad_enabled);
    Tensor y = x;
    for (const Tensor& weight : net.weights) {
      y = tanh(y * weight);
      if (with_dropout) y = dropout(y, 0.5);
    }
    return y;
  };
}

struct Result {
  std::vector<float> y, x_grad, next;
  std::vector<std::vector<float>> weight_grads;
  std::int64_t kept = 0;  // bytes after the forward
  Net net;
};

constexpr const char* kNotRecorded =
    "the call in backward was not recorded: without a tape it has no backward. EnableGrad turns "
    "recording on as long as it lives, so it needs a name: EnableGrad on;";

// A step whose middle is f(block, x), as often as it says.
Result step(MakeCheckpoint f, bool with_dropout, int times) {
  manual_seed(3);
  Result result;
  for (int i = 0; i < kLayers; ++i) {
    result.net.weights.push_back(full({kColumns}, 1 + 0.125 * i).set_requires_grad());
  }
  const Tensor x = rand({kRows, kColumns}).set_requires_grad();
  const Tensor begin = x * 2;
  const std::int64_t before = memory_stats({}).in_use_bytes;
  const Block block = block_of(result.net, with_dropout);
  Tensor y = begin;
  for (int i = 0; i < times; ++i) y = f(block, y);
  result.kept = memory_stats({}).in_use_bytes - before;
  try {
    (y * y).sum().backward();
  } catch (const Error&) {  // for want of a tape it may have come to this
    require(std::ssize(result.net.recorded) <= times || result.net.recorded.back(), kNotRecorded);
    throw;
  }
  result.y = y.detach().to_vector<float>();
  if (x.grad().defined()) result.x_grad = x.grad().to_vector<float>();
  for (const Tensor& weight : result.net.weights) {
    result.weight_grads.push_back(weight.grad().defined() ? weight.grad().to_vector<float>()
                                                          : std::vector<float>());
  }
  result.next = rand({4}).to_vector<float>();
  result.net.weights.clear();
  return result;
}

Tensor plain(const Block& block, const Tensor& x) { return block(x); }
Tensor weft_s(const Block& block, const Tensor& x) { return autograd::checkpoint(block, x); }

void same(const std::vector<float>& got, const std::vector<float>& expected,
          const std::string& what, const std::string& hint, const std::string& if_missing = "") {
  require(!got.empty() || expected.empty(), what,
          " is missing: ", if_missing.empty() ? hint : if_missing);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    require(got[i] == expected[i], what, " is ", got[i], " at number ", i,
            ", without a checkpoint ", expected[i], ": ", hint);
  }
}

void check(MakeCheckpoint f, bool with_dropout, int times) {
  begin_case(detail::concat(times, times == 1 ? " block" : " blocks",
                            with_dropout ? " with dropout" : ""));
  Result got, expected = step(plain, with_dropout, times);
  within_patience("is there a loop that does not end?",
                  [&] { got = step(f, with_dropout, times); });
  const std::int64_t enough = (times + 1) * kTensorBytes;
  require(got.kept <= enough, "after the forward ", got.kept / 1024, " KiB are kept, right are ",
          enough / 1024, " KiB: only what goes into and comes out of the block");
  require(got.net.calls == 2 * times, "calls of the block: ", got.net.calls, ", right are ",
          2 * times, ": once in the forward, and once more in backward");
  for (int i = 0; i < times; ++i) {
    require(!got.net.recorded[i],
            "the call of the forward was recorded: its tape keeps what the "
            "checkpoint should save");
    require(got.net.recorded[times + i], kNotRecorded);
  }
  same(got.y, expected.y, "the result", "the forward should return block(x)");
  same(got.x_grad, expected.x_grad, "dL/dx",
       detail::concat("the second call should begin at a leaf of its own (detached from the first "
                      "tape), ",
                      with_dropout ? "draw the same random numbers as the first, " : "",
                      "and run backward from dL/dy"),
       "backward() of Checkpoint returned nothing. Did x require a gradient "
       "(x.set_requires_grad()) before "
       "the second call, did backward run, and is x.grad() returned?");
  for (std::size_t i = 0; i < expected.weight_grads.size(); ++i) {
    same(got.weight_grads[i], expected.weight_grads[i],
         detail::concat("the gradient of weight ", i),
         "backward() adds to the weights that the block uses; grad() does not");
  }
  same(got.next, expected.next, "the next random number",
       "put the generator back to where it was before backward, or each checkpoint repeats the "
       "numbers of the one before");
}

std::string judge(MakeCheckpoint f) {
  for (const bool with_dropout : {false, true}) {
    for (const int times : {1, 3}) check(f, with_dropout, times);
  }
  const Result without = step(plain, false, 3), with = step(f, false, 3);
  return detail::concat(
      "the gradients are those without a checkpoint, to the bit, also with "
      "dropout. Three blocks keep ",
      with.kept / 1024, " KiB in place of ", without.kept / 1024, ", for a second forward");
}

// --- Wrong ones ----------------------------------------------------------------------------------

struct Habits {
  bool twice = false, no_leaf = false, ignores_dy = false, same_numbers = true, puts_back = true,
       only_x = false, recorded = true, never = false, no_tape = false, plain_x = false,
       no_backward = false, of_y = false;
};

template <Habits h>
struct Wrongly : autograd::Function<Wrongly<h>> {
  struct Kept {
    Block block;
    std::string generator;
  };
  static Tensor forward(autograd::Context& ctx, const Block& block, const Tensor& x) {
    ctx.save_for_backward({x});
    ctx.data = Kept{block, default_generator().state()};
    return block(x);
  }
  static std::vector<Tensor> backward(autograd::Context& ctx, std::span<const Tensor> grads) {
    const Kept& kept = std::any_cast<const Kept&>(ctx.data);
    if (h.never) return {grads[0]};
    const std::string now = default_generator().state();
    if (h.same_numbers) default_generator().set_state(kept.generator);
    if (h.twice) kept.block(ctx.saved(0));
    Tensor x = ctx.saved(0).detach();
    if (!h.recorded) {
      kept.block(x);
      return {grads[0]};
    }
    if (!h.plain_x) x.set_requires_grad();
    if (h.no_tape) {
      EnableGrad();  // gone at once
      const Tensor y = kept.block(x);
      autograd::backward({&y, 1}, grads);
      return {x.grad()};
    }
    const EnableGrad recording;
    const Tensor y = kept.block(x), dy = h.ignores_dy ? ones_like(y.detach()) : grads[0];
    if (h.puts_back) default_generator().set_state(now);
    if (h.only_x) return autograd::grad({&y, 1}, {&x, 1}, {&dy, 1});
    if (!h.no_backward) autograd::backward({&y, 1}, {&dy, 1});
    return {h.no_leaf ? grads[0] : h.of_y ? y.grad() : x.grad()};
  }
};
template <Habits h>
Tensor wrongly(const Block& block, const Tensor& x) {
  return Wrongly<h>::apply(block, x);
}

// Recorded, and kept by the function that backward would call.
Tensor recorded_forward(const Block& block, const Tensor& x) {
  const Tensor first = block(x);
  return weft_s([first, block](const Tensor& again) { return block(again); }, x);
}

// The first call has a tape, which is thrown away.
Tensor recorded_for_nothing(const Block& block, const Tensor& x) {
  return weft_s(
      [block](const Tensor& again) {
        const EnableGrad recording;
        return block(again);
      },
      x);
}

const std::vector<WrongOne<MakeCheckpoint>> kWrong = {
    {"plain", plain, " KiB are kept, right are 128 KiB: only what goes into"},
    {"never", wrongly<Habits{.never = true}>, "calls of the block: 1, right are 2"},
    {"twice", wrongly<Habits{.twice = true}>, "calls of the block: 3, right are 2"},
    {"not_recorded", wrongly<Habits{.recorded = false}>, "the call in backward was not recorded"},
    {"tape_gone_at_once", wrongly<Habits{.no_tape = true}>, "so it needs a name: EnableGrad on;"},
    {"recorded_forward", recorded_forward, "128 KiB: only what goes into"},
    {"recorded_for_nothing", recorded_for_nothing, "the call of the forward was recorded"},
    {"plain_x", wrongly<Habits{.plain_x = true}>,
     "dL/dx is missing: backward() of Checkpoint returned nothing"},
    {"no_backward", wrongly<Habits{.no_backward = true}>, "did backward run"},
    {"of_y", wrongly<Habits{.of_y = true}>, "is x.grad() returned?"},
    {"passes_dy_on", wrongly<Habits{.no_leaf = true}>, "dL/dx is "},
    {"ignores_dy", wrongly<Habits{.ignores_dy = true}>, "run backward from dL/dy"},
    {"other_numbers", wrongly<Habits{.same_numbers = false, .puts_back = false}>,
     "draw the same random numbers as the first"},
    {"does_not_put_back", wrongly<Habits{.puts_back = false}>, "the next random number is"},
    {"only_x", wrongly<Habits{.only_x = true}>, "the gradient of weight 0 is missing"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "10_checkpointing", judge, checkpoint, weft_s, kWrong);
}
