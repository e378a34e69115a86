#include "weft/nn/padding.h"

#include <string>
#include <vector>

#include "weft/core/base/error.h"

namespace weft::nn {
namespace {

std::vector<std::int64_t> numbers(const Padding2d& p) { return {p.left, p.right, p.top, p.bottom}; }

std::string text(const Padding2d& p) {
  return weft::detail::concat("(", p.left, ", ", p.right, ", ", p.top, ", ", p.bottom, ")");
}

}  // namespace

ZeroPad2d::ZeroPad2d(const Padding2d& padding) : padding_(padding) {
  set_description(text(padding));
}

Tensor ZeroPad2d::forward(const Tensor& x) const { return pad(x, numbers(padding_)); }

ReflectionPad2d::ReflectionPad2d(const Padding2d& padding) : padding_(padding) {
  set_description(text(padding));
}

Tensor ReflectionPad2d::forward(const Tensor& x) const {
  return pad(x, numbers(padding_), "reflect");
}

}  // namespace weft::nn
