// Matrix products with cuBLASLt. A call is one pass over both operands and the product, as
// `bench --emulated` counts it. Bias, relu and the sums of a gradient's rows join it where cuBLASLt
// can; else the bias is written into y before, to which the product is added, and relu is a pass
// after it.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/gpus.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/matmul_problem.h"
#include "weft/kernels/cuda/memory_parts.h"
#include "weft/kernels/cuda/runtime.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/kernels/elementwise_list.h"
#include "weft/kernels/plan/choice_cache.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cuda {
namespace {

// NVIDIA's recommendation for Hopper; smaller GPUs use less by themselves.
constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;
// The number of algorithms tried, the first in the ranking of the library's heuristics.
constexpr int kCandidates = 8;
// The first columns of a trial's mask must fill a byte.
constexpr std::int64_t kTriedMask = 8;
// The alignment that the fast kernels need; new tensors have it, some slices do not.
constexpr std::uint32_t kAligned = 16;

/// What cuBLAS does in the same pass.
struct Epilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* vector = nullptr;  // the bias, or where the sums of a's rows go
  const void* mask = nullptr;
};

struct Choice {
  bool valid = false;
  // Whether cuBLAS does what the problem asks for beside the product; a bias is otherwise in y
  // beforehand.
  bool epilogue = false;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace = 0;
};

/// Contains a checksum over the algorithm's bytes, which are only valid for this version of the
/// library.
std::string name_of(const Choice& choice) {
  const std::string_view bytes(reinterpret_cast<const char*>(choice.algorithm.data),
                               sizeof choice.algorithm.data);
  return (choice.epilogue ? "epilogue." : "plain.") + checksum(bytes);
}

class CudaMatmulPlan final : public MatmulPlan {
 public:
  CudaMatmulPlan(const MatmulArgs& args, int device);

  bool fuses(const MatmulArgs& args) const override;
  void run(const Stream& stream, const MatmulArgs& args, void* workspace) const;

 private:
  bool is_f64() const { return problem_.dtype == DType::f64; }
  void make_layout(const Matrix& matrix, cudaDataType_t type, cublasLtMatrixLayout_t layout) const;
  cublasLtMatmulDescOpaque_t make_description(const Epilogue& epilogue) const;
  Epilogue epilogue_of(const Choice& choice, const void* vector, const void* mask) const;
  bool accepts(const Choice& choice, const Epilogue& epilogue) const;
  bool does_relu(const Stream& stream, cublasLtEpilogue_t kind, std::atomic<Answer>& answer) const;
  Answer try_relu(const Stream& stream, cublasLtEpilogue_t kind) const;
  std::vector<Choice> candidates(std::uint32_t alignment) const;
  std::vector<Choice> ranked(std::uint32_t alignment, bool epilogue) const;
  void time(const std::vector<Choice>& choices, const std::vector<std::string>& names,
            std::vector<Measured>& measured) const;
  cublasStatus_t multiply(const Stream& stream, const Choice& choice, const Epilogue& epilogue,
                          const void* a, const void* b, void* y, bool add_to_y,
                          void* workspace) const;
  void run_empty(const Stream& stream, const MatmulArgs& args) const;

  CublasProblem problem_;
  int device_;
  cudaDataType_t type_ = CUDA_R_32F;
  cublasComputeType_t compute_ = CUBLAS_COMPUTE_32F;
  // Mutable because the C interface takes pointers to non-const layouts; it only reads them.
  mutable cublasLtMatrixLayoutOpaque_t a_layout_{}, b_layout_{}, y_layout_{};
  Choice aligned_;    // for views aligned to kAligned
  Choice unaligned_;  // for any views
  mutable std::mutex trying_;
  mutable int failed_trials_ = 0;  // of both kinds
  // Whether aligned_ can end in a relu without and with a mask.
  mutable std::atomic<Answer> relu_{Answer::unknown}, mask_{Answer::unknown};
};

bool is_aligned(const MatmulArgs& args) {
  std::uintptr_t addresses = 0;
  for (const void* p : {args.a.data, args.b.data, args.y.data, args.bias.data}) {
    addresses |= reinterpret_cast<std::uintptr_t>(p);
  }
  return addresses % kAligned == 0;
}

