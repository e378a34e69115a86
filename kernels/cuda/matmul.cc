// Matrix products with cuBLASLt.
#include <algorithm>
#include <array>
#include <limits>
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
// The alignment that the fast kernels need; new tensors have it, some slices do not.
constexpr std::uint32_t kAligned = 16;

struct Choice {
  bool valid = false;
  bool epilogue = false;  // cuBLAS adds the bias; otherwise y contains it beforehand
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

class CudaMatmulPlan final : public Plan {
 public:
  CudaMatmulPlan(const MatmulArgs& args, int device);

  void run(const Stream& stream, const MatmulArgs& args, void* workspace) const;

 private:
  bool is_f64() const { return problem_.dtype == DType::f64; }
  void make_layout(const Matrix& matrix, cudaDataType_t type, cublasLtMatrixLayout_t layout) const;
  cublasLtMatmulDescOpaque_t make_description(const void* bias, bool epilogue) const;
  std::vector<Choice> candidates(std::uint32_t alignment) const;
  std::vector<Choice> ranked(std::uint32_t alignment, bool epilogue) const;
  void time(const std::vector<Choice>& choices, const std::vector<std::string>& names,
            std::vector<Measured>& measured) const;
  cublasStatus_t multiply(const Stream& stream, const Choice& choice, const void* a, const void* b,
                          void* y, const void* bias, bool add_to_y, void* workspace) const;
  void run_empty(const Stream& stream, const MatmulArgs& args) const;

  CublasProblem problem_;
  int device_;
  cudaDataType_t type_ = CUDA_R_32F;
  cublasComputeType_t compute_ = CUBLAS_COMPUTE_32F;
  // Mutable because the C interface takes pointers to non-const layouts; it only reads them.
  mutable cublasLtMatrixLayoutOpaque_t a_layout_{}, b_layout_{}, y_layout_{};
  Choice aligned_;    // for views aligned to kAligned
  Choice unaligned_;  // for any views
};

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
                        {}};
  for (const Choice& c : choices) problem.candidates.push_back(name_of(c));
  aligned_ = choices[choose(problem, why_not_timed(device), [&](std::vector<Measured>& measured) {
    time(choices, problem.candidates, measured);
  })];
  const std::vector<Choice> slow = candidates(static_cast<std::uint32_t>(size_of(problem_.dtype)));
  if (!slow.empty()) unaligned_ = slow.front();
  workspace_bytes = std::max(aligned_.workspace, unaligned_.workspace);
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

// Made for each call, since it contains the address of the bias; it is on the stack.
cublasLtMatmulDescOpaque_t CudaMatmulPlan::make_description(const void* bias, bool epilogue) const {
  cublasLtMatmulDescOpaque_t made{};
  WEFT_CUBLAS(cublasLtMatmulDescInit(&made, compute_, is_f64() ? CUDA_R_64F : CUDA_R_32F));
  // cuBLAS's A is b and its B is a; see CublasProblem.
  const cublasOperation_t op_a = problem_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = problem_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  WEFT_CUBLAS(
      cublasLtMatmulDescSetAttribute(&made, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
  WEFT_CUBLAS(
      cublasLtMatmulDescSetAttribute(&made, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
  if (epilogue) {
    const cublasLtEpilogue_t adds_bias = CUBLASLT_EPILOGUE_BIAS;
    WEFT_CUBLAS(cublasLtMatmulDescSetAttribute(&made, CUBLASLT_MATMUL_DESC_EPILOGUE, &adds_bias,
                                               sizeof adds_bias));
    WEFT_CUBLAS(cublasLtMatmulDescSetAttribute(&made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                               sizeof bias));
  }
  return made;
}

// Not every type, shape and alignment has a kernel that adds a bias.
std::vector<Choice> CudaMatmulPlan::candidates(std::uint32_t alignment) const {
  std::vector<Choice> choices;
  if (problem_.dense_bias) choices = ranked(alignment, true);
  if (choices.empty()) choices = ranked(alignment, false);
  return choices;
}

std::vector<Choice> CudaMatmulPlan::ranked(std::uint32_t alignment, bool epilogue) const {
  // The heuristics use the address of the bias only for its alignment.
  cublasLtMatmulDescOpaque_t description =
      make_description(reinterpret_cast<const void*>(std::uintptr_t{alignment}), epilogue);
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
  std::size_t workspace = 0;
  for (const Choice& c : choices) workspace = std::max(workspace, c.workspace);
  const std::size_t element = size_of(problem_.dtype);
  const auto bytes_of = [&](const Matrix& m, DType dtype) {
    return (static_cast<std::size_t>(m.extent(problem_.batch)) * size_of(dtype) + 255) / 256 * 256;
  };
  const std::size_t a = bytes_of(problem_.a, problem_.dtype);
  const std::size_t b = bytes_of(problem_.b, problem_.dtype);
  const std::size_t y = bytes_of(problem_.y, problem_.y_dtype);
  const TrialMemory memory(stream, a + b + y + problem_.n * element + 256 + workspace);
  char* const at_b = memory.data() + a;
  char* const at_y = at_b + b;
  char* const at_workspace = at_y + y;
  char* const at_bias = at_workspace + (workspace + 255) / 256 * 256;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const double ms = time_ms(stream, [&] {
      return multiply(stream, choices[i], memory.data(), at_b, at_y, at_bias, problem_.accumulate,
                      at_workspace) == CUBLAS_STATUS_SUCCESS;
    });
    measured.push_back({names[i], ms});
  }
}

cublasStatus_t CudaMatmulPlan::multiply(const Stream& stream, const Choice& choice, const void* a,
                                        const void* b, void* y, const void* bias, bool add_to_y,
                                        void* workspace) const {
  cublasLtMatmulDescOpaque_t description = make_description(bias, choice.epilogue);
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
  if (problem_.k == 0) return run_empty(stream, args);
  bool is_aligned = true;
  for (const void* p : {args.a.data, args.b.data, args.y.data, args.bias.data}) {
    is_aligned &= reinterpret_cast<std::uintptr_t>(p) % kAligned == 0;
  }
  const Choice& choice = is_aligned ? aligned_ : unaligned_;
  WEFT_CHECK(choice.valid, Library, "matmul", "cuBLASLt has no algorithm for views not aligned to ",
             kAligned, " bytes, ", to_string(problem_.dtype), "; copy them first");
  use_device(device_);
  const bool prefilled = problem_.bias && !choice.epilogue;
  if (prefilled) copy(stream, broadcast_bias(args), args.y);
  WEFT_CUBLAS(multiply(stream, choice, args.a.data, args.b.data, args.y.data, args.bias.data,
                       problem_.accumulate || prefilled, workspace));
  check_launched("matmul", stream);
}

PlanRef<Plan> plan(const MatmulArgs& args) {
  // One cache per device; never destroyed, for static objects.
  static auto* const caches = new PlanCache<CudaMatmulPlan, 18>[device_count(DeviceType::cuda)];
  const int device = device_of(args.a.data);
  const ThreadState& state = thread_state();
  const auto key = CublasProblem(args).key(device, choice_rules(), state.allow_tf32_matmul);
  return caches[device].get(key, [&] { return std::make_unique<CudaMatmulPlan>(args, device); });
}

void run(const Stream& stream, const Plan& plan, const MatmulArgs& args, void* workspace) {
  static_cast<const CudaMatmulPlan&>(plan).run(stream, args, workspace);
  if (args.then == Activation::relu) unary(stream, UnaryOp::relu, {}, args.y, args.y);
}

}  // namespace

MatmulKernels matmul_kernels() { return {.plan = plan, .run = run}; }

}  // namespace weft::cuda
