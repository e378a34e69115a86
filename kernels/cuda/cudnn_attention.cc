// Attention as graphs of cuDNN's backend API, each of which it runs as fused kernels. It recognises
// a graph by its operations, so they are those by which its frontend composes attention
// (https://github.com/NVIDIA/cudnn-frontend, node/scaled_dot_product_flash_attention.h). The
// operations SDPA_FWD and SDPA_BWD of 9.19 cannot be used: one knows no causal, and cuDNN refuses
// the other.
#include "weft/kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cuda {
namespace {

constexpr std::int64_t kMostWidth = 128, kWidths = 16;

// What a plan calls its tensors. kWithinPlan: the first of those that only the plan sees.
enum Id : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kLogSums,
  kScale,
  kHidden,
  kOne,
  kGradY,
  kGradQ,
  kGradK,
  kGradV,
  kCommon,
  kSumsQ,
  kWithinPlan
};

constexpr cudnnDataType_t kF32 = CUDNN_DATA_FLOAT, kBf16 = CUDNN_DATA_BFLOAT16;

View dense(const Shape& shape) { return {nullptr, DType::bf16, shape, contiguous_strides(shape)}; }

/// The view with the strides of a dense one where a dimension has length 1.
View normal(View x) {
  for (int d = x.shape.size() - 2; d >= 0; --d) {
    if (x.shape[d] == 1) x.strides[d] = x.strides[d + 1] * x.shape[d + 1];
  }
  return x;
}

/// [A,B,n,width] as [A,B,width,n].
View turned(View x) {
  std::swap(x.shape[2], x.shape[3]);
  std::swap(x.strides[2], x.strides[3]);
  return x;
}

/// A tensor of a graph.
struct Node {
  BackendDescriptor descriptor;
  Shape shape;
};

/// Collects the operations of a graph. Each takes the node that it writes and returns it.
class Composer {
 public:
  std::vector<BackendDescriptor> operations;

  static Node stored(Id id, cudnnDataType_t type, const View& view) {
    return made(id, type, view, TensorKind::stored);
  }
  static Node number(Id id) { return made(id, kF32, dense({1, 1, 1, 1}), TensorKind::by_value); }
  Node inner(cudnnDataType_t type, const View& view) {
    return made(next_++, type, view, TensorKind::virtual_);
  }
  Node inner(const Shape& shape) { return inner(kF32, dense(shape)); }

  Node pointwise(const Pointwise& function, const Node& x, const Node* b, Node y,
                 const Node* condition = nullptr) {
    operations.push_back(pointwise_operation(function, x.descriptor, b ? &b->descriptor : nullptr,
                                             y.descriptor,
                                             condition ? &condition->descriptor : nullptr));
    return y;
  }
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x) {
    return pointwise({mode}, x, nullptr, inner(x.shape));
  }
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x, const Node& b) {
    return pointwise({mode}, x, &b, inner(x.shape));
  }

  Node multiply(const Node& a, const Node& b, Node c) {
    BackendDescriptor computed(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    computed.set(CUDNN_ATTR_MATMUL_COMP_TYPE, kF32).finalize();
    add(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, &a.descriptor},
         {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &b.descriptor},
         {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &c.descriptor},
         {CUDNN_ATTR_OPERATION_MATMUL_DESC, &computed}});
    return c;
  }
  /// Over the last dimension.
  Node reduce(cudnnReduceTensorOp_t op, const Node& x) {
    Node y = inner({x.shape[0], x.shape[1], x.shape[2], 1});
    BackendDescriptor computed(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    computed.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, kF32)
        .set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op)
        .finalize();
    add(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &x.descriptor},
         {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &y.descriptor},
         {CUDNN_ATTR_OPERATION_REDUCTION_DESC, &computed}});
    return y;
  }
  /// The same elements in bf16, as the view has them.
  Node reshape(const Node& x, const View& view) {
    Node y = inner(kBf16, view);
    add(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
        {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &x.descriptor},
         {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &y.descriptor}});
    return y;
  }

 private:
  static Node made(std::int64_t id, cudnnDataType_t type, const View& view, TensorKind kind) {
    return {tensor_descriptor(id, type, std::span(view.shape.begin(), view.shape.end()),
                              std::span(view.strides.begin(), view.strides.end()), kind),
            view.shape};
  }
  using Attribute = std::pair<cudnnBackendAttributeName_t, const BackendDescriptor*>;
  void add(cudnnBackendDescriptorType_t type, std::initializer_list<Attribute> attributes) {
    BackendDescriptor& operation = operations.emplace_back(type);
    for (const auto& [name, value] : attributes) operation.set(name, *value);
    operation.finalize();
  }

  std::int64_t next_ = kWithinPlan;
};

