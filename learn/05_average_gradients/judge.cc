// Judges exercise 5, and has typical wrong solutions of it.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "weft/learn/05_average_gradients/reference/reference.h"
#include "weft/learn/05_average_gradients/solution.h"
#include "weft/learn/judge/gradients.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"

namespace weft::learn {
namespace {

using Average = void (*)(comm::ProcessGroup& group, const std::vector<Tensor>& parameters);

bool none_unused(int, std::size_t) { return false; }
bool second_unused_on_rank_0(int rank, std::size_t p) { return rank == 0 && p == 2; }

// Calls f, and says of an undefined tensor how one comes by it.
void call(Average f, comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  try {
    f(group, parameters);
  } catch (const Error& error) {
    const std::string_view text = error.what();
    require(text.find("is an undefined tensor") == text.npos, "rank ", group.rank(),
            " threw an exception: ", text,
            ". A missing gradient counts as zeros, and a handle taken before set_grad() stays "
            "undefined");
    throw;
  }
}

std::string judge(Average f) {
  std::size_t calls = 0;
  for (const bool all_used : {true, false}) {
    for (int n = all_used ? 1 : 2; n <= 4; ++n) {
      begin_case(detail::concat(n, n == 1 ? " rank" : " ranks",
                                all_used ? "" : ", and a parameter that rank 0 has not used"));
      const auto unused = all_used ? none_unused : second_unused_on_rank_0;
      // Said after all ranks have returned: a rank that waits for ever is named first.
      std::vector<std::string> wrong(n);
      const std::vector<Traffic> ranks = on_groups(n, [&](comm::ProcessGroup& group) {
        const int rank = group.rank();
        const std::vector<Tensor> parameters = some_parameters();
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          if (!unused(rank, p)) parameters[p].set_grad(gradient_of(rank, p, parameters[p]));
        }
        call(f, group, parameters);
        // At once: later the group's operations are done, also those for which f has not waited.
        try {
          check_means(rank, group.size(), parameters, unused);
        } catch (const Wrong& error) {
          wrong[rank] = error.what();
        }
      });
      for (const std::string& text : wrong) require(text.empty(), text);
      calls = ranks.back().collectives.size();
    }
  }
  return detail::concat("the means of 1 to 4 ranks, in ", calls,
                        calls == 1 ? " all-reduce" : " all-reduces",
                        " after backward. Exercise 6 sends them during backward, "
                        "exercise 7 in fewer messages");
}

// --- Wrong ones ----------------------------------------------------------------------------------

void give_zeros(const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    if (!p.grad().defined()) p.set_grad(zeros_like(p));
  }
}

void sum_only(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  for (const Tensor& p : parameters) group.all_reduce(p.grad()).wait();
}

void divides_twice(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  for (const Tensor& p : parameters) {
    group.all_reduce(p.grad(), comm::ReduceOp::avg).wait();
    raw::div_(p.grad(), group.size());
  }
}

void skips_unused(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) group.all_reduce(p.grad(), comm::ReduceOp::avg).wait();
  }
}

void keeps_none(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    const Tensor grad = p.grad().defined() ? p.grad() : zeros_like(p);
    group.all_reduce(grad, comm::ReduceOp::avg).wait();
  }
}

void averages_weights(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    raw::mul_(p.detach(), 1 + group.rank());
    group.all_reduce(p.detach(), comm::ReduceOp::avg).wait();
  }
}

void on_a_copy(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  for (const Tensor& p : parameters) {
    group.all_reduce(p.grad().clone(), comm::ReduceOp::avg).wait();
  }
}

void handle_before_set_grad(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  for (const Tensor& p : parameters) {
    const Tensor grad = p.grad();
    if (!grad.defined()) p.set_grad(zeros_like(p));
    group.all_reduce(grad, comm::ReduceOp::avg).wait();
  }
}

void rank_0_alone(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  if (group.rank() == 0) reference::average_gradients(group, parameters);
}

void rounds(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  reference::average_gradients(group, parameters);
  for (const Tensor& p : parameters) raw::div_(p.grad(), 1.0000001);
}

void all_but_the_last(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  reference::average_gradients(group, {parameters.begin(), parameters.end() - 1});
}

void does_not_wait(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  std::vector<comm::Work> works;
  for (const Tensor& p : parameters) {
    works.push_back(group.all_reduce(p.grad(), comm::ReduceOp::avg));
  }
}

// The means are right where the all-reduce begins later than it is told to.
void divides_before_waiting(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  std::vector<comm::Work> works;
  for (const Tensor& p : parameters) {
    works.push_back(group.all_reduce(p.grad()));
    raw::div_(p.grad(), group.size());
  }
  for (const comm::Work& work : works) work.wait();
}

// As an unordered container would have it.
void own_order(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> own = parameters;
  if (group.rank() == 1) std::ranges::reverse(own);
  reference::average_gradients(group, own);
}

void of_rank_0(comm::ProcessGroup& group, const std::vector<Tensor>& parameters) {
  give_zeros(parameters);
  for (const Tensor& p : parameters) group.broadcast(p.grad(), 0).wait();
}

const std::vector<WrongOne<Average>> kWrong = {
    {"sum_only", sum_only, "it is the sum; divide by the number of ranks", "does not divide"},
    {"divides_twice", divides_twice, "it was divided twice", "divides what is the mean already"},
    {"skips_unused", skips_unused, "all ranks must make the same calls",
     "a rank without a gradient goes on to the next parameter"},
    {"keeps_none", keeps_none, "has no gradient of parameter 2, which it has not used",
     "takes part with zeros, and throws the mean away"},
    {"averages_weights", averages_weights, "parameter 0 itself was changed",
     "the parameters, in place of their gradients"},
    {"on_a_copy", on_a_copy, "on the gradient itself, not on a copy",
     "all-reduces a copy of the gradient"},
    {"handle_before_set_grad", handle_before_set_grad,
     "a handle taken before set_grad() stays undefined",
     "uses the handle that it took when there was no gradient"},
    {"rank_0_alone", rank_0_alone, "from rank 1, which has returned",
     "the other ranks return at once"},
    {"rounds", rounds, "is 1211.99988 at number 0, the mean of the ranks is 1212: it is rounded",
     "the means, but for the last bits"},
    {"all_but_the_last", all_but_the_last, "gradient of parameter 3",
     "leaves out the last parameter"},
    {"does_not_wait", does_not_wait, "has its work been waited for?",
     "returns before the all-reduces are done"},
    {"divides_before_waiting", divides_before_waiting, "Call wait() of its work first",
     "divides while the all-reduce may run"},
    {"own_order", own_order, "all ranks must make the same calls",
     "rank 1 takes the parameters in another order"},
    {"of_rank_0", of_rank_0, "it is that of rank 0 alone", "broadcasts the gradients of rank 0"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "05_average_gradients", judge, average_gradients,
                 reference::average_gradients, kWrong);
}
