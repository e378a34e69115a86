// A step of the traces, and how it is expressed in ONNX. Private to onnx/.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/onnx/graph.h"
#include "weft/onnx/trace.h"

namespace weft::onnx {

using Names = std::vector<std::string>;

/// What a rule works with: the step of both traces, its operands, and the graph to which it adds
/// nodes. Names of nodes begin with the module's path.
class Operation {
 public:
  Operation(Graph& graph, const Step& step, const Step& other, std::vector<Value> operands,
            std::map<std::string, Value> tensors);

  std::size_t operands() const { return operands_.size(); }
  /// An operand; its name is empty if it was left out.
  const Value& operand(std::size_t i) const { return operands_[i]; }
  /// Its name, after a conversion to the dtype in which the operation computes.
  std::string in(std::size_t i = 0);
  /// Makes the operation compute in this dtype instead of the result's.
  void compute_in(DType dtype) { computed_ = dtype; }
  DType computed() const { return computed_; }
  /// A tensor of the description, such as an index or a mask. Throws Unsupported if there is none.
  const Value& tensor(const std::string& name) const;
  bool has_tensor(const std::string& name) const { return tensors_.contains(name); }
  const Ints& ints(const std::string& name) const;
  std::int64_t integer(const std::string& name) const { return ints(name).at(0); }
  double number(const std::string& name) const;
  /// The end of a slice: the largest integer if it is the end of a dimension whose size is the
  /// batch.
  std::int64_t end(std::int64_t dim) const;
  /// A result, without a name.
  Value result(std::size_t output = 0) const;
  std::size_t results() const { return step_.results.size(); }

  /// The name of a new node's result.
  std::string node(const char* type, const Names& inputs, const Attributes& attributes = {});
  Names nodes(const char* type, const Names& inputs, const Attributes& attributes, int outputs);
  std::string ints_constant(const Ints& values) { return graph_.constant(values); }
  /// A constant with the dtype in which the operation computes.
  std::string constant(double value) { return constant(value, computed_); }
  std::string constant(double value, DType dtype) { return graph_.constant(value, dtype); }
  std::string constant(const Tensor& x) { return graph_.constant(x); }
  std::string cast(const std::string& name, DType dtype);
  /// x in the shape of `like`.
  std::string reshape(const std::string& name, const Value& from, const Value& to);
  std::string expand(const std::string& name, const Value& to);
  std::string shape_of(const Value& x);

  /// Throws Unsupported, naming the operation; the module is that of the thread.
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  Graph& graph_;
  const Step &step_, &other_;
  std::vector<Value> operands_;
  std::map<std::string, Value> tensors_;
  std::string path_;
  DType computed_;
};

/// Adds the nodes of an operation and gives the names of its results.
using Rule = std::function<Names(Operation&)>;
/// Rules by the names of descriptions, one table for each file.
using Rules = std::map<std::string_view, Rule>;
/// The rule, whose nodes do not take bool and u8: such results are computed in i32. As in weft,
/// what is not 0 is true, and u8 keeps the lowest 8 bits.
Rule in_i32(Rule rule);
const Rules& elementwise_rules();
const Rules& shape_rules();
const Rules& reduction_rules();
const Rules& layer_rules();

/// Throws Unsupported if no rule can express it.
Names lower(Operation& operation, const std::string& name);

}  // namespace weft::onnx