/// The shapes of a problem's tensors.
struct Shapes {
  explicit Shapes(const AttentionArgs& args)
      : scores{args.q.shape[0], args.q.shape[1], args.q.shape[2], args.k.shape[2]},
        rows{scores[0], scores[1], scores[2], 1},
        y{scores[0], scores[1], scores[2], args.v.shape[3]} {}
  Shape scores, rows, y;
};

Node scaled_scores(Composer& to, const Node& q, const Node& keys, const Node& scale,
                   const Shapes& shapes) {
  const Node products = to.multiply(q, keys, to.inner(shapes.scores));
  return to.pointwise(CUDNN_POINTWISE_MUL, products, scale);
}

Node without_later_keys(Composer& to, Node scores) {
  const auto index = [&](std::int64_t axis) {
    return to.pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .axis = axis}, scores, nullptr,
                        to.inner(CUDNN_DATA_INT32, dense(scores.shape)));
  };
  const Node query = index(2), key = index(3), hidden = to.number(kHidden);
  const Node sees = to.pointwise({CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN}, query, &key,
                                 to.inner(CUDNN_DATA_BOOLEAN, dense(scores.shape)));
  return to.pointwise({CUDNN_POINTWISE_BINARY_SELECT}, scores, &hidden, to.inner(scores.shape),
                      &sees);
}

/// The formulas of kernels/attention.h.
Composer forward_of(const AttentionArgs& args) {
  const Shapes shapes(args);
  Composer to;
  const Node q = to.stored(kQ, kBf16, normal(args.q));
  const Node keys = to.stored(kK, kBf16, turned(normal(args.k)));
  const Node v = to.stored(kV, kBf16, normal(args.v));
  Node scores = scaled_scores(to, q, keys, to.number(kScale), shapes);
  if (args.causal) scores = without_later_keys(to, std::move(scores));
  const Node most = to.reduce(CUDNN_REDUCE_TENSOR_MAX, scores);
  const Node shifted = to.pointwise(CUDNN_POINTWISE_SUB, scores, most);
  const Node exponentials = to.pointwise(CUDNN_POINTWISE_EXP, shifted);
  const Node sum = to.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials);
  const Node log = to.pointwise(CUDNN_POINTWISE_LOG, sum);
  to.pointwise({CUDNN_POINTWISE_ADD}, most, &log, to.stored(kLogSums, kF32, dense(shapes.rows)));
  const Node weights = to.pointwise({CUDNN_POINTWISE_DIV}, exponentials, &sum,
                                    to.inner(kBf16, dense(shapes.scores)));
  to.multiply(weights, v, to.stored(kY, kBf16, dense(shapes.y)));
  return to;
}

