#include "weft/nn/parameter_list.h"

#include <algorithm>

#include "weft/core/base/error.h"

namespace weft::nn {

ParameterList::ParameterList(std::initializer_list<Tensor> values) {
  for (const Tensor& value : values) append(value);
}

void ParameterList::append(Tensor value) {
  parameters_.push_back(parameter(std::to_string(size()), std::move(value)));
}

const Parameter& ParameterList::operator[](std::size_t index) const {
  WEFT_CHECK(index < size(), InvalidArgument, "ParameterList", "index ", index, " in a list of ",
             size());
  return parameters_[index];
}

ParameterDict::ParameterDict(std::initializer_list<std::pair<std::string, Tensor>> values) {
  for (const auto& [name, value] : values) insert(name, value);
}

void ParameterDict::insert(const std::string& name, Tensor value) {
  entries_.emplace_back(name, parameter(name, std::move(value)));
}

bool ParameterDict::contains(std::string_view name) const {
  return std::ranges::any_of(entries_, [&](const auto& entry) { return entry.first == name; });
}

const Parameter& ParameterDict::operator[](std::string_view name) const {
  const auto found =
      std::ranges::find_if(entries_, [&](const auto& entry) { return entry.first == name; });
  WEFT_CHECK(found != entries_.end(), InvalidArgument, "ParameterDict", "has no '", name, "'");
  return found->second;
}

}  // namespace weft::nn
