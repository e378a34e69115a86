// The transforms of Winograd convolutions, once per instruction set.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// to = start + M from M^T, separately for each channel. With M of size a x b, `from` has b^2
/// pointers and `to` has a^2; each points to a row of channels. `channels` must be a multiple of
/// 16. `start` has one value per channel, or is null.
using WinogradTransform = void (*)(std::int64_t channels, const float* const* from,
                                   const float* start, float* const* to);

/// F(m x m, r x r): an m x m tile of outputs of a convolution with r x r taps from an n x n tile of
/// inputs, n = m + r - 1, in n^2 multiplications:
///   Y = A^T ((G g G^T) * (B^T d B)) A
/// (A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, 2015); * multiplies
/// element by element. The gradient of the taps uses the transposed transforms of Y and g:
///   dg = G^T ((A dY A^T) * (B^T d B)) G
struct WinogradForm {
  int inputs = 0;                            ///< n
  int outputs = 0;                           ///< m
  int taps = 0;                              ///< r
  WinogradTransform input = nullptr;         ///< B^T, n x n
  WinogradTransform weights = nullptr;       ///< G, n x r
  WinogradTransform output = nullptr;        ///< A^T, m x n
  WinogradTransform grad_output = nullptr;   ///< A, n x m
  WinogradTransform grad_weights = nullptr;  ///< G^T, r x n
};

inline constexpr int kWinogradForms = 3;
/// The largest n of a form.
inline constexpr int kWinogradSide = 6;

/// F(4x4, 3x3), F(2x2, 5x5), F(4x4, 2x2).
struct WinogradLoops {
  WinogradForm forms[kWinogradForms];
};
WEFT_LOOPS(WinogradLoops, winograd_loops)

}  // namespace weft::cpu
