// Judges exercise 11, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/learn/11_zero/reference/reference.h"
#include "weft/learn/11_zero/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"

namespace weft::learn {
namespace {

using Tensors = std::vector<Tensor>;
using ZeroStep = void (*)(comm::ProcessGroup& group, const Tensors& parameters,
                          const Tensors& gradients, Tensors& momentum, double lr);

constexpr double kLr = 0.125;
constexpr std::size_t kParameters = 12;
constexpr std::int64_t kNumbers = 50;  // of each

Tensor numbers(std::size_t p, int step) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kNumbers; ++i) {
    values.push_back(
        static_cast<float>((i * 7 + static_cast<std::int64_t>(p) * 3 + step * 5) % 11) / 3);
  }
  return from_vector(values, {kNumbers});
}
Tensors all_numbers(int step) {
  Tensors all;
  for (std::size_t p = 0; p < kParameters; ++p) all.push_back(numbers(p, step));
  return all;
}

// How many parameters' momentum a rank keeps.
std::size_t kept(const Tensors& momentum) {
  return std::ranges::count_if(momentum, [](const Tensor& m) { return m.defined(); });
}

void judge_ranks(ZeroStep f, int n) {
  constexpr int kSteps = 3;
  Tensors expected = all_numbers(0), whole(kParameters);
  std::vector<std::vector<std::vector<float>>> after(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t p = 0; p < kParameters; ++p) {
      reference::sgd_step(expected[p], numbers(p, step + 1), whole[p], kLr);
      after[step].push_back(expected[p].to_vector<float>());
    }
  }
  const std::vector<Traffic> traffic = on_groups(n, [&](comm::ProcessGroup& group) {
    const int rank = group.rank();
    const Tensors parameters = all_numbers(0);
    Tensors momentum(kParameters);
    for (int step = 0; step < kSteps; ++step) {
      const Tensors gradients = all_numbers(step + 1);
      f(group, parameters, gradients, momentum, kLr);
      require(momentum.size() == kParameters, "rank ", rank, " has a momentum of ", momentum.size(),
              " entries; keep one entry for each parameter, undefined where it is "
              "another rank's");
      const std::size_t most = (kParameters + n - 1) / n;
      require(kept(momentum) <= most, "rank ", rank, " keeps the momentum of ", kept(momentum),
              " of ", kParameters, " parameters after step ", step + 1, ", its share is ", most,
              ": a rank makes the steps of its own parameters alone");
      for (std::size_t p = 0; p < kParameters; ++p) {
        const std::vector<float> got = parameters[p].to_vector<float>();
        const float right = after[step][p][1];
        if (got == after[step][p]) continue;
        const bool before = got == (step ? after[step - 1][p] : numbers(p, 0).to_vector<float>());
        require(false, "after step ", step + 1, " rank ", rank, " has ", got[1], " in parameter ",
                p, ", without ZeRO it is ", right,
                before ? ": it is as before the step. Does its owner make the step, and send the "
                         "parameter to all others, and has its work been waited for?"
                       : ": is the step made once, by its owner, with the owner's momentum of "
                         "the step before?");
      }
    }
  });
  if (n == 1) return;
  std::int64_t sent = 0;
  for (const Traffic& rank : traffic) sent += rank.bytes();
  const std::int64_t enough =
      kSteps * (n - 1) * static_cast<std::int64_t>(kParameters) * kNumbers * 4;
  require(sent <= enough, "the ranks sent ", bytes_of(sent, enough), " in ", kSteps,
          " steps: each parameter is to be sent once, from its owner to the n - 1 others, and the "
          "gradients not at all: they are the means already");
}

std::string judge(ZeroStep f) {
  for (const int n : {2, 1, 3, 4, 5}) {
    begin_case(detail::concat(n, n == 1 ? " rank" : " ranks", " and ", kParameters, " parameters"));
    judge_ranks(f, n);
  }
  return "the parameters of three steps are those of one process, to the bit; each of n ranks "
         "keeps "
         "an n-th of the momentum, and each parameter is sent once a step";
}

// --- Wrong ones ----------------------------------------------------------------------------------

int owner(std::size_t p, const comm::ProcessGroup& group) {
  return static_cast<int>(p % group.size());
}

void everybody_steps(comm::ProcessGroup&, const Tensors& parameters, const Tensors& gradients,
                     Tensors& momentum, double lr) {
  for (std::size_t p = 0; p < kParameters; ++p) {
    reference::sgd_step(parameters[p], gradients[p], momentum[p], lr);
  }
}