Composer backward_of(const AttentionArgs& args) {
  const Shapes shapes(args);
  // The transposes of scores, dense as these are.
  const View by_key = turned(dense(shapes.scores));
  Composer to;
  const Node q = to.stored(kQ, kBf16, normal(args.q));
  const Node keys = to.stored(kK, kBf16, turned(normal(args.k)));
  const Node values = to.stored(kV, kBf16, turned(normal(args.v)));
  const Node y = to.stored(kY, kBf16, dense(shapes.y));
  const Node grad_y = to.stored(kGradY, kBf16, dense(shapes.y));
  const Node log_sums = to.stored(kLogSums, kF32, dense(shapes.rows));
  const Node scale = to.number(kScale), one = to.number(kOne);

  // The factor of 1 is part of what cuDNN recognises: its frontend has dropout's there.
  const Node products = to.pointwise(CUDNN_POINTWISE_MUL, grad_y, y);
  const Node common =
      to.pointwise({CUDNN_POINTWISE_MUL}, to.reduce(CUDNN_REDUCE_TENSOR_ADD, products), &one,
                   to.stored(kCommon, kF32, dense(shapes.rows)));

  Node scores =
      to.pointwise(CUDNN_POINTWISE_SUB, scaled_scores(to, q, keys, scale, shapes), log_sums);
  if (args.causal) scores = without_later_keys(to, std::move(scores));
  const Node weights = to.pointwise(CUDNN_POINTWISE_EXP, scores);
  to.multiply(to.reshape(weights, by_key), grad_y, to.stored(kGradV, kBf16, dense(args.v.shape)));

  const Node grads = to.multiply(grad_y, values, to.inner(shapes.scores));
  const Node centred = to.pointwise(CUDNN_POINTWISE_SUB, grads, common);
  const Node grad_s =
      to.pointwise(CUDNN_POINTWISE_MUL, to.pointwise(CUDNN_POINTWISE_MUL, centred, weights), scale);
  to.multiply(to.reshape(grad_s, by_key), q, to.stored(kGradK, kBf16, dense(args.k.shape)));
  const Node sums = to.multiply(grad_s, to.reshape(keys, normal(args.k)),
                                to.stored(kSumsQ, kF32, dense(args.q.shape)));
  to.pointwise({CUDNN_POINTWISE_IDENTITY}, sums, nullptr,
               to.stored(kGradQ, kBf16, dense(args.q.shape)));
  return to;
}

bool fits(const View& x) {
  const View with_all = normal(x);
  const auto divides = [](std::int64_t elements) {
    return elements > 0 && elements * std::int64_t(size_of(DType::bf16)) % kCudnnAlignment == 0;
  };
  return x.dtype == DType::bf16 && x.numel() > 0 && with_all.strides[3] == 1 &&
         divides(with_all.strides[0]) && divides(with_all.strides[1]) &&
         divides(with_all.strides[2]);
}

/// Where the tensors of a plan are.
struct Tensors {
  std::array<std::int64_t, kWithinPlan> ids;
  std::array<void*, kWithinPlan> addresses;
  std::size_t count = 0;

  void add(Id id, void* address) {
    ids[count] = id;
    addresses[count++] = address;
  }
  std::span<const std::int64_t> some_ids() const { return std::span(ids).first(count); }
  std::span<void* const> some_addresses() const { return std::span(addresses).first(count); }
};

/// What a plan takes by value.
struct Numbers {
  float scale, hidden = -std::numeric_limits<float>::infinity(), one = 1;
};

