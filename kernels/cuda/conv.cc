// Convolutions by cuDNN's legacy interface.
#include "weft/kernels/cuda/conv.h"
#include "weft/core/runtime/log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/conv_direct.h"
#include "weft/kernels/cuda/conv_problem.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/kernels/elementwise_list.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cuda {
namespace {

// An algorithm may not use more than this: the fastest one rarely does, and the memory is for
// tensors.
constexpr std::size_t kMaxWorkspace = std::size_t{1} << 30;
// The number of algorithms tried in each format, the first in cuDNN's ranking.
constexpr std::size_t kTried = 4;
// Each algorithm of a pass appears at most twice, with different kinds of arithmetic.
constexpr int kMaxAlgorithms = 2 * CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
// Operands that are packed into one workspace are aligned like memory of cudaMalloc.
constexpr std::size_t kAlignment = 256;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Owns one cuDNN descriptor.
template <class T, auto& create, auto& destroy>
class Descriptor {
 public:
  Descriptor() { WEFT_CUDNN(create(&descriptor_)); }
  Descriptor(Descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_) destroy(descriptor_);
  }
  T get() const { return descriptor_; }

 private:
  T descriptor_ = nullptr;
};

using TensorDescriptor =
    Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvDescriptor = Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
                                  cudnnDestroyConvolutionDescriptor>;

using ActivationDescriptor =
    Descriptor<cudnnActivationDescriptor_t, cudnnCreateActivationDescriptor,
               cudnnDestroyActivationDescriptor>;

cudnnTensorFormat_t library_format(MemoryFormat format) {
  return format == MemoryFormat::nchw ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
}

cudnnDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// cuDNN's descriptors of a problem in one memory format.
struct Descriptors {
  TensorDescriptor big, small;
  FilterDescriptor weights;
  ConvDescriptor conv;

