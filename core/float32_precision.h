// TF32: whether CUDA may round the f32 operands of matrix products and convolutions to 10 bits of
// mantissa for several times the speed. By PyTorch's names and defaults: convolutions may, matrix
// products may not. Settings of the calling thread, which workers and backward inherit (PyTorch's
// are of the process); other devices do not look at them. A plan belongs to the setting it was made
// under.
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
bool allow_tf32();  ///< of convolutions; default true
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
