#include "weft/autograd/captures.h"

#include "weft/core/base/error.h"

namespace weft::autograd {

void Captures::choose(Discovery& found, std::span<const Tensor> inputs, bool allow_unused) {
  results_.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    WEFT_CHECK(x.defined() && requires_grad(x), InvalidArgument, "grad", "input ", i,
               " does not require a gradient");
    const Edge edge(x);
    const std::int32_t task = found.find(edge.target());
    if (task < 0) {
      WEFT_CHECK(allow_unused, InvalidArgument, "grad", "the outputs do not depend on input ", i,
                 " (", x.shape(), "); pass allow_unused=true to get an undefined gradient for it");
      continue;
    }
    found.tasks[task].captured = true;
    captures_.push_back({task, edge.output(), static_cast<std::int32_t>(i)});
  }
  prune(found);
}

// Keeps the tasks from which an input is reached.
void Captures::prune(Discovery& found) {
  auto& tasks = found.tasks;
  const auto end_of_links = [&](std::int32_t task) {
    const std::size_t next = task + 1;
    return next < tasks.size() ? tasks[next].first_link
                               : static_cast<std::int32_t>(found.links.size());
  };
  order_.clear();
  waits_for_.resize(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    waits_for_[i] = tasks[i].pending;
    if (waits_for_[i] == 0) order_.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (int k = tasks[order_[i]].first_link; k < end_of_links(order_[i]); ++k) {
      const std::int32_t to = found.links[k].task;
      if (to >= 0 && --waits_for_[to] == 0) order_.push_back(to);
    }
  }
  for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
    Task& task = tasks[*at];
    task.runs = false;
    for (int k = task.first_link; k < end_of_links(*at); ++k) {
      Link& link = found.links[k];
      if (link.task < 0) continue;
      if (tasks[link.task].wanted) {
        task.runs = true;
      } else {
        link.task = -1;
      }
    }
    task.wanted = task.runs || task.captured;
  }
}

void Captures::keep(std::int32_t task, std::span<const Tensor> gradients) {
  for (const Capture& c : captures_) {
    if (c.task == task) results_[c.input] = gradients[c.output];
  }
}

void Captures::hand_over(const Discovery& found, const TaskStreams& streams) {
  for (const Capture& c : captures_) {
    const Tensor& result = results_[c.input];
    if (!result.defined() || result.device().is_cpu()) continue;
    const StreamScope made(streams.of(found.tasks[c.task], result.device()));
    TaskStreams::hand_over(result, streams.caller(result.device()));
  }
}

void Captures::clear() {
  captures_.clear();
  results_.clear();
}

}  // namespace weft::autograd