  Descriptors(const CudnnProblem& p, MemoryFormat format) {
    const cudnnDataType_t type = library_type(p.dtype);
    set(big, p.big(), format, type);
    set(small, p.library_small(), format, type);
    WEFT_CUDNN(cudnnSetFilter4dDescriptor(weights.get(), type, library_format(format), int(p.k),
                                          int(p.c / p.groups), int(p.r), int(p.s)));
    WEFT_CUDNN(cudnnSetConvolution2dDescriptor(
        conv.get(), int(p.padding[0]), int(p.padding[1]), int(p.stride[0]), int(p.stride[1]),
        int(p.dilation[0]), int(p.dilation[1]), CUDNN_CROSS_CORRELATION,
        p.dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    WEFT_CUDNN(cudnnSetConvolutionGroupCount(conv.get(), int(p.groups)));
  }

 private:
  static void set(const TensorDescriptor& to, const Shape& shape, MemoryFormat format,
                  cudnnDataType_t type) {
    WEFT_CUDNN(cudnnSetTensor4dDescriptor(to.get(), library_format(format), type, int(shape[0]),
                                          int(shape[1]), int(shape[2]), int(shape[3])));
  }
};

/// cuDNN's descriptors for adding a bias in the same pass.
struct BiasEpilogue {
  TensorDescriptor bias;
  ActivationDescriptor identity;  // that call always needs an activation

  explicit BiasEpilogue(const CudnnProblem& p) {
    WEFT_CUDNN(cudnnSetTensor4dDescriptor(bias.get(), CUDNN_TENSOR_NCHW, library_type(p.dtype), 1,
                                          int(p.k), 1, 1));
    WEFT_CUDNN(cudnnSetActivationDescriptor(identity.get(), CUDNN_ACTIVATION_IDENTITY,
                                            CUDNN_NOT_PROPAGATE_NAN, 0));
  }
};

/// An algorithm of a pass, by its number in cuDNN's enumeration of that pass.
struct Algorithm {
  int number = 0;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  bool deterministic = false;
};

/// True if cuDNN does not support what was asked; false for a real failure.
bool refused(cudnnStatus_t status) {
  const auto category = CUDNN_STATUS_CATEGORY(status);
  return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
}

template <class Perf>
std::vector<Algorithm> supported(cudnnStatus_t status,
                                 const std::array<Perf, kMaxAlgorithms>& perfs, int found) {
  std::vector<Algorithm> out;
  if (refused(status)) return out;
  WEFT_CUDNN(status);
  for (int i = 0; i < found; ++i) {
    if (perfs[i].status != CUDNN_STATUS_SUCCESS) continue;
    out.push_back({static_cast<int>(perfs[i].algo), perfs[i].mathType,
                   perfs[i].determinism == CUDNN_DETERMINISTIC});
  }
  return out;
}

/// The algorithms that cuDNN expects to work, best first.
std::vector<Algorithm> ranked(ConvPass pass, cudnnHandle_t handle, const Descriptors& d) {
  int found = 0;
  switch (pass) {
    case ConvPass::forward: {
      std::array<cudnnConvolutionFwdAlgoPerf_t, kMaxAlgorithms> perfs{};
      const cudnnStatus_t status = cudnnGetConvolutionForwardAlgorithm_v7(
          handle, d.big.get(), d.weights.get(), d.conv.get(), d.small.get(), kMaxAlgorithms, &found,
          perfs.data());
      return supported(status, perfs, found);
    }
    case ConvPass::backward_data: {
      std::array<cudnnConvolutionBwdDataAlgoPerf_t, kMaxAlgorithms> perfs{};
      const cudnnStatus_t status = cudnnGetConvolutionBackwardDataAlgorithm_v7(
          handle, d.weights.get(), d.small.get(), d.conv.get(), d.big.get(), kMaxAlgorithms, &found,
          perfs.data());
      return supported(status, perfs, found);
    }
    case ConvPass::backward_weights: {
      std::array<cudnnConvolutionBwdFilterAlgoPerf_t, kMaxAlgorithms> perfs{};
      const cudnnStatus_t status = cudnnGetConvolutionBackwardFilterAlgorithm_v7(
          handle, d.big.get(), d.small.get(), d.conv.get(), d.weights.get(), kMaxAlgorithms, &found,
          perfs.data());
      return supported(status, perfs, found);
    }
  }
  return {};
}

/// Winograd's and Fourier's algorithms convolve transformed images. They are repeatable, too, but
/// their rounding errors grow with the tile or the image, not with the number of terms of one sum.
bool transforms(ConvPass pass, int algorithm) {
  switch (pass) {
    case ConvPass::forward:
      return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD ||
             algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED ||
             algorithm == CUDNN_CONVOLUTION_FWD_ALGO_FFT ||
             algorithm == CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING;
    case ConvPass::backward_data:
      return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD ||
             algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED ||
             algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT ||
             algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING;
    case ConvPass::backward_weights:
      return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD ||
             algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED ||
             algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT ||
             algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING;
  }
  return false;
}

/// One way to run a pass: a memory format, an algorithm, and the copies that they need: of images
/// and weights in another format, of a small image that needs more rows or columns, and of any of
/// the three that is not aligned.
///
///   workspace: [big copy][small copy][weights copy][cuDNN's own]
class Execution {
 public:
  /// Nothing if the algorithm does not work after all, or needs too much memory.
  static std::optional<Execution> make(const CudnnProblem& p, int device, MemoryFormat format,
                                       const Algorithm& algorithm, bool adds_bias) {
    Execution e(p, format, algorithm);
    if (adds_bias) e.epilogue_.emplace(p);
    WEFT_CUDNN(cudnnSetConvolutionMathType(e.descriptors_.conv.get(), algorithm.math));
    const cudnnStatus_t status = e.query_workspace(cudnn_handle(device));
    if (refused(status)) return std::nullopt;
    WEFT_CUDNN(status);
    if (e.library_bytes_ > kMaxWorkspace) return std::nullopt;
    return e;
  }

  MemoryFormat format() const { return format_; }
  /// "nhwc.1.2", "nhwc.1.2.bias": the format, cuDNN's numbers of the algorithm and of the
  /// arithmetic, and whether it adds the bias.
  std::string name() const {
    return detail::concat(format_ == MemoryFormat::nchw ? "nchw." : "nhwc.", algorithm_.number, ".",
                          int(algorithm_.math), adds_bias() ? ".bias" : "");
  }
  bool adds_bias() const { return epilogue_.has_value(); }
  std::size_t workspace_bytes() const {
    return big_bytes_ + small_bytes_ + weights_bytes_ + library_bytes_;
  }

  /// Runs the pass, without bias unless adds_bias(). Returns cuDNN's status.
  cudnnStatus_t run(const Stream& stream, const View& big, const View& small, const View& weights,
                    const View& bias, char* workspace) const {
    const View own_big = place(big, big.shape, big_bytes_, workspace);
    const View own_small = place(small, library_small_, small_bytes_, workspace + big_bytes_);
    const View own_weights =
        place(weights, weights.shape, weights_bytes_, workspace + big_bytes_ + small_bytes_);
    if (pads_small_ && pass_ != ConvPass::forward) {
      fill(stream, 0, View{own_small.data, small.dtype, library_small_, own_small.strides});
    }
    if (big_bytes_ && pass_ != ConvPass::backward_data) copy(stream, big, own_big);
    if (small_bytes_ && pass_ != ConvPass::forward) copy(stream, small, own_small);
    if (weights_bytes_ && pass_ != ConvPass::backward_weights) copy(stream, weights, own_weights);
    const cudnnStatus_t status =
        convolve(cudnn_handle(stream), own_big.data, own_small.data, own_weights.data, bias.data,
                 workspace + big_bytes_ + small_bytes_ + weights_bytes_);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (small_bytes_ && pass_ == ConvPass::forward) copy(stream, own_small, small);
    if (big_bytes_ && pass_ == ConvPass::backward_data) copy(stream, own_big, big);
    if (weights_bytes_ && pass_ == ConvPass::backward_weights) copy(stream, own_weights, weights);
    return status;
  }

  /// Whether the views' addresses are aligned as the plan expects. A copy accepts any address.
  bool accepts(const View& big, const View& small, const View& weights, const View& bias) const {
    return (big_bytes_ || is_aligned(big)) && (small_bytes_ || is_aligned(small)) &&
           (weights_bytes_ || is_aligned(weights)) && (!adds_bias() || is_aligned(bias));
  }

 private:
  Execution(const CudnnProblem& p, MemoryFormat format, const Algorithm& algorithm)
      : pass_(p.pass),
        f64_(p.dtype == DType::f64),
        pads_small_(p.pads_small()),
        library_small_(p.library_small()),
        format_(format),
        algorithm_(algorithm),
        descriptors_(p, format) {
    const auto bytes = [&](const Shape& shape) {
      return rounded_up(static_cast<std::size_t>(numel(shape)) * size_of(p.dtype));
    };
    // The pass writes the execution's format, because the plan reports that format.
    const bool big_fits = p.writes_big() || p.big_formats.has(format);
    const bool small_fits = p.writes_small() || p.small_formats.has(format);
    const bool weights_fit = format == MemoryFormat::nchw || p.weights_in_any_format();
    if (!big_fits || !p.big_aligned) big_bytes_ = bytes(p.big());
    if (!small_fits || !p.small_aligned || pads_small_) small_bytes_ = bytes(p.library_small());
    if (!weights_fit || !p.weights_aligned) weights_bytes_ = bytes(p.weights());
  }

  /// Returns the operand for cuDNN: where it is, or copied to `to` in the execution's format, as
  /// the first rows and columns of `whole`.
  View place(const View& given, const Shape& whole, std::size_t bytes, char* to) const {
    if (bytes == 0) return given;
    return View{to, given.dtype, given.shape, format_strides(whole, format_)};
  }

  cudnnStatus_t query_workspace(cudnnHandle_t handle) {
    const Descriptors& d = descriptors_;
    switch (pass_) {
      case ConvPass::forward:
        return cudnnGetConvolutionForwardWorkspaceSize(
            handle, d.big.get(), d.weights.get(), d.conv.get(), d.small.get(),
            static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_.number), &library_bytes_);
      case ConvPass::backward_data:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            handle, d.weights.get(), d.small.get(), d.conv.get(), d.big.get(),
            static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_.number), &library_bytes_);
      case ConvPass::backward_weights:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            handle, d.big.get(), d.small.get(), d.conv.get(), d.weights.get(),
            static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_.number), &library_bytes_);
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
  }

  cudnnStatus_t convolve(cudnnHandle_t handle, void* big, void* small, void* weights,
                         const void* bias, void* workspace) const {
    // cuDNN reads its scalars as double for f64 and as float for all other types.
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* const one = f64_ ? static_cast<const void*>(&one64) : &one32;
    const void* const zero = f64_ ? static_cast<const void*>(&zero64) : &zero32;
    const Descriptors& d = descriptors_;
    switch (pass_) {
      case ConvPass::forward:
        if (epilogue_) {
          // small = 1 * convolution + 0 * small + bias; an operand with factor 0 is not read.
          return cudnnConvolutionBiasActivationForward(
              handle, one, d.big.get(), big, d.weights.get(), weights, d.conv.get(),
              static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_.number), workspace, library_bytes_,
              zero, d.small.get(), small, epilogue_->bias.get(), bias, epilogue_->identity.get(),
              d.small.get(), small);
        }
        return cudnnConvolutionForward(handle, one, d.big.get(), big, d.weights.get(), weights,
                                       d.conv.get(),
                                       static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_.number),
                                       workspace, library_bytes_, zero, d.small.get(), small);
      case ConvPass::backward_data:
        return cudnnConvolutionBackwardData(
            handle, one, d.weights.get(), weights, d.small.get(), small, d.conv.get(),
            static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_.number), workspace,
            library_bytes_, zero, d.big.get(), big);
      case ConvPass::backward_weights:
        return cudnnConvolutionBackwardFilter(
            handle, one, d.big.get(), big, d.small.get(), small, d.conv.get(),
            static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_.number), workspace,
            library_bytes_, zero, d.weights.get(), weights);
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
  }

  ConvPass pass_;
  bool f64_, pads_small_;
  Shape library_small_;
  MemoryFormat format_;
  Algorithm algorithm_;
  Descriptors descriptors_;
  std::optional<BiasEpilogue> epilogue_;
  std::size_t big_bytes_ = 0, small_bytes_ = 0, weights_bytes_ = 0, library_bytes_ = 0;
};

