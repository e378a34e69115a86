// An ONNX graph that grows node by node, and its file. Private to onnx/.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::onnx {

using Ints = std::vector<std::int64_t>;
/// A number of the type double is stored as a float, the only such type of attributes.
using Attribute = std::variant<std::int64_t, double, std::string, Ints>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

/// A tensor of the file, with its shapes for the two batches. No name: an operand that was left
/// out.
struct Value {
  std::string name{};
  DType dtype = DType::f32;
  Shape shape{}, other{};

  bool defined() const { return !name.empty(); }
  int dim() const { return shape.size(); }
};

/// The number of the dtype in ONNX files.
std::int64_t onnx_type(DType dtype);

class Graph {
 public:
  /// `batches`: the sizes of the two batches.
  explicit Graph(std::pair<std::int64_t, std::int64_t> batches) : batches_(batches) {}

  /// Keeps a name for initializer().
  void reserve(const std::string& name);
  /// Throws InvalidArgument if its name is taken.
  void add_input(const Value& x);
  /// Adds x under its own name; x may be an input or an initializer.
  void add_output(const Value& x, const std::string& name);
  /// The names of the new node's results, which begin with `path`.
  std::vector<std::string> node(const std::string& path, const char* type,
                                const std::vector<std::string>& inputs,
                                const Attributes& attributes = {}, int outputs = 1);
  /// A parameter, a buffer or a constant, once for each name.
  std::string initializer(const std::string& name, const Tensor& x);
  /// A constant without a name.
  std::string constant(const Tensor& x);
  std::string constant(const Ints& values);
  std::string constant(double value, DType dtype);
  /// A shape i64 [rank] whose sizes may depend on the batch. Empty if a size is neither the same
  /// for both batches nor a multiple of the batch.
  std::string shape(const Shape& shape, const Shape& other);

  /// Throws InvalidArgument if the file would have 2 GB or more.
  void save(const std::string& path) const;

 private:
  struct Node {
    std::string name;
    const char* type;
    std::vector<std::string> inputs, outputs;
    Attributes attributes;
  };
  std::string unique(const std::string& name);
  std::string value_info(const Value& x) const;
  /// The size as a multiple of the batch size; 0 if it is fixed, -1 if it is neither.
  std::int64_t batches_in(std::int64_t size, std::int64_t other) const;

  std::pair<std::int64_t, std::int64_t> batches_;
  std::set<std::string> names_;
  std::vector<Node> nodes_;
  std::vector<Value> inputs_, outputs_;
  std::string batch_;  // the first size of the first input, i64 [1]
  std::vector<std::pair<std::string, Tensor>> initializers_;
  std::unordered_multimap<std::size_t, std::size_t> constants_;  // initializers by their hash
};

}  // namespace weft::onnx
