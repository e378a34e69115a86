// weft's operations by name, for programs that come as data (differential.cc).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/kernels/loss.h"
#include "weft/nn/loss.h"
#include "weft/tensor/tensor.h"

namespace weft::peers {

/// One step of a case: {"op": "sum", "in": [0], "dims": [1], "keepdim": true}.
class Call {
 public:
  Call(const nlohmann::json& step, std::span<const Tensor> in) : in(in), step_(step) {}

  /// The operand; undefined where there is none.
  Tensor operand(std::size_t i) const { return i < in.size() ? in[i] : Tensor(); }
  bool has(const char* name) const { return step_.contains(name); }
  std::string text(const char* name) const { return step_.at(name).get<std::string>(); }
  bool flag(const char* name) const { return step_.value(name, false); }
  std::int64_t integer(const char* name) const { return step_.at(name).get<std::int64_t>(); }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return has(name) ? integer(name) : otherwise;
  }
  int dim(const char* name) const { return static_cast<int>(integer(name)); }
  /// JSON has no NaN and no infinity: they come as text.
  double number(const char* name) const {
    const nlohmann::json& value = step_.at(name);
    return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
  }
  double number(const char* name, double otherwise) const {
    return has(name) ? number(name) : otherwise;
  }
  std::optional<double> optional_number(const char* name) const {
    return has(name) ? std::optional(number(name)) : std::nullopt;
  }
  std::optional<std::int64_t> optional_integer(const char* name) const {
    return has(name) ? std::optional(integer(name)) : std::nullopt;
  }
  std::vector<double> numbers(const char* name) const {
    return has(name) ? step_.at(name).get<std::vector<double>>() : std::vector<double>();
  }
  std::vector<std::string> texts(const char* name) const {
    return step_.at(name).get<std::vector<std::string>>();
  }
  std::vector<std::int64_t> integers(const char* name) const {
    return step_.at(name).get<std::vector<std::int64_t>>();
  }
  /// Empty where it is not given.
  Dims dims(const char* name) const {
    if (!has(name)) return {};
    return Dims(std::span<const std::int64_t>(step_.at(name).get<std::vector<std::int64_t>>()));
  }
  std::array<std::int64_t, 2> pair(const char* name, std::int64_t otherwise) const {
    if (!has(name)) return {otherwise, otherwise};
    return step_.at(name).get<std::array<std::int64_t, 2>>();
  }
  DType dtype(const char* name) const { return parse_dtype(text(name)); }
  Reduction reduction() const {
    const std::string word = step_.value("reduction", "mean");
    return word == "none" ? Reduction::none : word == "sum" ? Reduction::sum : Reduction::mean;
  }
  nn::KlReduction kl_reduction() const {
    const std::string word = step_.value("reduction", "mean");
    if (word == "batchmean") return nn::KlReduction::batchmean;
    return word == "none"  ? nn::KlReduction::none
           : word == "sum" ? nn::KlReduction::sum
                           : nn::KlReduction::mean;
  }

  const std::span<const Tensor> in;

 private:
  const nlohmann::json& step_;
};

/// What a step appends to the tensors of its case.
using Operation = std::function<std::vector<Tensor>(const Call&)>;
using Operations = std::map<std::string, Operation>;

// Each adds its part of the table.
void add_elementwise(Operations& table);
void add_tensor(Operations& table);
void add_layers(Operations& table);
void add_training(Operations& table);
void add_modules(Operations& table);

}  // namespace weft::peers