/// The executions of one format, best first by cuDNN's estimate. Those that add the bias come last,
/// where only timing finds them: whether cuDNN refuses them is only known when they run.
std::vector<Execution> executions(const CudnnProblem& p, int device, MemoryFormat format,
                                  bool deterministic, bool tf32) {
  const bool exact = p.dtype == DType::f32 && !tf32;
  const Descriptors d(p, format);
  // The default allows TF32 for f32, but bf16 uses tensor cores only on request.
  WEFT_CUDNN(cudnnSetConvolutionMathType(d.conv.get(), exact ? CUDNN_FMA_MATH
                                                       : p.dtype == DType::bf16
                                                           ? CUDNN_TENSOR_OP_MATH
                                                           : CUDNN_DEFAULT_MATH));
  std::vector<Execution> out, with_bias;
  std::vector<Algorithm> taken;
  for (Algorithm a : ranked(p.pass, cudnn_handle(device), d)) {
    // cuDNN may return another arithmetic than requested: only FMA_MATH excludes TF32, and
    // ALLOW_CONVERSION would compute f32 in f16.
    if (exact) a.math = CUDNN_FMA_MATH;
    if (a.math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) continue;
    if (deterministic && (!a.deterministic || transforms(p.pass, a.number))) continue;
    const auto same = [&](const Algorithm& b) { return a.number == b.number && a.math == b.math; };
    if (std::any_of(taken.begin(), taken.end(), same)) continue;
    taken.push_back(a);
    if (out.size() < (deterministic ? 1 : kTried)) {
      if (auto made = Execution::make(p, device, format, a, false)) out.push_back(std::move(*made));
    }
    // Without an activation, cuDNN adds a bias only with this algorithm.
    if (p.fusable_bias && !deterministic &&
        a.number == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
      if (auto made = Execution::make(p, device, format, a, true))
        with_bias.push_back(std::move(*made));
    }
  }
  std::move(with_bias.begin(), with_bias.end(), std::back_inserter(out));
  return out;
}