/// The memory that an operand or a result of a trial takes.
std::size_t bytes_of(const Matrix& m, std::int64_t batch, DType dtype) {
  return static_cast<std::size_t>(m.extent(batch)) * size_of(dtype);
}

CudaMatmulPlan::CudaMatmulPlan(const MatmulArgs& args, int device)
    : problem_(args), device_(device) {
  switch (problem_.dtype) {
    case DType::f32:
      if (thread_state().allow_tf32_matmul) compute_ = CUBLAS_COMPUTE_32F_FAST_TF32;
      break;
    case DType::f64:
      type_ = CUDA_R_64F;
      compute_ = CUBLAS_COMPUTE_64F;
      break;
    case DType::bf16: type_ = CUDA_R_16BF; break;
    default: throw_unsupported("matmul", Device(DeviceType::cuda, device), problem_.dtype);
  }
  if (problem_.k == 0) return;  // nothing to multiply
  WEFT_CHECK(problem_.batch <= std::numeric_limits<std::int32_t>::max(), Unsupported, "matmul",
             "a batch of ", problem_.batch, " is more than cuBLAS takes (2^31-1)");
  use_device(device);
  const AllowWhileRecording allow;  // loading an algorithm's kernels allocates memory
  make_layout(problem_.a, type_, &a_layout_);
  make_layout(problem_.b, type_, &b_layout_);
  make_layout(problem_.y, problem_.y_dtype == DType::f32 ? CUDA_R_32F : type_, &y_layout_);

  const std::vector<Choice> choices = candidates(kAligned);
  WEFT_CHECK(!choices.empty(), Unsupported, "matmul", "cuBLASLt has no algorithm for a ",
             to_string(args.a.shape), ", b ", to_string(args.b.shape), ", ",
             to_string(problem_.dtype), " on cuda:", device, ", a GPU of compute capability ",
             to_string(capability_of(device)));
  const auto words = problem_.key(0, 0, thread_state().allow_tf32_matmul);
  ChoiceProblem problem{"matmul",
                        detail::concat(problem_.text(), " on cuda:", device),
                        machine(device),
                        {words.begin(), words.end()},
                        CublasProblem::family(words),
                        {},
                        [device] { wait_for_quiet(device); }};
  for (const Choice& c : choices) problem.candidates.push_back(name_of(c));
  aligned_ = choices[choose(problem, why_not_timed(device), [&](std::vector<Measured>& measured) {
    time(choices, problem.candidates, measured);
  })];
  const std::vector<Choice> slow = candidates(static_cast<std::uint32_t>(size_of(problem_.dtype)));
  if (!slow.empty()) unaligned_ = slow.front();
  workspace_bytes = std::max(aligned_.workspace, unaligned_.workspace);
}

bool CudaMatmulPlan::fuses(const MatmulArgs& args) const {
  if (!aligned_.epilogue || !is_aligned(args)) return false;
  if (!problem_.bias) return true;
  const Stream stream = current_stream(Device(DeviceType::cuda, device_));
  return args.then == Activation::relu && problem_.batch == 1 && problem_.n >= kTriedMask &&
         does_relu(stream, CUBLASLT_EPILOGUE_RELU_AUX_BIAS, mask_);
}

