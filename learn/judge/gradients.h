// What the exercises on gradients judge alike.
#pragma once

#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::learn {

/// Parameters of a few shapes, the same on every rank, that require gradients.
std::vector<Tensor> some_parameters();

/// The gradient that rank r has computed of parameter p, in its shape: whole numbers whose mean
/// over up to 4 ranks is whole, too.
Tensor gradient_of(int rank, std::size_t p, const Tensor& parameter);

/// Requires that the gradients on `rank` are the means over n ranks; those of ranks without one,
/// `unused(r, p)`, count as zeros. And that the parameters are as they were.
void check_means(int rank, int n, const std::vector<Tensor>& parameters,
                 bool (*unused)(int rank, std::size_t p));

}  // namespace weft::learn