class CudaConvPlan final : public Conv2dPlan {
 public:
  CudaConvPlan(const Conv2dArgs& args, int device);
  void run(const Stream& stream, const Conv2dArgs& args, void* workspace) const;

 private:
  void time(const std::vector<Execution>& choices, const std::vector<std::string>& names,
            std::vector<Measured>& measured) const;
  void run_empty(const Stream& stream, const Conv2dArgs& args) const;
  void run_directly(const Stream& stream, const Conv2dArgs& args) const;

  CudnnProblem problem_;
  std::string text_;  // describes the problem in messages
  int device_;
  std::optional<Execution> execution_;  // none for an empty problem, and if cuDNN has none
  mutable bool warned_ = false;         // a plan serves one run at a time
};

/// The bias as a view with y's dimensions, all of length 1 except the channels.
View channel_view(const View& bias) {
  View view = bias;
  view.shape = Shape{1, bias.shape[0], 1, 1};
  view.strides = Strides{0, bias.strides[0], 0, 0};
  return view;
}

void add_bias(const Stream& stream, const View& y, const View& bias) {
  View broadcast = channel_view(bias);
  broadcast.shape = y.shape;  // the strides of 0 broadcast it
  binary(stream, BinaryOp::add, y, broadcast, y);
}

CudaConvPlan::CudaConvPlan(const Conv2dArgs& args, int device) : problem_(args), device_(device) {
  use_device(device);
  const ThreadState& state = thread_state();
  output_format = problem_.preferred_format();
  std::size_t bias_bytes = 0;
  if (problem_.bias && problem_.writes_weights()) {
    bias_bytes = reduce_workspace_bytes(ReduceOp::sum, args.y, channel_view(args.bias));
  }
  workspace_bytes = bias_bytes;
  if (problem_.empty()) return;

  if (!is_floating(problem_.dtype)) {
    throw_unsupported("conv2d", Device(DeviceType::cuda, device), problem_.dtype);
  }
  WEFT_CHECK(problem_.fits_int(), Unsupported, "conv2d",
             "cuDNN takes at most 2^31-1 elements per tensor; split the batch (x ",
             to_string(args.x.shape), ", y ", to_string(args.y.shape), ")");

  const MemoryFormat other =
      output_format == MemoryFormat::nchw ? MemoryFormat::nhwc : MemoryFormat::nchw;
  const std::string_view why_not = why_not_timed(device);
  std::vector<Execution> choices;
  for (const MemoryFormat format : {output_format, other}) {
    // Without timing the images keep their format, unless only the other format has an algorithm.
    if (!why_not.empty() && !choices.empty()) break;
    for (Execution& e :
         executions(problem_, device, format, state.deterministic, state.allow_tf32_conv)) {
      choices.push_back(std::move(e));
    }
  }
  const auto words = problem_.key(0, 0, state.allow_tf32_conv);
  ChoiceProblem problem{"conv2d",
                        detail::concat(problem_.text(), " on cuda:", device),
                        machine(device),
                        {words.begin(), words.end()},
                        CudnnProblem::family(words),
                        {}};
  for (const Execution& e : choices) problem.candidates.push_back(e.name());
  text_ = problem.text;
  if (choices.empty()) return;
  bool all_fail = false;
  const std::size_t best = choose(problem, why_not, [&](std::vector<Measured>& measured) {
    time(choices, problem.candidates, measured);
    all_fail = std::ranges::all_of(measured, [](const Measured& m) { return std::isinf(m.ms); });
  });
  if (all_fail) return;
  execution_ = std::move(choices[best]);
  output_format = execution_->format();
  // The bias gradient is computed before the pass uses the memory.
  workspace_bytes = std::max(bias_bytes, execution_->workspace_bytes());
}

