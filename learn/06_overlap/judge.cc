// Judges exercise 6, and has typical wrong solutions of it.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/learn/06_overlap/reference/reference.h"
#include "weft/learn/06_overlap/solution.h"
#include "weft/learn/judge/gradients.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"
#include "weft/tensor/creation.h"

namespace weft::learn {
namespace {

using Overlap = std::function<void()> (*)(comm::ProcessGroup& group,
                                          const std::vector<Tensor>& parameters);

bool none_unused(int, std::size_t) { return false; }

// Set by a rank, waited for by others.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool wait(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// A loss in which each parameter is a layer. Backward comes to the last one first; at layer p it
// calls before(p), and gives the parameter the gradient gradient_of(rank, p).
Tensor loss_of(int rank, const std::vector<Tensor>& parameters,
               const std::function<void(std::size_t)>& before) {
  Tensor total = scalar(0).set_requires_grad();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    total = total + sum(parameters[p] * gradient_of(rank, p, parameters[p]));
    autograd::add_grad_hook(total, [=](const Tensor&) {
      before(p);
      return Tensor();
    });
  }
  return total;
}

void judge_ranks(Overlap f, int n) {
  Flag backward_of_rank_0_nearly_done;
  const std::vector<Traffic> ranks = on_groups(n, [&](comm::ProcessGroup& group) {
    const int rank = group.rank();
    const std::vector<Tensor> parameters = some_parameters();
    const std::function<void()> finish = f(group, parameters);
    require(finish != nullptr, "the result is an empty function: return what waits for the works");
    for (int step = 0; step < 2; ++step) {
      for (const Tensor& parameter : parameters) parameter.set_grad({});
      const std::size_t earlier = step * parameters.size();
      const Tensor loss = loss_of(rank, parameters, [&, n, rank, step](std::size_t p) {
        if (n == 1) return;
        if (p == 0 && rank == 0) backward_of_rank_0_nearly_done.set();
        // The gradients of the layers above the one that backward has just left are complete.
        const std::size_t complete = std::max<std::size_t>(parameters.size() - p, 2) - 2;
        if (!wait_until_begun(earlier + complete)) {
          backward_of_rank_0_nearly_done.set();  // or rank 1 would complain, too
          throw Wrong(detail::concat("when the backward of rank ", rank, " comes to layer ", p,
                                     ", the gradients of ", complete,
                                     complete == 1 ? " later layer" : " later layers",
                                     " are complete, but fewer all-reduces have begun: "
                                     "begin each in the hook of its parameter"));
        }
        // Rank 1 comes late, so that what waits in rank 0's hooks keeps its backward from ending.
        if (rank == 1 && step == 0 && p + 1 == parameters.size()) {
          require(backward_of_rank_0_nearly_done.wait(std::chrono::seconds(6)),
                  "the backward of rank 0 does not go on before rank 1 has come: a hook should "
                  "begin the all-reduce and return; wait in the function that is called after "
                  "backward");
        }
      });
      loss.backward();
      finish();
      check_means(rank, n, parameters, none_unused);
    }
  });
  if (n > 1) {
    require(ranks[0].collectives.size() <= 2 * some_parameters().size(), "rank 0 began ",
            ranks[0].collectives.size(), " collectives in two steps, one for each of the ",
            some_parameters().size(), " parameters and step is enough");
  }
}

std::string judge(Overlap f) {
  for (int n = 1; n <= 4; ++n) {
    begin_case(detail::concat(n, n == 1 ? " rank" : " ranks", " and two steps"));
    judge_ranks(f, n);
  }
  return "the means of 1 to 4 ranks, in two steps; each all-reduce began while backward went on, "
         "and "
         "no hook waited";
}

// --- Wrong ones ----------------------------------------------------------------------------------

using Parameters = std::vector<Tensor>;

// Exercise 5: all after backward.
std::function<void()> after_backward(comm::ProcessGroup& group, const Parameters& parameters) {
  return [&group, parameters] {
    for (const Tensor& p : parameters) group.all_reduce(p.grad(), comm::ReduceOp::avg).wait();
  };
}

std::function<void()> waits_in_the_hook(comm::ProcessGroup& group, const Parameters& parameters) {
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [&group](const Tensor& leaf) {
      group.all_reduce(leaf.grad(), comm::ReduceOp::avg).wait();
    });
  }
  return [] {};
}

std::function<void()> sum_only(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(
        p, [=, &group](const Tensor& leaf) { works->push_back(group.all_reduce(leaf.grad())); });
  }
  return [works] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}

// The handles remove their hooks after the first backward.
std::function<void()> once(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  const auto handles = std::make_shared<std::vector<autograd::HookHandle>>();
  for (const Tensor& p : parameters) {
    handles->push_back(autograd::add_leaf_hook(p, [=, &group](const Tensor& leaf) {
      works->push_back(group.all_reduce(leaf.grad(), comm::ReduceOp::avg));
    }));
  }
  return [=] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
    for (autograd::HookHandle& handle : *handles) handle.remove();
  };
}

std::function<void()> without_the_first(comm::ProcessGroup& group, const Parameters& parameters) {
  return reference::overlap(group, {parameters.begin() + 1, parameters.end()});
}

// The gradient of the weight's hook, in place of its gradient: the weight itself.
std::function<void()> of_the_weight(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(
        p, [=, &group](const Tensor& leaf) { works->push_back(group.all_reduce(leaf.detach())); });
  }
  return [works] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}

// Two hooks for each.
std::function<void()> twice(comm::ProcessGroup& group, const Parameters& parameters) {
  const std::function<void()> a = reference::overlap(group, parameters);
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [=, &group](const Tensor& leaf) {
      works->push_back(group.all_reduce(leaf.grad(), comm::ReduceOp::max));
    });
  }
  return [=] {
    a();
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}

std::function<void()> does_not_wait(comm::ProcessGroup& group, const Parameters& parameters) {
  reference::overlap(group, parameters);
  return [] {};
}

std::function<void()> nothing(comm::ProcessGroup&, const Parameters&) { return {}; }

const std::vector<WrongOne<Overlap>> kWrong = {
    {"after_backward", after_backward, "begin each in the hook of its parameter"},
    {"waits_in_the_hook", waits_in_the_hook, "a hook should begin the all-reduce and return"},
    {"sum_only", sum_only, "it is the sum; divide by the number of ranks"},
    {"once", once, "begin each in the hook of its parameter"},
    {"without_the_first", without_the_first, "gradient of parameter 0"},
    {"of_the_weight", of_the_weight, "parameter 0 itself was changed"},
    {"twice", twice, "one for each of the 4 parameters and step is enough"},
    {"does_not_wait", does_not_wait, "has its work been waited for?"},
    {"nothing", nothing, "the result is an empty function"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "06_overlap", judge, overlap, reference::overlap, kWrong);
}
