// PickleValue: what Python's pickle of numbers, texts, containers and tensors holds.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "weft/core/base/shape.h"
#include "weft/io/named_tensors.h"

namespace weft::io {

/// An immutable value of Python's: copies share lists, dicts and tensors.
///   const io::PickleValue file = io::load_pickle("checkpoint.pt");
///   const std::int64_t epoch = file.at("epoch").integer();
///   const Tensor exp_avg = file.at("optimizer").at("state").at(0).at("exp_avg").tensor();
class PickleValue {
 public:
  /// integer: an int of 64 bits. text: a str, and the name of a dtype or device. tuple: also a
  /// torch.Size. dict: also an OrderedDict or a Counter, in their order.
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    bytes,
    list,
    tuple,
    set,
    dict,
    tensor
  };
  using Items = std::vector<PickleValue>;
  using Entries = std::vector<std::pair<PickleValue, PickleValue>>;

  PickleValue() = default;            ///< None
  template <std::same_as<bool> Bool>  // not for pointers
  PickleValue(Bool value) : kind_(Kind::boolean), value_(value) {}
  /// Throws InvalidArgument for a number over 2^63 - 1.
  template <Integer Int>
  PickleValue(Int value) : kind_(Kind::integer), value_(std::int64_t{}) {
    if (!std::in_range<std::int64_t>(value)) throw_too_large(static_cast<std::uint64_t>(value));
    value_ = static_cast<std::int64_t>(value);
  }
  PickleValue(double value) : kind_(Kind::real), value_(value) {}
  PickleValue(std::nullptr_t) = delete;
  PickleValue(std::string text);
  PickleValue(const char* text) : PickleValue(std::string(text)) {}
  PickleValue(Tensor tensor);
  // No moves, which would leave a value without what its kind says it has.
  PickleValue(const PickleValue&) = default;
  PickleValue& operator=(const PickleValue&) = default;
  static PickleValue bytes(std::string bytes);
  static PickleValue list(Items items) { return {Kind::list, std::move(items)}; }
  static PickleValue tuple(Items items) { return {Kind::tuple, std::move(items)}; }
  static PickleValue set(Items items) { return {Kind::set, std::move(items)}; }
  /// Throws InvalidArgument for a key that is no None, bool, int, float, str or bytes, and for one
  /// that is given twice. As in Python, 1, 1.0 and True are the same key.
  static PickleValue dict(Entries entries) { return ordered_dict(std::move(entries), {}); }
  static PickleValue state_dict(const NamedTensors& tensors);  ///< a dict, too
  /// `attributes`: a dict such as {"_metadata": ...}, or None.
  static PickleValue ordered_dict(Entries entries, PickleValue attributes);

  Kind kind() const { return kind_; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_dict() const { return kind_ == Kind::dict; }
  bool is_tensor() const { return kind_ == Kind::tensor; }

  // Each throws InvalidArgument for a value of another kind.
  bool boolean() const;
  std::int64_t integer() const;
  double real() const;              ///< also of an int
  const std::string& text() const;  ///< also of bytes
  const Tensor& tensor() const;
  const Items& items() const;      ///< of a list, tuple or set
  const Entries& entries() const;  ///< of a dict, in its order
  /// The attributes of an OrderedDict, as a dict; else None.
  const PickleValue& attributes() const;

  /// The value of this key in a dict, null if there is none. Compares key by key.
  const PickleValue* find(const PickleValue& key) const;
  /// Throws InvalidArgument naming the keys that there are.
  const PickleValue& at(const PickleValue& key) const;

  /// Equal for copies of a list, tuple, set or dict, which share its memory; null for other values.
  const void* identity() const;

 private:
  struct Container {
    Items items;
    Entries entries;
    Items attributes;  // at most one
  };

  PickleValue(Kind kind, Items items);
  [[noreturn]] static void throw_too_large(std::uint64_t value);
  const Container& container(Kind kind) const;

  Kind kind_ = Kind::none;
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Container>, Tensor>
      value_;
};

/// "dict", "int": Python's name.
const char* to_string(PickleValue::Kind kind);

}  // namespace weft::io