void CudaConvPlan::time(const std::vector<Execution>& choices,
                        const std::vector<std::string>& names,
                        std::vector<Measured>& measured) const {
  const Stream stream = current_stream(Device(DeviceType::cuda, device_));
  const auto bytes = [&](const Shape& shape) {
    return rounded_up(static_cast<std::size_t>(numel(shape)) * size_of(problem_.dtype));
  };
  std::size_t workspace = 0;
  for (const Execution& e : choices) workspace = std::max(workspace, e.workspace_bytes());
  const std::size_t big_bytes = bytes(problem_.big()), small_bytes = bytes(problem_.small());
  const std::size_t weights_bytes = bytes(problem_.weights());
  const Shape channels{problem_.k};  // some candidates add the bias and some do not
  const std::size_t bias_bytes = problem_.fusable_bias ? bytes(channels) : 0;
  const TrialMemory memory(stream,
                           big_bytes + small_bytes + weights_bytes + bias_bytes + workspace);
  char* const at_small = memory.data() + big_bytes;
  char* const at_weights = at_small + small_bytes;
  char* const at_bias = at_weights + weights_bytes;
  char* const at_workspace = at_bias + bias_bytes;
  const View bias{at_bias, problem_.dtype, channels, contiguous_strides(channels)};

  for (std::size_t i = 0; i < choices.size(); ++i) {
    // The images as in a real run: an input in its given format, an output in the execution's
    // format.
    const auto image = [&](char* data, const Shape& shape, bool read, const Formats& formats) {
      MemoryFormat format = choices[i].format();
      if (read && !formats.has(format)) {
        format = formats.nchw ? MemoryFormat::nchw : MemoryFormat::nhwc;
      }
      return View{data, problem_.dtype, shape, format_strides(shape, format)};
    };
    const View big =
        image(memory.data(), problem_.big(), !problem_.writes_big(), problem_.big_formats);
    const View small =
        image(at_small, problem_.small(), !problem_.writes_small(), problem_.small_formats);
    const View weights{at_weights, problem_.dtype, problem_.weights(),
                       contiguous_strides(problem_.weights())};
    const double ms = time_ms(stream, [&] {
      const cudnnStatus_t status = choices[i].run(stream, big, small, weights, bias, at_workspace);
      if (status != CUDNN_STATUS_SUCCESS) return false;
      if (problem_.fusable_bias && !choices[i].adds_bias()) add_bias(stream, small, bias);
      return true;
    });
    measured.push_back({names[i], ms});
  }
}

