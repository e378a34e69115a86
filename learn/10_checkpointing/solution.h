// Exercise 10: what you write, and what you write it with.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/function.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/rng.h"
#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// A part of a model; it may use weights of its own.
using Block = std::function<Tensor(const Tensor& x)>;

/// block(x), of which only x is kept: backward calls the block again. x requires a gradient.
Tensor checkpoint(const Block& block, const Tensor& x);

}  // namespace weft::learn
