#include "weft/onnx/trace.h"

#include <algorithm>
#include <map>
#include <ranges>
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

// Stands for an input on the tape. So the tape records all that is computed from the input, and
// forward may write to the input, which would be an error for a leaf.
class InputNode final : public Node {
 public:
  explicit InputNode(int number) : Node("input"), number(number) {}
  void apply(autograd::Gradients&) override {}
  const int number;
};

const Node* node_of(const autograd::Edge& edge) {
  return edge.empty() || edge.is_leaf() ? nullptr : static_cast<const Node*>(edge.target());
}

Operand read(const Tensor& x) {
  return {.tensor = x, .version = x.defined() ? x.storage()->version() : 0};
}

// Keeps what the tape does not: operands without a gradient, and results. It also holds the nodes
// and the results' memory: their addresses are its keys and must not be reused.
class Recorder final : public autograd::TapeObserver {
 public:
  explicit Recorder(const nn::NamedTensors& state) {
    for (const auto& [name, tensor] : state) kept_.insert(tensor.storage().get());
  }
  void keep(const Tensor& input) { kept_.insert(input.storage().get()); }

  void operand(const Node& node, int input, const Tensor& x) override {
    if (!x.defined()) return;
    const autograd::Edge& edge = node.edges()[static_cast<std::size_t>(input)];
    if (!edge.empty() && !edge.is_leaf()) {
      if (!is_current(x)) stale_.insert(node.sequence());
      return;
    }
    // A copy, since forward may write to x later, and since holding x would add an owner:
    // operations decide by the number of owners whether they may overwrite x.
    const bool keeps = edge.is_leaf() || kept_.contains(x.storage().get());
    constants_[{node.sequence(), input}] = read(keeps ? raw::alias(x) : raw::clone(x));
  }
  void result(const Node& node, int output, const Tensor& y) override {
    auto& [held, results] = nodes_[&node];
    held = intrusive_ptr(const_cast<Node*>(&node));
    results.resize(std::max(results.size(), static_cast<std::size_t>(output) + 1));
    results[static_cast<std::size_t>(output)] = {y.dtype(), y.shape()};
    Memory& memory = memories_[y.storage().get()];
    memory.version = y.storage()->version();
    memory.places.push_back({raw::alias(y), memory.version, &node, output});
  }

  bool knows(const Node* node) const { return nodes_.contains(node); }
  bool is_stale(const Node& node) const { return stale_.contains(node.sequence()); }
  const std::vector<Result>& results(const Node& node) const { return nodes_.at(&node).results; }
  Operand constant(const Node& node, int input) const {
    const auto found = constants_.find({node.sequence(), input});
    return found == constants_.end() ? Operand() : found->second;
  }
  // Whether all writes to y, which is a result, are known.
  bool is_current(const Tensor& y) const {
    const auto found = memories_.find(y.storage().get());
    return found == memories_.end() || found->second.version == y.storage()->version();
  }
  // For x without a history of its own: the node's output that has the same elements in memory.
  std::pair<const Node*, int> source(const Tensor& x) const {
    const auto found = memories_.find(x.storage().get());
    if (found == memories_.end()) return {};
    for (const Place& place : found->second.places | std::views::reverse) {
      const Tensor& y = place.tensor;
      if (place.version == x.storage()->version() && y.offset() == x.offset() &&
          y.shape() == x.shape() && y.strides() == x.strides() && y.dtype() == x.dtype()) {
        return {place.node, place.output};
      }
    }
    return {};
  }

 private:
  struct Place {
    Tensor tensor;
    std::uint32_t version;
    const Node* node;
    int output;
  };
  struct Memory {
    std::uint32_t version = 0;  // after the last known write
    std::vector<Place> places;
  };
  struct Known {
    intrusive_ptr<Node> held;
    std::vector<Result> results;
  };
  std::unordered_set<const Storage*> kept_;
  std::map<std::pair<std::uint64_t, int>, Operand> constants_;
  std::unordered_set<std::uint64_t> stale_;
  std::unordered_map<const Node*, Known> nodes_;
  std::unordered_map<const Storage*, Memory> memories_;
};