/// One of the tensors has no elements, so every sum is empty.
void CudaConvPlan::run_empty(const Stream& stream, const Conv2dArgs& args) const {
  switch (problem_.pass) {
    case ConvPass::forward: return fill(stream, 0, small_of(args));
    case ConvPass::backward_data: return fill(stream, 0, big_of(args));
    case ConvPass::backward_weights: return fill(stream, 0, args.w);
  }
}

void CudaConvPlan::run_directly(const Stream& stream, const Conv2dArgs& args) const {
  if (!std::exchange(warned_, true)) {
    log_warning(detail::concat("conv2d ", text_, ": cuDNN has no ",
                               thread_state().deterministic ? "deterministic " : "",
                               "algorithm for this; weft's own loop is slow"));
  }
  convolve_directly(stream, problem_.pass, args.params, big_of(args), small_of(args), args.w);
}

void CudaConvPlan::run(const Stream& stream, const Conv2dArgs& args, void* workspace) const {
  use_device(device_);
  WEFT_CHECK(problem_.bias || args.pass == ConvPass::backward_data || !args.bias, Internal,
             "conv2d", "a bias is given that the plan was made without");
  if (problem_.bias && args.pass == ConvPass::backward_weights) {
    reduce(stream, ReduceOp::sum, args.y, channel_view(args.bias), workspace);
  }
  const View& big = big_of(args);
  const View& small = small_of(args);
  bool bias_added = false;
  if (problem_.empty()) {
    run_empty(stream, args);
  } else if (!execution_) {
    run_directly(stream, args);
  } else {
    if (!problem_.writes_weights()) {
      const View& written = problem_.writes_small() ? small : big;
      WEFT_CHECK(formats_of(written).has(output_format), Internal, "conv2d",
                 "the output is not in the format its plan names");
    }
    WEFT_CHECK(execution_->accepts(big, small, args.w, args.bias), Internal, "conv2d",
               "a view is less aligned than the one its plan was made with (", kConvAlignment,
               " bytes); ask for a plan with the views themselves");
    const cudnnStatus_t status =
        execution_->run(stream, big, small, args.w, args.bias, static_cast<char*>(workspace));
    if (refused(status)) {
      run_directly(stream, args);
    } else {
      WEFT_CUDNN(status);
      check_launched("conv2d", stream);
      bias_added = execution_->adds_bias();
    }
  }
  if (problem_.bias && args.pass == ConvPass::forward && !bias_added) {
    add_bias(stream, args.y, args.bias);
  }
  if (args.then == Activation::relu) unary(stream, UnaryOp::relu, {}, args.y, args.y);
}

PlanRef<Conv2dPlan> plan(const Conv2dArgs& args) {
  // One cache per device; never destroyed, for static objects.
  static auto* const caches = new PlanCache<CudaConvPlan, 32>[device_count(DeviceType::cuda)];
  // The device is known from memory that exists: in backward_weights w may not be allocated yet.
  const void* const known = args.pass == ConvPass::backward_weights ? args.x.data : args.w.data;
  const int device = device_of(known);
  const ThreadState& state = thread_state();
  const auto key = CudnnProblem(args).key(device, choice_rules(), state.allow_tf32_conv);
  return caches[device].get(key, [&] { return std::make_unique<CudaConvPlan>(args, device); });
}

void run(const Stream& stream, const Conv2dPlan& plan, const Conv2dArgs& args, void* workspace) {
  static_cast<const CudaConvPlan&>(plan).run(stream, args, workspace);
}

}  // namespace

Shape library_output_shape(const Conv2dArgs& args, MemoryFormat format) {
  const CudnnProblem problem(args);
  const Descriptors d(problem, format);
  int n = 0, c = 0, h = 0, w = 0;
  WEFT_CUDNN(cudnnGetConvolution2dForwardOutputDim(d.conv.get(), d.big.get(), d.weights.get(), &n,
                                                   &c, &h, &w));
  return Shape{n, c, h, w};
}

Conv2dKernels conv_kernels() { return {.plan = plan, .run = run}; }

}  // namespace weft::cuda
