// What the nodes of the tape say about themselves to those who write them down in another language
// (onnx/).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {
enum class UnaryOp : std::uint8_t;
struct UnaryParams;
struct Conv2dParams;
}  // namespace weft

namespace weft::autograd {

class Node;
class SavedTensor;

/// An operation, and by name what it got besides its operands.
struct Description {
  using Ints = std::vector<std::int64_t>;

  std::string op;  ///< at first the node's own name; empty if nothing but weft can say it
  std::map<std::string, Ints> ints{};
  std::map<std::string, double> numbers{};
  /// Those to which no gradient goes, such as indices and masks.
  std::map<std::string, Tensor> tensors{};

  /// Under the name of the functor, such as "add_scalar", with the numbers "a" and "b".
  void set(UnaryOp unary, const UnaryParams& params);
  void set(const Conv2dParams& params);
  void set(const char* name, const Dims& dims) { ints[name] = Ints(dims.begin(), dims.end()); }
  /// Not if the tensor is undefined.
  void set(const char* name, const Node& node, const SavedTensor& saved);
};

/// Is told of the nodes that its thread records.
class TapeObserver {
 public:
  /// x became the node's next operand. Called before an in-place method writes. x may be undefined.
  virtual void operand(const Node& node, int input, const Tensor& x) = 0;
  /// y became an output of the node.
  virtual void result(const Node& node, int output, const Tensor& y) = 0;

 protected:
  ~TapeObserver() = default;
};

/// Sets the calling thread's observer for a scope.
class ObserverScope {
 public:
  explicit ObserverScope(TapeObserver* observer);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  TapeObserver* before_;
};

/// Whether the calling thread has an observer.
bool is_observed();

/// What an operation without a gradient got besides its operands: in its description "a" and
/// "dims".
struct PlainDetail {
  std::optional<double> number{};
  const Dims* dims = nullptr;
};

/// Puts y on the tape for the observer: the result of an operation that has no gradient.
void tell_of_operation(const char* name, const Tensor& y, std::span<const Tensor* const> operands,
                       const PlainDetail& detail);

}  // namespace weft::autograd
