#include "weft/onnx/export.h"

#include <algorithm>
#include <map>
#include <utility>

#include "weft/autograd/autograd.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/nn/evaluation.h"
#include "weft/onnx/batches.h"
#include "weft/onnx/graph.h"
#include "weft/onnx/operation.h"
#include "weft/onnx/trace.h"
#include "weft/tensor/ops.h"

namespace weft::onnx {
namespace {

constexpr const char* kOp = "onnx";
constexpr const char* kNotRecorded =
    "a tensor that depends on the input came from operations that the tape does not record, such "
    "as those under NoGrad or of weft::raw";

// Whether both are the same elements of the same memory.
bool same_place(const Tensor& a, const Tensor& b) {
  return a.same(b) ||
         (a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() &&
          a.strides() == b.strides() && a.dtype() == b.dtype());
}

// Reads the two traces of a model side by side and writes the graph.
class Exporter {
 public:
  Exporter(const nn::NamedTensors& state, Trace first, Trace second,
           std::pair<std::int64_t, std::int64_t> sizes)
      : graph_(sizes), tensors_(state), first_(std::move(first)), second_(std::move(second)) {
    for (const auto& [name, tensor] : tensors_) graph_.reserve(name);
  }

  void run(const ExportOptions& options) {
    const auto input_names = names("input", options.input_names, first_.inputs.size());
    for (std::size_t i = 0; i < first_.inputs.size(); ++i) {
      const Tensor &x = first_.inputs[i], &other = second_.inputs[i];
      inputs_.push_back({input_names[i], x.dtype(), x.shape(), other.shape()});
      graph_.add_input(inputs_.back());
    }
    check_alike();
    for (std::size_t i = 0; i < first_.steps.size(); ++i) add(i);
    const auto output_names = names("output", options.output_names, first_.outputs.size());
    for (std::size_t i = 0; i < first_.outputs.size(); ++i) {
      graph_.add_output(value(kOp, first_.outputs[i], second_.outputs[i]), output_names[i]);
    }
  }
  void save(const std::string& path) const { graph_.save(path); }

 private:
  static std::vector<std::string> names(const std::string& kind,
                                        const std::vector<std::string>& given, std::size_t count) {
    if (given.empty()) {
      if (count == 1) return {kind};
      std::vector<std::string> all;
      for (std::size_t i = 0; i < count; ++i) all.push_back(kind + "_" + std::to_string(i));
      return all;
    }
    WEFT_CHECK(given.size() == count, InvalidArgument, kOp, kind, "_names: got ", given.size(),
               ", the model has ", count, " ", kind, "s");
    // In ONNX an empty name is a value that is not there.
    WEFT_CHECK(std::ranges::find(given, "") == given.end(), InvalidArgument, kOp, kind,
               "_names: one is empty");
    return given;
  }

  // Both forwards must run the same operations, with the same numbers.
  void check_alike() const {
    const std::size_t count = std::min(first_.steps.size(), second_.steps.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Step &a = first_.steps[i], &b = second_.steps[i];
      const Scoped path(&ThreadState::path, a.path);
      WEFT_CHECK(a.what.op == b.what.op && a.path == b.path &&
                     a.operands.size() == b.operands.size() && a.results.size() == b.results.size(),
                 Unsupported, a.op,
                 "cannot be said in ONNX: for another batch with other values the model runs ",
                 b.op, " in its place");
      auto same_ints = a.what.ints, other_ints = b.what.ints;
      same_ints.erase("end"), other_ints.erase("end");  // the end of a slice may be the batch size
      WEFT_CHECK(same_ints == other_ints && a.what.numbers == b.what.numbers, Unsupported, a.op,
                 "cannot be said in ONNX: for another batch with other values its numbers differ");
    }
    WEFT_CHECK(first_.steps.size() == second_.steps.size() &&
                   first_.outputs.size() == second_.outputs.size(),
               Unsupported, kOp, "for another batch with other values the model runs ",
               second_.steps.size(), " operations in place of ", first_.steps.size());
  }

  void add(std::size_t i) {
    const Step &a = first_.steps[i], &b = second_.steps[i];
    // So errors name the module.
    const Scoped path(&ThreadState::path, a.path);
    std::vector<Value> operands;
    for (std::size_t k = 0; k < a.operands.size(); ++k) {
      operands.push_back(value(a.op, a.operands[k], b.operands[k]));
    }
    std::map<std::string, Value> tensors;
    for (const auto& [name, tensor] : a.tensors) {
      const auto other = b.tensors.find(name);
      WEFT_CHECK(other != b.tensors.end(), Unsupported, a.op, "cannot be said in ONNX: its ", name,
                 " is not there for every batch");
      tensors[name] = value(a.op, tensor, other->second);
    }
    Operation operation(graph_, a, b, std::move(operands), std::move(tensors));
    const Names results = lower(operation, a.what.op);
    WEFT_CHECK(!a.stale && !b.stale, Unsupported, a.op, kStale);
    values_.emplace_back();
    for (std::size_t k = 0; k < results.size(); ++k) {
      Value y = operation.result(k);
      y.name = results[k];
      values_.back().push_back(std::move(y));
    }
  }

