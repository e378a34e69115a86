// How exact f32 has to be. By PyTorch's names and defaults CUDA may round the operands of
// convolutions to 10 bits of mantissa (TF32) for several times the speed, those of matrix products
// not. The CPU computes in f32 always; where convolutions need not be "ieee" they may be Winograd's
// (kernels/cpu/plain_winograd.cc), whose rounding errors are some 2 to 5 times the definition's, as
// cuDNN's may be in either setting. Settings of the calling thread, which workers and backward
// inherit (PyTorch's are of the process). A plan belongs to the setting it was made under.
#pragma once

#include <string_view>

namespace weft {

/// torch.set_float32_matmul_precision: "highest" forbids TF32 for matrix products, "high" and
/// "medium" allow it. (PyTorch may go down to bf16 for "medium"; here it is "high".) Throws
/// InvalidArgument for another word, where PyTorch warns.
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
bool allow_tf32();  ///< of convolutions, the CPU's Winograd included; default true
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
