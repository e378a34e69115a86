// Joining, and elements in another order, recorded on the tape. Copies of the same elements in the
// same order are methods of Tensor. tensor/ops.h has what is not said here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft {

Tensor cat(std::span<const Tensor> parts, std::int64_t dim = 0);
Tensor cat(std::initializer_list<Tensor> parts, std::int64_t dim = 0);
Tensor stack(std::span<const Tensor> parts, std::int64_t dim = 0);
Tensor stack(std::initializer_list<Tensor> parts, std::int64_t dim = 0);

/// counts[i] copies of x side by side along dimension i, as torch.Tensor.repeat. With more counts
/// than dimensions, x gets dimensions of length 1 in front. Throws Shape for fewer counts.
Tensor repeat(const Tensor& x, const Dims& counts);
/// x with its elements in reverse order along each of dims.
Tensor flip(const Tensor& x, const Dims& dims);
/// Element i moves to i + shift modulo the length of dim; without a dim, all elements move in
/// row-major order. As torch.roll.
Tensor roll(const Tensor& x, std::int64_t shift, std::optional<std::int64_t> dim = {});
/// x [..,n,m] with zeros above (tril) or below (triu) the given diagonal: 0 is the main diagonal, 1
/// is the next one above it.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// x [n]: a matrix with x on the given diagonal and zeros elsewhere. x [n,m]: a copy of its
/// diagonal. Throws Shape for other x.
Tensor diag(const Tensor& x, std::int64_t diagonal = 0);
/// Each element `repeats` times in a row along dim, or of all elements without a dim; repeats, an
/// integer tensor of one element or one for each along dim, is read on the host, which waits for
/// the device. Throws InvalidArgument for a negative number.
Tensor repeat_interleave(const Tensor& x, std::int64_t repeats,
                         std::optional<std::int64_t> dim = {});
Tensor repeat_interleave(const Tensor& x, const Tensor& repeats,
                         std::optional<std::int64_t> dim = {});
/// As torch.nn.functional.pad, mode "constant": pads holds {before, after} of the last dimension,
/// then of the second to last, and so on. A negative number removes elements; throws Shape where
/// there are fewer, and InvalidArgument if x's dtype cannot hold value (raw::check_holds).
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, double value = 0);
/// The other modes of torch.nn.functional.pad, with x's own elements around it: "reflect" (mirrored
/// at the first and the last one, which are not repeated), "replicate" (those two again and again),
/// "circular" (those of the other end). A negative number removes elements: before others are added
/// in "circular", afterwards in the others. Throws InvalidArgument for another mode, Shape where x
/// has too few elements: "reflect" needs one more than it adds at an end, "circular" as many,
/// "replicate" one.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& pads, std::string_view mode);

}  // namespace weft
