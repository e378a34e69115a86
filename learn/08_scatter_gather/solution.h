// Exercise 8: what you write, and what you write it with.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/core/base/device.h"
#include "weft/learn/judge/messages.h"

namespace weft::learn {

/// Cuts x [rows, ...] along its first dimension, and puts part i on devices[i]. Each part has
/// ceil(rows / devices) rows, the last one what is left; if nothing is left, there are fewer parts.
/// On the tape: x gets its gradient back.
std::vector<Tensor> scatter(const Tensor& x, const std::vector<Device>& devices);
/// Joins the parts, in order, on `device`. On the tape.
Tensor gather(const std::vector<Tensor>& parts, Device device);

}  // namespace weft::learn
