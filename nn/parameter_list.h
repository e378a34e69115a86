// ParameterList and ParameterDict: parameters by number, or by name.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// A list of parameters with the names "0", "1", ...
///   nn::ParameterList scales = child("scales", nn::ParameterList{ones({8}), ones({16})});
class ParameterList : public Module<ParameterList> {
 public:
  ParameterList() = default;
  ParameterList(std::initializer_list<Tensor> values);

  /// The tensor itself becomes the parameter; it requires a gradient from now on.
  void append(Tensor value);

  std::size_t size() const { return parameters_.size(); }
  /// Throws InvalidArgument beyond the end.
  const Parameter& operator[](std::size_t index) const;
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }

 private:
  std::vector<Parameter> parameters_;
};

/// Parameters with names, in the order in which they were inserted.
///   nn::ParameterDict p = child("p", nn::ParameterDict{{"scale", ones({8})}, {"bias",
///   zeros({8})}}); y = x * p["scale"] + p["bias"];
class ParameterDict : public Module<ParameterDict> {
 public:
  ParameterDict() = default;
  ParameterDict(std::initializer_list<std::pair<std::string, Tensor>> values);

  /// As ParameterList::append. Throws InvalidArgument when the name is taken, empty or contains a
  /// dot.
  void insert(const std::string& name, Tensor value);

  std::size_t size() const { return entries_.size(); }
  bool contains(std::string_view name) const;
  /// Throws InvalidArgument for a name that is not there.
  const Parameter& operator[](std::string_view name) const;
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<std::pair<std::string, Parameter>> entries_;
};

}  // namespace weft::nn