/// Whether the algorithm, whose sums stay the same, can also have this epilogue.
bool CudaMatmulPlan::accepts(const Choice& choice, const Epilogue& epilogue) const {
  cublasLtMatmulDescOpaque_t description = make_description(epilogue);
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(cublas_handle(device_), &description, &b_layout_, &a_layout_,
                                 &y_layout_, &y_layout_, &choice.algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= choice.workspace;
}

/// Whether aligned_ can end in this relu. While a stream records, nothing can be tried.
bool CudaMatmulPlan::does_relu(const Stream& stream, cublasLtEpilogue_t kind,
                               std::atomic<Answer>& answer) const {
  if (answer == Answer::unknown && !capturing(stream)) {
    const std::lock_guard lock(trying_);
    if (answer == Answer::unknown) answer = try_relu(stream, kind);
    if (answer == Answer::unknown && ++failed_trials_ >= kTrials) answer = Answer::no;
  }
  return answer == Answer::yes;
}

/// Multiplies zeros with a bias of NaN, 0, -1, 1 and so on, and waits for it. cuBLASLt's relu is
/// max(x, 0), which may make a NaN 0, and its mask may let the gradient at 0 pass; weft's relu does
/// neither. Unknown if there is no memory for it now.
Answer CudaMatmulPlan::try_relu(const Stream& stream, cublasLtEpilogue_t kind) const try {
  if (!aligned_.epilogue) return Answer::no;
  use_device(device_);
  const AllowWhileRecording allow;  // loads kernels, and waits
  const bool has_mask = kind == CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
  const void* const any = reinterpret_cast<const void*>(std::uintptr_t{kAligned});
  if (!accepts(aligned_, {kind, any, has_mask ? any : nullptr})) return Answer::no;
  MemoryParts parts;
  const std::size_t a = parts.add(bytes_of(problem_.a, problem_.batch, problem_.dtype));
  const std::size_t b = parts.add(bytes_of(problem_.b, problem_.batch, problem_.dtype));
  const std::size_t y = parts.add(bytes_of(problem_.y, problem_.batch, problem_.y_dtype));
  const std::size_t bias = parts.add(bytes_of({problem_.n, 1, problem_.n}, 1, problem_.dtype));
  const std::size_t mask = parts.add(std::size_t(problem_.m * mask_bytes(problem_.n)));
  // Of a byte each: the relu of NaN, the mask, and the mask that is wanted.
  const std::size_t found = parts.add(3), workspace = parts.add(aligned_.workspace);
  const TrialMemory memory(stream, parts.bytes, /*drop_cache=*/failed_trials_ == 0);
  const auto at = [&](std::size_t part) { return memory.data() + part; };
  const auto fill_every_fourth = [&](std::int64_t first, double value) {
    if (first >= problem_.n) return;
    fill(stream, value,
         View{at(bias) + static_cast<std::size_t>(first) * size_of(problem_.dtype),
              problem_.dtype,
              {(problem_.n - first + 3) / 4},
              {4}});
  };
  fill_every_fourth(0, std::numeric_limits<double>::quiet_NaN());
  fill_every_fourth(2, -1);
  fill_every_fourth(3, 1);
  if (multiply(stream, aligned_, {kind, at(bias), has_mask ? at(mask) : nullptr}, at(a), at(b),
               at(y), false, at(workspace)) != CUBLAS_STATUS_SUCCESS) {
    return Answer::no;
  }
  // The same from either end, since no document says which bit of a byte is the first.
  constexpr std::uint8_t kPasses = 0b1001'1001;
  const auto scalar = [&](std::size_t part, DType dtype) {
    return View{at(part), dtype, {1}, {1}};
  };
  const View y0 = scalar(y, problem_.y_dtype), wanted = scalar(found + 2, DType::u8);
  fill(stream, kPasses, wanted);
  // Only a NaN differs from itself.
  compare(stream, CompareOp::eq, y0, y0, scalar(found, DType::boolean));
  compare(stream, CompareOp::ne, scalar(mask, DType::u8), wanted,
          scalar(found + 1, DType::boolean));
  bool wrong[2] = {true, true};  // the relu of NaN, and the mask
  cuda_runtime().copy(wrong, Device(), at(found), stream.device, sizeof wrong, stream);
  // Not the runtime's wait, which would throw for an earlier bad index.
  WEFT_CUDA(cudaStreamSynchronize(handle(stream)));
  return wrong[0] || (has_mask && wrong[1]) ? Answer::no : Answer::yes;
} catch (const std::bad_alloc&) {
  return Answer::unknown;
}

void CudaMatmulPlan::make_layout(const Matrix& matrix, cudaDataType_t type,
                                 cublasLtMatrixLayout_t layout) const {
  WEFT_CUBLAS(cublasLtMatrixLayoutInit(layout, type, static_cast<std::uint64_t>(matrix.rows),
                                       static_cast<std::uint64_t>(matrix.columns), matrix.ld));
  const auto batch = static_cast<std::int32_t>(problem_.batch);
  WEFT_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                               sizeof batch));
  WEFT_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &matrix.batch_stride, sizeof matrix.batch_stride));
}

/// What `choice` does beside the product; `vector` and `mask` as in Epilogue, for a relu and a mask
/// those of another call.
Epilogue CudaMatmulPlan::epilogue_of(const Choice& choice, const void* vector,
                                     const void* mask) const {
  if (!choice.epilogue) return {};
  if (problem_.masked) return {CUBLASLT_EPILOGUE_DRELU, nullptr, mask};
  return {problem_.row_sums ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BIAS, vector, nullptr};
}