/// What the plans of both passes have.
Tensors common_tensors(const AttentionArgs& args, Numbers& numbers) {
  Tensors tensors;
  tensors.add(kQ, args.q.data);
  tensors.add(kK, args.k.data);
  tensors.add(kV, args.v.data);
  tensors.add(kScale, &numbers.scale);
  if (args.causal) tensors.add(kHidden, &numbers.hidden);
  return tensors;
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// --- Plans of this machine's GPUs ----------------------------------------------------------------

struct CudnnAttention {
  std::optional<AttentionPlan> made;  // none: cuDNN has no plan
  std::string text;
  mutable std::atomic<bool> refused = false;  // cuDNN has, to run it
};

using Cache = PlanCache<CudnnAttention, 18>;

Cache::Key key_of(const AttentionArgs& args, AttentionPass pass, int device) {
  Cache::Key key{device, static_cast<std::int64_t>(pass), args.causal, args.v.shape[3],
                 args.k.shape[2]};
  std::size_t i = 5;
  for (const std::int64_t size : args.q.shape) key[i++] = size;
  for (const View* x : {&args.q, &args.k, &args.v}) {
    const View with_all = normal(*x);
    for (int d = 0; d < 3; ++d) key[i++] = with_all.strides[d];
  }
  return key;
}

std::unique_ptr<CudnnAttention> made_for(const AttentionArgs& args, AttentionPass pass,
                                         int device) {
  use_device(device);
  // Loading the kernels of a plan allocates memory.
  const AllowWhileRecording allow;
  auto made = std::make_unique<CudnnAttention>();
  made->text = detail::concat("attention ", pass == AttentionPass::forward ? "" : "backward ",
                              args.q.shape, " ", args.k.shape, " on cuda:", device);
  try {
    made->made = AttentionPlan::make(args, pass, {.handle = cudnn_handle(device)});
  } catch (const Error& error) {
    log_warning(detail::concat(made->text, ": ", error.what()));
  }
  if (!made->made) {
    log_warning(made->text + ": cuDNN has no plan");
  } else if (thread_state().log_perf) {
    log_info(detail::concat("perf: ", made->text, ": by cuDNN"));
  }
  return made;
}

/// None if weft's own kernels do it.
PlanRef<CudnnAttention> plan_of(const AttentionArgs& args, AttentionPass pass) {
  if (thread_state().deterministic || !fits_cudnn(args) || cudnnGetVersion() < kOldestCudnn) {
    return {};
  }
  // Never destroyed, for static objects.
  static auto* const cache = new Cache;
  const int device = device_of(args.q.data);
  auto plan = cache->get(key_of(args, pass, device), [&] { return made_for(args, pass, device); });
  return plan->made && !plan->refused ? std::move(plan) : PlanRef<CudnnAttention>();
}

// --- The kernels ---------------------------------------------------------------------------------

AttentionKernels& own() {
  static AttentionKernels kernels;
  return kernels;
}

/// False if cuDNN refuses to run its own plan.
bool has_run(cudnnStatus_t status, const CudnnAttention& plan, const Stream& stream) {
  if (status == CUDNN_STATUS_SUCCESS) {
    check_launched("attention", stream);
    return true;
  }
  if (CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_NOT_SUPPORTED) {
    throw_status(status, "cudnnBackendExecute(...)", __FILE__, __LINE__);
  }
  plan.refused = true;
  log_warning(plan.text + ": cuDNN refuses to run its own plan");
  return false;
}

bool all_aligned(std::initializer_list<const View*> views) {
  return std::ranges::all_of(views, [](const View* view) { return *view && is_aligned(*view); });
}

bool run_forward(const Stream& stream, const AttentionArgs& args, const View& y,
                 const View& log_sums, void* workspace) {
  const auto plan = plan_of(args, AttentionPass::forward);
  if (!plan || !all_aligned({&args.q, &args.k, &args.v, &y, &log_sums})) return false;
  use_device(stream.device.index);
  return has_run(plan->made->forward(cudnn_handle(stream), args, y, log_sums, workspace), *plan,
                 stream);
}

bool run_backward(const Stream& stream, const AttentionArgs& args, const AttentionGradArgs& grads,
                  void* workspace) {
  const auto plan = plan_of(args, AttentionPass::backward);
  if (!plan || !all_aligned({&args.q, &args.k, &args.v, &grads.y, &grads.log_sums, &grads.grad_y,
                             &grads.grad_q, &grads.grad_k, &grads.grad_v}))
    return false;
  use_device(stream.device.index);
  return has_run(plan->made->backward(cudnn_handle(stream), args, grads, workspace), *plan, stream);
}

std::size_t workspace_bytes(const AttentionArgs& args) {
  const auto plan = plan_of(args, AttentionPass::forward);
  return std::max(own().workspace_bytes(args), plan ? plan->made->workspace_bytes() : 0);
}

std::size_t backward_workspace_bytes(const AttentionArgs& args) {
  const auto plan = plan_of(args, AttentionPass::backward);
  return std::max(own().backward_workspace_bytes(args), plan ? plan->made->workspace_bytes() : 0);
}

void forward(const Stream& stream, const AttentionArgs& args, const View& y, const View& log_sums,
             void* workspace) {
  if (run_forward(stream, args, y, log_sums, workspace)) return;
  own().forward(stream, args, y, log_sums, workspace);
}

void backward(const Stream& stream, const AttentionArgs& args, const AttentionGradArgs& grads,
              void* workspace) {
  if (run_backward(stream, args, grads, workspace)) return;
  own().backward(stream, args, grads, workspace);
}

}  // namespace

