#include "weft/autograd/tape.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <numeric>
#include <ostream>

#include "weft/autograd/discovery.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"

namespace weft::autograd {

namespace {

TapeNode describe(const Task& task) {
  if (task.leaf) {
    const Tensor leaf{intrusive_ptr<TensorImpl>(task.impl())};
    return {.op = "leaf", .shape = leaf.shape(), .leaf = leaf};
  }
  const Node& node = task.node();
  return {.op = node.op(),
          .module = module_path(node.path()),
          .shape = node.shape(),
          .saved_bytes = node.saved_bytes(),
          .freed = node.freed()};
}

}  // namespace

std::vector<TapeNode> tape(const Tensor& y) {
  WEFT_CHECK(requires_grad(y), InvalidArgument, "tape",
             "the tensor requires no gradient, so nothing is recorded of it");
  Discovery found;
  found.task_of(Edge(y));
  found.follow();

  std::vector<std::int32_t> order;  // of operations; leaves follow where they are first met
  for (std::size_t i = 0; i < found.tasks.size(); ++i) {
    if (!found.tasks[i].leaf) order.push_back(static_cast<std::int32_t>(i));
  }
  std::ranges::sort(order, std::greater(), [&](auto i) { return found.tasks[i].sequence; });
  std::vector<int> place(found.tasks.size(), -1);
  for (std::size_t p = 0; p < order.size(); ++p) place[order[p]] = static_cast<int>(p);
  if (order.empty()) {  // y is a leaf
    order.push_back(0);
    place[0] = 0;
  }

  std::vector<TapeNode> nodes;
  for (std::size_t p = 0; p < order.size(); ++p) {
    const Task& task = found.tasks[order[p]];
    nodes.push_back(describe(task));
    if (task.leaf) continue;
    for (std::size_t e = 0; e < task.node().edges().size(); ++e) {
      const std::int32_t target = found.links[task.first_link + e].task;
      if (target >= 0 && place[target] < 0) {
        place[target] = static_cast<int>(order.size());
        order.push_back(target);
      }
      nodes.back().operands.push_back(target < 0 ? -1 : place[target]);
    }
  }
  return nodes;
}

void print(const Tensor& y, std::ostream& out) {
  std::vector<std::array<std::string, 5>> lines;
  for (const TapeNode& node : tape(y)) {
    std::string keeps, goes;
    if (node.saved_bytes > 0) {
      keeps = (node.freed ? "kept " : "keeps ") +
              readable_bytes(static_cast<std::size_t>(node.saved_bytes));
    }
    for (const int operand : node.operands) {
      goes += (goes.empty() ? "-> " : ", ") + (operand < 0 ? "-" : std::to_string(operand));
    }
    lines.push_back({node.op, node.module, detail::concat(node.shape), keeps, goes});
  }
  std::array<std::size_t, 5> width = {};
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < width.size(); ++c) width[c] = std::max(width[c], line[c].size());
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string number = std::to_string(i);
    std::string text(std::max<std::size_t>(4, number.size()) - number.size(), ' ');
    text += number;
    for (std::size_t c = 0; c < width.size(); ++c) {
      if (width[c] == 0) continue;
      text += "  " + lines[i][c] + std::string(width[c] - lines[i][c].size(), ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  }
}

void print(const Tensor& y) { print(y, std::cout); }

}  // namespace weft::autograd
