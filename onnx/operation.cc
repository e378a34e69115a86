#include "weft/onnx/operation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "weft/core/base/error.h"

namespace weft::onnx {

Operation::Operation(Graph& graph, const Step& step, const Step& other, std::vector<Value> operands,
                     std::map<std::string, Value> tensors)
    : graph_(graph),
      step_(step),
      other_(other),
      operands_(std::move(operands)),
      tensors_(std::move(tensors)),
      computed_(step.results.empty() ? DType::f32 : result().dtype) {
  path_ = module_path(step.path);
  std::ranges::replace(path_, '.', '/');
  if (!path_.empty()) path_.insert(0, "/");
}

void Operation::refuse(std::string_view why) const {
  WEFT_THROW(Unsupported, step_.op, "cannot be said in ONNX: ", why);
}

std::string Operation::in(std::size_t i) {
  const Value& x = operands_.at(i);
  return x.dtype == computed_ ? x.name : cast(x.name, computed_);
}

const Value& Operation::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse("this form of it has no rule");
  return found->second;
}

const Ints& Operation::ints(const std::string& name) const {
  const auto found = step_.what.ints.find(name);
  if (found == step_.what.ints.end()) refuse("this form of it has no rule");
  return found->second;
}

double Operation::number(const std::string& name) const {
  const auto found = step_.what.numbers.find(name);
  if (found == step_.what.numbers.end()) refuse("this form of it has no rule");
  return found->second;
}

std::int64_t Operation::end(std::int64_t dim) const {
  const Value& x = operands_.at(0);
  const std::int64_t one = integer("end"), two = other_.what.ints.at("end")[0];
  if (one == two) return one;
  if (one >= x.shape[dim] && two >= x.other[dim]) return std::numeric_limits<std::int64_t>::max();
  refuse("its end depends on the batch");
}

Value Operation::result(std::size_t output) const {
  const Result& y = step_.results.at(output);
  return {{}, y.dtype, y.shape, other_.results.at(output).shape};
}

std::string Operation::node(const char* type, const Names& inputs, const Attributes& attributes) {
  return graph_.node(path_, type, inputs, attributes)[0];
}
Names Operation::nodes(const char* type, const Names& inputs, const Attributes& attributes,
                       int outputs) {
  return graph_.node(path_, type, inputs, attributes, outputs);
}

std::string Operation::cast(const std::string& name, DType dtype) {
  return node("Cast", {name}, {{"to", onnx_type(dtype)}});
}

std::string Operation::shape_of(const Value& x) {
  const std::string shape = graph_.shape(x.shape, x.other);
  if (shape.empty()) refuse("a size is neither fixed nor a multiple of the batch");
  return shape;
}

std::string Operation::reshape(const std::string& name, const Value& from, const Value& to) {
  if (from.shape == to.shape && from.other == to.other) return name;
  // In ONNX's Reshape 0 means the size of the input, and -1 the size that remains: so the node fits
  // any batch without computing its size.
  Ints sizes;
  int free = 0;
  bool plain = true;
  for (int i = 0; i < to.dim(); ++i) {
    const bool fixed = to.shape[i] == to.other[i];
    const bool kept =
        i < from.dim() && from.shape[i] == to.shape[i] && from.other[i] == to.other[i];
    plain = plain && to.shape[i] != 0;
    free += !fixed && !kept;
    sizes.push_back(fixed ? to.shape[i] : kept ? 0 : -1);
  }
  if (plain && free <= 1) return node("Reshape", {name, ints_constant(sizes)});
  return node("Reshape", {name, shape_of(to)}, {{"allowzero", std::int64_t{1}}});
}

std::string Operation::expand(const std::string& name, const Value& to) {
  return node("Expand", {name, shape_of(to)});
}

Rule in_i32(Rule rule) {
  return [rule = std::move(rule)](Operation& o) -> Names {
    const DType dtype = o.computed();
    if (dtype != DType::boolean && dtype != DType::u8) return rule(o);
    o.compute_in(DType::i32);
    Names results = rule(o);
    for (std::string& y : results) y = o.cast(y, dtype);
    return results;
  };
}

Names lower(Operation& operation, const std::string& name) {
  for (const Rules* rules :
       {&elementwise_rules(), &shape_rules(), &reduction_rules(), &layer_rules()}) {
    const auto found = rules->find(name);
    if (found != rules->end()) return found->second(operation);
  }
  operation.refuse("the exporter has no rule for it");
}

}  // namespace weft::onnx
