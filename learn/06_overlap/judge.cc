// Judges exercise 6, and has typical wrong solutions of it.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/ops.h"
#include "weft/learn/06_overlap/reference/reference.h"
#include "weft/learn/06_overlap/solution.h"
#include "weft/learn/judge/gradients.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

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

constexpr const char* kOneEach = ": there is one all-reduce for each parameter and step";

// Why not enough of this step's all-reduces have begun, where `complete` should have, and one more
// may have; there were `earlier` in the steps before.
std::string why_too_few(int rank, std::size_t complete, std::size_t earlier) {
  const std::vector<std::size_t> calls = calls_of_ranks();
  if (calls[rank] > earlier + complete + 1) {
    return detail::concat("its ", calls[rank] - earlier,
                          " collectives of this step wait for each other", kOneEach);
  }
  constexpr const char* kInHooks = ": begin each in the hook of its parameter";
  int least = rank;
  for (int r = 0; r < std::ssize(calls); ++r) {
    if (calls[r] < calls[least]) least = r;
  }
  const std::size_t now = std::max(calls[least], earlier) - earlier;
  if (now >= complete) return detail::concat("fewer all-reduces have begun", kInHooks);
  return detail::concat("rank ", least, " has called ", now == 0 ? "no" : std::to_string(now),
                        now == 1 ? " all-reduce" : " all-reduces", " in this step", kInHooks);
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

std::vector<std::vector<float>> values_of(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<float>> all;
  for (const Tensor& x : tensors) all.push_back(x.to_vector<float>());
  return all;
}

// Others than those that are trained.
std::vector<Tensor> other_parameters(int rank) {
  std::vector<Tensor> parameters = some_parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].set_grad(gradient_of(rank, p, parameters[p]));
  }
  return parameters;
}

void judge_ranks(Overlap f, int n) {
  Flag backward_of_rank_0_nearly_done;
  on_groups(n, [&](comm::ProcessGroup& group) {
    const int rank = group.rank();
    const std::vector<Tensor> parameters = some_parameters();
    std::vector<Tensor> passed = parameters;
    const std::function<void()> finish = f(group, passed);
    require(finish != nullptr, "the result is an empty function: return what waits for the works");
    // In a training the vector may be gone by now, and others may be where it was.
    const std::vector<Tensor> others = other_parameters(rank), theirs = gradients_of(others);
    const std::vector<std::vector<float>> untouched = values_of(theirs);
    std::ranges::copy(others, passed.begin());
    std::vector<Tensor> first;  // the gradients of the first step
    std::vector<std::vector<float>> first_means;
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
                                     " are complete, but ", why_too_few(rank, complete, earlier)));
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
      if (n == 1) {  // it may do without all-reduces, and a mistake changes nothing
        check_means(rank, n, parameters, none_unused);
        continue;
      }
      require(values_of(theirs) == untouched, "rank ", rank,
              " has used the vector `parameters` after overlap() had returned. In "
              "overlap(group, model.parameters()) it is gone by then: keep copies of its tensors, "
              "and no reference to it");
      const std::size_t calls = calls_of_ranks()[rank] - earlier;
      require(calls == parameters.size(), "rank ", rank, " has called ", calls,
              " collectives in step ", step + 1, ", for ", parameters.size(), " parameters",
              kOneEach);
      check_means(rank, n, parameters, none_unused);
      if (step == 0) {
        first = gradients_of(parameters), first_means = values_of(first);
        passed.clear();  // so that who asks for its size waits for nothing
      }
      require(values_of(first) == first_means, "in step 2 rank ", rank,
              " has changed the gradients of step 1: what the first step began is divided again in "
              "the second. Empty the list when all of it is done");
    }
  });
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

std::function<void()> rank_0_alone(comm::ProcessGroup& group, const Parameters& parameters) {
  if (group.rank() == 0) return reference::overlap(group, parameters);
  return [] {};
}

// The vector may be gone when backward or the result looks at it.
std::function<void()> refers_to_elements(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [works, &p, &group](const Tensor&) {
      works->push_back(group.all_reduce(p.grad(), comm::ReduceOp::avg));
    });
  }
  return [works] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}
std::function<void()> divides_by_reference(comm::ProcessGroup& group,
                                           const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(
        p, [=, &group](const Tensor& leaf) { works->push_back(group.all_reduce(leaf.grad())); });
  }
  return [works, &parameters, &group] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
    for (const Tensor& p : parameters) raw::div_(p.grad(), group.size());
  };
}
std::function<void()> counts_by_reference(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [=, &group](const Tensor& leaf) {
      works->push_back(group.all_reduce(leaf.grad(), comm::ReduceOp::avg));
    });
  }
  return [works, &parameters] {
    for (std::size_t i = 0; i < parameters.size(); ++i) (*works)[i].wait();
    works->clear();
  };
}

std::function<void()> never_clears(comm::ProcessGroup& group, const Parameters& parameters) {
  using Begun = std::pair<Tensor, comm::Work>;
  const auto begun = std::make_shared<std::vector<Begun>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [=, &group](const Tensor& leaf) {
      begun->emplace_back(leaf.grad(), group.all_reduce(leaf.grad()));
    });
  }
  return [begun, &group] {
    for (const auto& [grad, work] : *begun) {
      work.wait();
      raw::div_(grad, group.size());
    }
  };
}

std::function<void()> on_a_copy(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto works = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p, [=, &group](const Tensor& leaf) {
      works->push_back(group.all_reduce(leaf.grad().clone(), comm::ReduceOp::avg));
    });
  }
  return [works] {
    for (const comm::Work& work : *works) work.wait();
    works->clear();
  };
}

// All are there before each begins.
std::function<void()> with_barriers(comm::ProcessGroup& group, const Parameters& parameters) {
  const auto barriers = std::make_shared<std::vector<comm::Work>>();
  for (const Tensor& p : parameters) {
    autograd::add_leaf_hook(p,
                            [=, &group](const Tensor&) { barriers->push_back(group.barrier()); });
  }
  return reference::overlap(group, parameters);
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
    {"rank_0_alone", rank_0_alone, "but rank 1 has called no all-reduces in this step: begin each"},
    {"refers_to_elements", refers_to_elements, "`parameters` after overlap() had returned"},
    {"divides_by_reference", divides_by_reference, "`parameters` after overlap() had returned"},
    {"counts_by_reference", counts_by_reference, "has its work been waited for?"},
    {"never_clears", never_clears, "what the first step began is divided again in the second"},
    {"on_a_copy", on_a_copy, "on the gradient itself, not on a copy"},
    {"with_barriers", with_barriers, "collectives of this step wait for each other"},
    {"without_the_first", without_the_first,
     "has called 3 collectives in step 1, for 4 parameters"},
    {"of_the_weight", of_the_weight, "parameter 0 itself was changed"},
    {"twice", twice, "there is one all-reduce for each parameter and step"},
    {"does_not_wait", does_not_wait, "has its work been waited for?"},
    {"nothing", nothing, "the result is an empty function"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "06_overlap", judge, overlap, reference::overlap, kWrong);
}