  // The value in the file that stands for the operand.
  Value value(const char* op, const Operand& a, const Operand& b) {
    WEFT_CHECK(a.step == b.step && a.output == b.output && a.input == b.input &&
                   a.tensor.defined() == b.tensor.defined(),
               Unsupported, op,
               "cannot be said in ONNX: for another batch with other values it has other operands");
    if (a.input >= 0) return inputs_.at(static_cast<std::size_t>(a.input));
    if (a.step >= 0) {
      const auto step = static_cast<std::size_t>(a.step);
      // A view whose base was written to is computed where it is used.
      WEFT_CHECK(step < values_.size(), Unsupported, first_.steps[step].op,
                 "cannot be said in ONNX: a part of a tensor that was written to");
      return values_[step].at(static_cast<std::size_t>(a.output));
    }
    if (!a.tensor.defined()) return {};
    return of_tensor(op, a, b);
  }

  Value of_tensor(const char* op, const Operand& first, const Operand& second) {
    const Tensor &a = first.tensor, &b = second.tensor;
    for (const auto& [name, tensor] : tensors_) {
      if (!same_place(a, tensor) || !same_place(b, tensor)) continue;
      const std::uint32_t version = tensor.storage()->version();
      WEFT_CHECK(first.version == version && second.version == version, Unsupported, op,
                 "cannot be said in ONNX: the model writes to ", name);
      return {graph_.initializer(name, tensor), a.dtype(), a.shape(), b.shape()};
    }
    Value y{{}, a.dtype(), a.shape(), b.shape()};
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_input(first_, i, a) || !is_input(second_, i, b)) continue;
      const Step none{.op = op};
      y.name = Operation(graph_, none, none, {}, {}).reshape(inputs_[i].name, inputs_[i], y);
      return y;
    }
    // Not for a mask: that all its elements are true here says nothing about other inputs.
    if (a.dtype() == b.dtype() && a.shape() != b.shape() && a.dim() == b.dim() &&
        a.dtype() != DType::boolean) {
      return of_batch(op, a, b);
    }
    WEFT_CHECK(a.storage()->version() == first.version && b.storage()->version() == second.version,
               Unsupported, op,
               "cannot be said in ONNX: a tensor that it reads is written to afterwards");
    WEFT_CHECK(same_bits(a, b), Unsupported, op, "cannot be said in ONNX: ", kNotRecorded);
    y.name = graph_.constant(a);
    return y;
  }

  // Whether x is input i of forward itself, perhaps reshaped or detached.
  static bool is_input(const Trace& trace, std::size_t i, const Tensor& x) {
    const Tensor& input = trace.inputs[i];
    return x.storage() == input.storage() && x.offset() == input.offset() &&
           x.dtype() == input.dtype() && x.numel() == input.numel() && x.is_contiguous() &&
           input.is_contiguous() && x.storage()->version() == trace.versions[i];
  }

  // A tensor whose size depends on the batch and whose elements are all one number, such as an
  // initial state of zeros: the file has the number, and expands it.
  Value of_batch(const char* op, const Tensor& a, const Tensor& b) {
    const auto first = [](const Tensor& x) { return raw::narrow(raw::flatten(x), 0, 0, 1); };
    const bool one_number =
        a.numel() > 0 && b.numel() > 0 && same_bits(first(a), first(b)) &&
        same_bits(raw::contiguous(raw::expand(raw::reshape(first(a), {}), a.shape())), a) &&
        same_bits(raw::contiguous(raw::expand(raw::reshape(first(b), {}), b.shape())), b);
    WEFT_CHECK(one_number, Unsupported, op, "cannot be said in ONNX: ", kNotRecorded,
               "; or a constant's size depends on the batch");
    Value y{{}, a.dtype(), a.shape(), b.shape()};
    const Step none{.op = op};
    y.name = Operation(graph_, none, none, {}, {})
                 .expand(graph_.constant(raw::reshape(first(a), {})), y);
    return y;
  }

  Graph graph_;
  nn::NamedTensors tensors_;
  Trace first_, second_;
  std::vector<Value> inputs_;
  std::vector<std::vector<Value>> values_;  // results of each step
};

}  // namespace

void save(const nn::AnyModule& model, const std::vector<Tensor>& inputs, const std::string& path,
          const ExportOptions& options) {
  GeneratorSet generators;
  const Scoped<GeneratorSet*> drawing(&ThreadState::generators, &generators);
  const Scoped<const PathNode*> root(&ThreadState::path, nullptr);
  const Batches batches = batches_of(inputs, options.dynamic_batch);
  const nn::EvaluationScope evaluation(model);
  const EnableGrad recorded;
  const Scoped types(&ThreadState::autocast, ThreadState::AutocastTypes{DType::f32, DType::f32});
  const nn::NamedTensors state = model.state_dict();
  Trace first = trace(model, batches.first, state);
  Trace second = trace(model, batches.second, state);
  Exporter exporter(state, std::move(first), std::move(second), batches.sizes);
  exporter.run(options);
  exporter.save(path);
}

}  // namespace weft::onnx
