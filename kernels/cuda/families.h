// Entries of the kernel table that other families' files call, or that lie in a file of their own.
#pragma once

#include "weft/kernels/backend.h"

namespace weft::cuda {

/// The backend of all families below. It lives as long as the process.
const Backend& own_backend();

void unary(const Stream&, UnaryOp, UnaryParams, const View& x, const View& y);
void unary_backward(const Stream&, UnaryOp, UnaryParams, const View& grad_y, const View& saved,
                    const View& grad_x);
void binary(const Stream&, BinaryOp, const View& a, const View& b, const View& y);
void binary_backward(const Stream&, BinaryOp, bool of_b, const View& grad_y, const View& a,
                     const View& b, const View& grad);
void add_scaled(const Stream&, double alpha, const View& x, const View& y);
void compare(const Stream&, CompareOp, const View& a, const View& b, const View& y);
void where(const Stream&, const View& condition, const View& a, const View& b, const View& y);
void copy(const Stream&, const View& x, const View& y);
void copy_all(const Stream&, std::span<const CopyPair> pairs);
void fill(const Stream&, double value, const View& y);
void arange(const Stream&, double start, double step, const View& y);

std::size_t reduce_workspace_bytes(ReduceOp, const View& x, const View& y);
void reduce(const Stream&, ReduceOp, const View& x, const View& y, void* workspace);

void group_norm(const Stream&, const GroupNormArgs&);
std::size_t group_norm_backward_workspace_bytes(const View& x);
void group_norm_backward(const Stream&, const GroupNormGradArgs&, void* workspace);

/// weft's own attention, or what WEFT_CUDNN_ATTENTION=1 puts in front of it. Only programs of
/// `./weft gpu-pack` have this function (cudnn_attention.cc), in others it is null.
[[gnu::weak]] AttentionKernels chosen_attention(const AttentionKernels& own);

/// Calls f.operator()<T>() for f32, f64 or bf16. Throws Unsupported, for `op`, for other dtypes.
template <class F>
void for_floating(const char* op, const Stream& stream, DType dtype, F&& f) {
  if (!is_floating(dtype)) throw_unsupported(op, stream.device, dtype);
  dispatch_floating(dtype, op, f);
}

}  // namespace weft::cuda