bool fits_cudnn(const AttentionArgs& args) {
  const std::int64_t width = args.q.shape[3];
  const bool one_weight = args.q.shape[2] == 1 && args.k.shape[2] == 1;
  return !args.mask && !args.kept && width <= kMostWidth && width % kWidths == 0 &&
         args.v.shape[3] == width && !one_weight && fits(args.q) && fits(args.k) && fits(args.v);
}

std::optional<AttentionPlan> AttentionPlan::make(const AttentionArgs& args, AttentionPass pass,
                                                 const PlanDevice& device) {
  const Composer composed = pass == AttentionPass::forward ? forward_of(args) : backward_of(args);
  const OperationGraph graph(composed.operations, device);
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const EngineConfig& config : graph.offered(mode)) {
      if (!admissible(config, DType::bf16, false, false)) continue;
      auto engine = EnginePlan::make(config, device);
      if (!engine) continue;
      AttentionPlan plan(std::move(*engine));
      if (pass == AttentionPass::backward) {
        const auto bytes = [](std::int64_t floats) {
          return rounded_up(sizeof(float) * std::size_t(floats));
        };
        plan.sums_ = bytes(numel(Shapes(args).rows));
        plan.library_ = plan.sums_ + bytes(args.q.numel());
      }
      return plan;
    }
  }
  return std::nullopt;
}

cudnnStatus_t AttentionPlan::forward(cudnnHandle_t handle, const AttentionArgs& args, const View& y,
                                     const View& log_sums, void* workspace) const {
  Numbers numbers{static_cast<float>(args.scale)};
  Tensors tensors = common_tensors(args, numbers);
  tensors.add(kY, y.data);
  tensors.add(kLogSums, log_sums.data);
  return engine_.run(handle, tensors.some_ids(), tensors.some_addresses(), workspace);
}

cudnnStatus_t AttentionPlan::backward(cudnnHandle_t handle, const AttentionArgs& args,
                                      const AttentionGradArgs& grads, void* workspace) const {
  Numbers numbers{static_cast<float>(args.scale)};
  Tensors tensors = common_tensors(args, numbers);
  tensors.add(kY, grads.y.data);
  tensors.add(kLogSums, grads.log_sums.data);
  tensors.add(kGradY, grads.grad_y.data);
  tensors.add(kGradQ, grads.grad_q.data);
  tensors.add(kGradK, grads.grad_k.data);
  tensors.add(kGradV, grads.grad_v.data);
  char* const start = static_cast<char*>(workspace);
  tensors.add(kOne, &numbers.one);
  tensors.add(kCommon, start);
  tensors.add(kSumsQ, start + sums_);
  return engine_.run(handle, tensors.some_ids(), tensors.some_addresses(), start + library_);
}

bool cudnn_takes(const AttentionArgs& args, AttentionPass pass) {
  return bool(plan_of(args, pass));
}

AttentionKernels with_cudnn_attention(const AttentionKernels& given) {
  own() = given;
  return {.workspace_bytes = workspace_bytes,
          .forward = forward,
          .backward_workspace_bytes = backward_workspace_bytes,
          .backward = backward};
}

AttentionKernels chosen_attention(const AttentionKernels& given) {
  const char* const asked = std::getenv("WEFT_CUDNN_ATTENTION");
  if (!asked || std::string_view(asked) != "1") return given;
  if (cudnnGetVersion() < kOldestCudnn) {
    log_warning(detail::concat("WEFT_CUDNN_ATTENTION: got cuDNN ", cudnnGetVersion(), ", expected ",
                               kOldestCudnn, " or newer; weft's own kernels run"));
  }
  return with_cudnn_attention(given);
}

}  // namespace weft::cuda