void nobody_sends(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                  Tensors& momentum, double lr) {
  for (std::size_t p = 0; p < kParameters; ++p) {
    if (owner(p, group) != group.rank()) continue;
    reference::sgd_step(parameters[p], gradients[p], momentum[p], lr);
  }
}

// Sends what rank 0 has, whoever owns it.
void from_rank_0(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                 Tensors& momentum, double lr) {
  nobody_sends(group, parameters, gradients, momentum, lr);
  for (const Tensor& parameter : parameters) group.broadcast(parameter, 0).wait();
}

// Each sends its own, and forgets to receive.
void owner_only(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                Tensors& momentum, double lr) {
  nobody_sends(group, parameters, gradients, momentum, lr);
  for (std::size_t p = 0; p < kParameters; ++p) {
    if (owner(p, group) == group.rank()) group.broadcast(parameters[p], group.rank()).wait();
  }
}

void does_not_wait(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                   Tensors& momentum, double lr) {
  nobody_sends(group, parameters, gradients, momentum, lr);
  std::vector<comm::Work> works;
  for (std::size_t p = 0; p < kParameters; ++p) {
    works.push_back(group.broadcast(parameters[p], owner(p, group)));
  }
}

// Hands the parameter over, and changes it afterwards.
void sends_first(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                 Tensors& momentum, double lr) {
  std::vector<comm::Work> works;
  for (std::size_t p = 0; p < kParameters; ++p) {
    const int root = owner(p, group);
    works.push_back(group.broadcast(parameters[p], root));
    if (root == group.rank()) {
      reference::sgd_step(parameters[p], gradients[p], momentum[p], lr);
    }
  }
  for (const comm::Work& work : works) work.wait();
}

// The state is thrown away.
void no_memory(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
               Tensors& momentum, double lr) {
  reference::zero_step(group, parameters, gradients, momentum, lr);
  std::ranges::fill(momentum, Tensor());
}

// Rank 0 keeps all.
void one_owner(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
               Tensors& momentum, double lr) {
  if (group.rank() == 0) everybody_steps(group, parameters, gradients, momentum, lr);
  for (const Tensor& parameter : parameters) group.broadcast(parameter, 0).wait();
}

// Blocks of the same size; the rest belongs to nobody.
void no_rest(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
             Tensors& momentum, double lr) {
  const std::size_t each = kParameters / group.size();
  for (std::size_t i = 0; i < each * group.size(); ++i) {
    const int root = static_cast<int>(i / each);
    if (root == group.rank()) reference::sgd_step(parameters[i], gradients[i], momentum[i], lr);
    group.broadcast(parameters[i], root).wait();
  }
}

// Averages once more.
void reduces_again(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
                   Tensors& momentum, double lr) {
  for (const Tensor& gradient : gradients) group.all_reduce(gradient, comm::ReduceOp::max).wait();
  reference::zero_step(group, parameters, gradients, momentum, lr);
}

// The owner changes from step to step.
void moves_on(comm::ProcessGroup& group, const Tensors& parameters, const Tensors& gradients,
              Tensors& momentum, double lr) {
  static thread_local int step = 0;
  ++step;
  for (std::size_t p = 0; p < kParameters; ++p) {
    const int root = owner(p + step, group);
    if (root == group.rank()) {
      reference::sgd_step(parameters[p], gradients[p], momentum[p], lr);
    } else {
      momentum[p] = Tensor();
    }
    group.broadcast(parameters[p], root).wait();
  }
}

const std::vector<WrongOne<ZeroStep>> kWrong = {
    {"everybody_steps", everybody_steps, "its share is 6"},
    {"nobody_sends", nobody_sends, "it is as before the step"},
    {"from_rank_0", from_rank_0, "it is as before the step"},
    {"owner_only", owner_only, "rank 0 is in collective 1 (broadcast of 200 bytes from rank 0)"},
    {"does_not_wait", does_not_wait, "has its work been waited for?"},
    {"sends_first", sends_first, "writes to what its broadcast sends"},
    {"no_memory", no_memory, "after step 2"},
    {"one_owner", one_owner, "rank 0 keeps the momentum of 12 of 12 parameters"},
    {"no_rest", no_rest, "it is as before the step"},
    {"reduces_again", reduces_again, "the gradients not at all"},
    {"moves_on", moves_on, "with the owner's momentum of the step before?"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "11_zero", judge, zero_step, reference::zero_step, kWrong);
}