// Made for each call, since it contains addresses; it is on the stack.
cublasLtMatmulDescOpaque_t CudaMatmulPlan::make_description(const Epilogue& epilogue) const {
  cublasLtMatmulDescOpaque_t made{};
  WEFT_CUBLAS(cublasLtMatmulDescInit(&made, compute_, is_f64() ? CUDA_R_64F : CUDA_R_32F));
  // cuBLAS's A is b and its B is a; see CublasProblem.
  const cublasOperation_t op_a = problem_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = problem_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    WEFT_CUBLAS(cublasLtMatmulDescSetAttribute(&made, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, op_a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, op_b);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.kind);
  if (epilogue.vector) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.vector);
  if (epilogue.mask) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.mask);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8 * mask_bytes(problem_.n));
  }
  return made;
}

// Not every type, shape and alignment has a kernel with the epilogue. By a fixed rule the sums are
// those without it.
std::vector<Choice> CudaMatmulPlan::candidates(std::uint32_t alignment) const {
  std::vector<Choice> choices;
  const bool only_aligned = problem_.row_sums || problem_.masked;
  const bool fixed = only_aligned && thread_state().deterministic;
  if (problem_.dense_bias || (only_aligned && alignment == kAligned && !fixed)) {
    choices = ranked(alignment, true);
  }
  if (choices.empty()) choices = ranked(alignment, false);
  if (fixed && alignment == kAligned && !choices.empty()) {
    const void* const any = reinterpret_cast<const void*>(std::uintptr_t{kAligned});
    choices.resize(1);
    choices[0].epilogue = accepts(choices[0], epilogue_of({.epilogue = true}, any, any));
  }
  return choices;
}

std::vector<Choice> CudaMatmulPlan::ranked(std::uint32_t alignment, bool epilogue) const {
  // The heuristics use addresses only for their alignment.
  const void* const any = reinterpret_cast<const void*>(std::uintptr_t{alignment});
  cublasLtMatmulDescOpaque_t description =
      make_description(epilogue_of({.epilogue = epilogue}, any, any));
  cublasLtMatmulPreferenceOpaque_t preference{};
  WEFT_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  WEFT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kMaxWorkspace, sizeof kMaxWorkspace));
  // Partial sums of a split k are added in the compute type and not in bf16.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  WEFT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      &preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::uint32_t bytes) {
    WEFT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &bytes, sizeof bytes));
  };
  const std::uint32_t of_y =
      std::max(alignment, static_cast<std::uint32_t>(size_of(problem_.y_dtype)));
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_y);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_y);
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      cublas_handle(device_), &description, &b_layout_, &a_layout_, &y_layout_, &y_layout_,
      &preference, kCandidates, results.data(), &found);
  std::vector<Choice> choices;
  // For a combination without a kernel, one of the two, depending on the release.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
    return choices;
  WEFT_CUBLAS(status);
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    choices.push_back({true, epilogue, results[i].algo, results[i].workspaceSize});
  }
  return choices;
}

void CudaMatmulPlan::time(const std::vector<Choice>& choices, const std::vector<std::string>& names,
                          std::vector<Measured>& measured) const {
  const Stream stream = current_stream(Device(DeviceType::cuda, device_));
  std::size_t most = 0;
  for (const Choice& c : choices) most = std::max(most, c.workspace);
  MemoryParts parts;
  const std::size_t a = parts.add(bytes_of(problem_.a, problem_.batch, problem_.dtype));
  const std::size_t b = parts.add(bytes_of(problem_.b, problem_.batch, problem_.dtype));
  const std::size_t y = parts.add(bytes_of(problem_.y, problem_.batch, problem_.y_dtype));
  // The bias, the sums of a's rows, or the mask.
  const std::size_t beside =
      parts.add(std::max(static_cast<std::size_t>(std::max(problem_.n, problem_.m)) *
                             std::max(size_of(problem_.dtype), size_of(problem_.y_dtype)),
                         std::size_t(problem_.masked ? problem_.m * mask_bytes(problem_.n) : 0)));
  const std::size_t workspace = parts.add(most);
  const TrialMemory memory(stream, parts.bytes);
  const auto at = [&](std::size_t part) { return memory.data() + part; };
  // Not before: while it lives, NCCL begins nothing, and other ranks may wait.
  const Quiet quiet(device_);
  if (!quiet.is()) return;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const double ms = time_ms(stream, [&] {
      return multiply(stream, choices[i], epilogue_of(choices[i], at(beside), at(beside)), at(a),
                      at(b), at(y), problem_.accumulate, at(workspace)) == CUBLAS_STATUS_SUCCESS;
    });
    measured.push_back({names[i], ms});
  }
}

