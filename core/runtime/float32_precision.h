// How exact f32 has to be, with PyTorch's names and defaults. On CUDA, f32 operands of convolutions
// may be rounded to 10 bits of mantissa (TF32), which is several times as fast; those of matrix
// products may not. The CPU always computes in f32. It may use Winograd's algorithm for
// convolutions (kernels/cpu/conv/winograd.cc), unless they are set to "ieee"; its rounding errors
// are 2 to 5 times those of the definition. cuDNN may use it in either setting. The settings belong
// to the calling thread, and workers and backward inherit them (PyTorch's belong to the process). A
// plan belongs to the setting under which it was made.
#pragma once

#include <string_view>

#include "weft/core/base/compiler.h"

namespace weft {

/// torch.set_float32_matmul_precision: "highest" forbids TF32 for matrix products, "high" and
/// "medium" allow it. (PyTorch may use bf16 for "medium"; here it is the same as "high".) Throws
/// InvalidArgument for another word, for which PyTorch only warns.
void set_float32_matmul_precision(std::string_view precision);
/// "highest" or "high".
std::string_view get_float32_matmul_precision();

namespace backends {

/// torch.backends.cuda.matmul
namespace cuda::matmul {
bool allow_tf32();  ///< default false
void set_allow_tf32(bool allow);
/// torch.backends.cuda.matmul.fp32_precision: "ieee" or "tf32".
std::string_view fp32_precision();
/// Throws InvalidArgument for another word.
void set_fp32_precision(std::string_view precision);
}  // namespace cuda::matmul

/// torch.backends.cudnn
namespace cudnn {
bool allow_tf32();  ///< for convolutions, the CPU's Winograd included; default true
void set_allow_tf32(bool allow);
/// torch.backends.cudnn.conv.fp32_precision: "ieee" or "tf32".
namespace conv {
std::string_view fp32_precision();
/// Throws InvalidArgument for another word.
void set_fp32_precision(std::string_view precision);
}  // namespace conv
}  // namespace cudnn

}  // namespace backends

}  // namespace weft
