// Einstein's summation, recorded on the tape.
#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <span>
#include <string_view>

#include "weft/tensor/tensor.h"

namespace weft {

/// As torch.einsum: einsum("bij,bjk->bik", a, b). Each operand has a letter for each dimension, and
/// `...` for those that it does not name. A letter twice in an operand means the diagonal. The
/// result has the letters after ->, and the sum runs over the others; without -> it has `...` and
/// then, in alphabetical order (A before a), the letters that occur once. Lengths of a letter may
/// differ if they are 1. Products are matrix products of one dtype (else Dtype), made from left to
/// right; sums of integers are i64, as those of sum. Throws InvalidArgument for an equation that
/// has no meaning, Shape for operands that do not fit.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands);
template <std::derived_from<Tensor>... Operands>
Tensor einsum(std::string_view equation, const Operands&... operands) {
  const std::array<Tensor, sizeof...(Operands)> all{operands...};
  return einsum(equation, std::span<const Tensor>(all));
}

}  // namespace weft