cublasStatus_t CudaMatmulPlan::multiply(const Stream& stream, const Choice& choice,
                                        const Epilogue& epilogue, const void* a, const void* b,
                                        void* y, bool add_to_y, void* workspace) const {
  cublasLtMatmulDescOpaque_t description = make_description(epilogue);
  const double alpha64 = 1, beta64 = add_to_y ? 1 : 0;
  const float alpha32 = 1, beta32 = add_to_y ? 1 : 0;
  const void* const alpha = is_f64() ? static_cast<const void*>(&alpha64) : &alpha32;
  const void* const beta = is_f64() ? static_cast<const void*>(&beta64) : &beta32;
  return cublasLtMatmul(cublas_handle(device_), &description, alpha, b, &b_layout_, a, &a_layout_,
                        beta, y, &y_layout_, y, &y_layout_, &choice.algorithm, workspace,
                        choice.workspace, handle(stream));
}

/// The bias as a view of y's shape.
View broadcast_bias(const MatmulArgs& args) {
  View bias = args.bias;
  bias.shape = args.y.shape;
  bias.strides = Strides{0, 0, args.bias.strides[0]};
  return bias;
}

void CudaMatmulPlan::run_empty(const Stream& stream, const MatmulArgs& args) const {
  if (args.bias) {
    copy(stream, broadcast_bias(args), args.y);
  } else if (!args.accumulate) {
    fill(stream, 0, args.y);
  }
}

void CudaMatmulPlan::run(const Stream& stream, const MatmulArgs& args, void* workspace) const {
  const bool relu = args.then == Activation::relu;
  if (problem_.k == 0) {
    run_empty(stream, args);
    if (relu) unary(stream, UnaryOp::relu, {}, args.y, args.y);
    return;
  }
  const bool aligned = is_aligned(args);
  const Choice& choice = aligned ? aligned_ : unaligned_;
  WEFT_CHECK(choice.valid, Library, "matmul", "cuBLASLt has no algorithm for views not aligned to ",
             kAligned, " bytes, ", to_string(problem_.dtype), "; copy them first");
  use_device(device_);
  const bool prefilled = problem_.bias && !choice.epilogue;
  if (prefilled) copy(stream, broadcast_bias(args), args.y);
  Epilogue epilogue =
      epilogue_of(choice, problem_.bias ? args.bias.data : args.row_sums.data, args.mask.data);
  const bool fused_relu = relu && aligned && problem_.bias &&
                          (args.mask || does_relu(stream, CUBLASLT_EPILOGUE_RELU_BIAS, relu_));
  if (fused_relu) {
    epilogue.kind = args.mask ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS;
    epilogue.mask = args.mask.data;
  }
  WEFT_CUBLAS(multiply(stream, choice, epilogue, args.a.data, args.b.data, args.y.data,
                       problem_.accumulate || prefilled, workspace));
  check_launched("matmul", stream);
  if (relu && !fused_relu) unary(stream, UnaryOp::relu, {}, args.y, args.y);
}

PlanRef<MatmulPlan> plan(const MatmulArgs& args) {
  // One cache per device; never destroyed, for static objects.
  static auto* const caches = new PlanCache<CudaMatmulPlan, 18>[device_count(DeviceType::cuda)];
  const int device = device_of(args.a.data);
  const ThreadState& state = thread_state();
  const auto key = CublasProblem(args).key(device, choice_rules(), state.allow_tf32_matmul);
  return caches[device].get(key, [&] { return std::make_unique<CudaMatmulPlan>(args, device); });
}

void run(const Stream& stream, const MatmulPlan& plan, const MatmulArgs& args, void* workspace) {
  static_cast<const CudaMatmulPlan&>(plan).run(stream, args, workspace);
}

}  // namespace

MatmulKernels matmul_kernels() { return {.plan = plan, .run = run}; }

}  // namespace weft::cuda
