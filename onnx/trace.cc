#include "weft/onnx/trace.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "weft/autograd/autocast.h"
#include "weft/autograd/graph.h"
#include "weft/core/base/error.h"
#include "weft/tensor/ops.h"

namespace weft::onnx {
namespace {

using autograd::Node;

// The history of an input: so whatever depends on it is recorded, and forward may write to it.
class InputNode final : public Node {
 public:
  explicit InputNode(int number) : Node("input"), number(number) {}
  void apply(autograd::Gradients&) override {}
  const int number;
};

// What the tape does not keep of the nodes.
class Recorder final : public autograd::TapeObserver {
 public:
  void operand(const Node& node, int input, const Tensor& x) override {
    constants_[{node.sequence(), input}] = x;
  }
  void result(const Node& node, int output, const Tensor& y) override {
    auto& results = results_[node.sequence()];
    results.resize(std::max(results.size(), static_cast<std::size_t>(output) + 1));
    results[static_cast<std::size_t>(output)] = {y.dtype(), y.shape()};
  }
  Tensor constant(const Node& node, int input) const {
    const auto found = constants_.find({node.sequence(), input});
    return found == constants_.end() ? Tensor() : found->second;
  }
  const std::vector<Result>& results(const Node& node) const {
    return results_.at(node.sequence());
  }

 private:
  std::map<std::pair<std::uint64_t, int>, Tensor> constants_;
  std::unordered_map<std::uint64_t, std::vector<Result>> results_;
};

const Node* node_of(const autograd::Edge& edge) {
  return edge.empty() || edge.is_leaf() ? nullptr : static_cast<const Node*>(edge.target());
}

// The nodes that y depends on, without inputs, in the order of recording.
std::vector<const Node*> nodes_before(const std::vector<autograd::Edge>& roots) {
  std::vector<const Node*> found, open;
  std::unordered_set<const Node*> seen;
  const auto meet = [&](const autograd::Edge& edge) {
    const Node* node = node_of(edge);
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const autograd::Edge& root : roots) meet(root);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const autograd::Edge& edge : node->edges()) meet(edge);
    if (!dynamic_cast<const InputNode*>(node)) found.push_back(node);
  }
  std::ranges::sort(found, {}, &Node::sequence);
  return found;
}

Step step_of(const Node& node, const Recorder& recorder) {
  Step step{.op = node.op(), .path = node.path(), .results = recorder.results(node)};
  step.what.op = node.op();
  node.describe(step.what);
  return step;
}

}  // namespace

Trace trace(const nn::AnyModule& model, const std::vector<Tensor>& inputs) {
  Recorder recorder;
  Trace result;
  std::vector<Tensor> outputs;
  {
    const autograd::ObserverScope observed(&recorder);
    for (const Tensor& x : inputs) {
      const Tensor own = raw::clone(x);
      if (is_floating(x.dtype())) {
        const int number = static_cast<int>(result.inputs.size());
        autograd::attach(own, make_intrusive<InputNode>(number));
      }
      result.inputs.push_back(own);
      result.versions.push_back(own.storage()->version());
    }
    outputs = model(result.inputs);
  }

  std::vector<autograd::Edge> roots;
  for (const Tensor& y : outputs) {
    WEFT_CHECK(y.defined(), Unsupported, "onnx", "a result of the model is undefined");
    roots.emplace_back(y);
    result.results.push_back({y.dtype(), y.shape()});
  }
  const std::vector<const Node*> nodes = nodes_before(roots);
  std::unordered_map<const Node*, int> number;
  for (const Node* node : nodes) number.emplace(node, static_cast<int>(number.size()));
  const auto operand = [&](const autograd::Edge& edge, const Tensor& constant) {
    if (edge.empty()) return Operand{.tensor = constant};
    if (edge.is_leaf()) {
      return Operand{.tensor = Tensor(intrusive_ptr(static_cast<TensorImpl*>(edge.target())))};
    }
    const Node* node = node_of(edge);
    if (const auto* input = dynamic_cast<const InputNode*>(node)) {
      return Operand{.input = input->number};
    }
    return Operand{.step = number.at(node), .output = edge.output()};
  };
  for (const Node* node : nodes) {
    Step step = step_of(*node, recorder);
    int i = 0;
    for (const autograd::Edge& edge : node->edges()) {
      step.operands.push_back(operand(edge, recorder.constant(*node, i++)));
    }
    result.steps.push_back(std::move(step));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    result.outputs.push_back(operand(roots[i], outputs[i]));
  }
  return result;
}

}  // namespace weft::onnx
