// The gradient with which a backward on a GPU begins. Private to autograd/.
#pragma once

#include "weft/tensor/tensor.h"

namespace weft::autograd {

/// A one in the shape of y, which has one element and is on a CUDA device. All backwards share it,
/// so that none of them has to fill one: it is never alone (internal.h), so no rule and no leaf
/// writes into it. Hooks and users' rules, which may write, get a copy by make_own().
Tensor shared_one(const Tensor& y);
/// Copies a gradient that is a view of such a one.
void make_own(Tensor& grad);

}  // namespace weft::autograd