// The nodes that the results depend on, and the operands of those.
class Reader {
 public:
  explicit Reader(const Recorder& recorder) : recorder_(recorder) {}

  void follow(const std::vector<autograd::Edge>& roots) {
    std::vector<const Node*> open;
    const auto meet = [&](const Node* node) {
      if (node && !dynamic_cast<const InputNode*>(node) && steps_.emplace(node, Step()).second) {
        open.push_back(node);
      }
    };
    for (const autograd::Edge& root : roots) meet(node_of(root));
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      Step& step = steps_.at(node);
      step = step_of(*node);
      for (const autograd::Edge& edge : node->edges()) meet(node_of(edge));
      for (const auto& [name, x] : step.what.tensors) meet(recorder_.source(x).first);
    }
    for (const auto& [node, step] : steps_) nodes_.push_back(node);
    std::ranges::sort(nodes_, {}, &Node::sequence);
    for (const Node* node : nodes_) number_.emplace(node, static_cast<int>(number_.size()));
  }

  std::vector<Step> steps() const {
    std::vector<Step> result;
    for (const Node* node : nodes_) {
      Step step = steps_.at(node);
      int i = 0;
      for (const autograd::Edge& edge : node->edges()) {
        step.operands.push_back(operand(edge, recorder_.constant(*node, i++)));
      }
      for (const auto& [name, x] : step.what.tensors) {
        const auto [source, output] = recorder_.source(x);
        step.tensors[name] = source ? of_node(source, output) : read(x);
      }
      result.push_back(std::move(step));
    }
    return result;
  }
  Operand operand(const autograd::Edge& edge, const Operand& constant) const {
    return node_of(edge) ? of_node(node_of(edge), edge.output()) : constant;
  }

 private:
  Step step_of(const Node& node) const {
    const Scoped path(&ThreadState::path, node.path());
    WEFT_CHECK(recorder_.knows(&node), Unsupported, node.op(),
               "cannot be said in ONNX: it ran before the model did, or in another thread; keep "
               "state that carries over to the next call as detach()ed inputs and outputs");
    Step step{.op = node.op(), .path = node.path(), .results = recorder_.results(node)};
    step.stale = recorder_.is_stale(node);
    step.what.op = node.op();
    node.describe(step.what);
    return step;
  }
  Operand of_node(const Node* node, int output) const {
    if (const auto* input = dynamic_cast<const InputNode*>(node)) return {.input = input->number};
    return {.step = number_.at(node), .output = output};
  }

  const Recorder& recorder_;
  std::unordered_map<const Node*, Step> steps_;
  std::vector<const Node*> nodes_;  // in the order of recording
  std::unordered_map<const Node*, int> number_;
};

}  // namespace

Trace trace(const nn::AnyModule& model, const std::vector<Tensor>& inputs,
            const nn::NamedTensors& state) {
  Recorder recorder(state);
  Trace result;
  std::vector<Tensor> outputs;
  {
    const autograd::ObserverScope observed(&recorder);
    for (const Tensor& x : inputs) {
      const Tensor own = raw::clone(x);
      recorder.keep(own);
      const int number = static_cast<int>(result.inputs.size());
      autograd::attach(own, make_intrusive<InputNode>(number));
      result.inputs.push_back(own);
      result.versions.push_back(own.storage()->version());
    }
    outputs = model(result.inputs);
  }

  std::vector<autograd::Edge> roots;
  for (const Tensor& y : outputs) {
    WEFT_CHECK(y.defined(), Unsupported, "onnx", "a result of the model is undefined");
    roots.emplace_back(y);
    WEFT_CHECK(!node_of(roots.back()) || recorder.is_current(y), Unsupported, "onnx", kStale);
    result.results.push_back({y.dtype(), y.shape()});
  }
  Reader reader(recorder);
  reader.follow(roots);
  result.steps = reader.steps();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    result.outputs.push_back(reader.operand(roots[i], read(outputs[i])));
  }
  return result;
}

}  // namespace weft::onnx
