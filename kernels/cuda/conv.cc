// Convolutions by cuDNN: which of its plans run, and the copies around them. A call is one pass of
// cuDNN's over its three tensors, as `bench --emulated` counts it. Around it, a copy reads and
// writes a tensor that is in another format or not aligned, and a bias or relu that the plan does
// not have is a pass over the output. The gradient of a bias is a pass over that of the output.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/kernels/cuda/check.h"
#include "weft/kernels/cuda/conv_graph.h"
#include "weft/kernels/cuda/conv_problem.h"
#include "weft/kernels/cuda/conv_relu.h"
#include "weft/kernels/cuda/families.h"
#include "weft/kernels/cuda/handles.h"
#include "weft/kernels/cuda/kernel_names.h"
#include "weft/kernels/cuda/launch.h"
#include "weft/kernels/cuda/memory_parts.h"
#include "weft/kernels/cuda/runtime.h"
#include "weft/kernels/cuda/timing.h"
#include "weft/kernels/elementwise_list.h"
#include "weft/kernels/plan/plan_cache.h"

namespace weft::cuda {
namespace {

/// The memory that a tensor of the problem takes, rounded up: in an execution's workspace the next
/// one begins behind it, and must be aligned, too.
std::size_t bytes_of(const CudnnProblem& p, const Shape& shape) {
  return MemoryParts::rounded(static_cast<std::size_t>(numel(shape)) * size_of(p.dtype));
}

/// For messages.
std::string text_of(const CudnnProblem& p, int device) {
  return detail::concat(p.text(), " on cuda:", device);
}

/// Not a shortage of memory, for instance.
bool is_refusal(cudnnStatus_t status) {
  return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED;
}

/// tools/gpu/run looks for these words: where cuDNN does so, other plans are measured than chosen.
void warn_refused(const CudnnProblem& p, int device, const std::string& plan) {
  log_warning(
      detail::concat("conv2d ", text_of(p, device), ": cuDNN refuses to run its own plan ", plan));
}

/// One way to run a pass: a memory format, a plan of cuDNN's, and the copies that they need: of
/// images and weights in another format, of a small image that needs more rows or columns, and of
/// any of the three that is not aligned.
///
///   workspace: [big copy][small copy][weights copy][cuDNN's own]
class Execution {
 public:
  Execution(const CudnnProblem& p, MemoryFormat format, std::string name, std::string engine,
            bool adds_bias, EnginePlan plan)
      : pass_(p.pass),
        pads_small_(p.pads_small()),
        adds_bias_(adds_bias),
        library_small_(p.library_small()),
        format_(format),
        name_(std::move(name)),
        engine_(std::move(engine)),
        plan_(std::move(plan)),
        relu_(adds_bias ? Answer::unknown : Answer::no) {
    // The pass writes the execution's format, because the plan reports that format.
    const bool big_fits = p.writes_big() || p.big_formats.has(format);
    const bool small_fits = p.writes_small() || p.small_formats.has(format);
    const bool weights_fit = p.weights_formats.has(format);
    if (!big_fits || !p.big_aligned) big_bytes_ = bytes_of(p, p.big());
    if (!small_fits || !p.small_aligned || pads_small_)
      small_bytes_ = bytes_of(p, p.library_small());
    if (!weights_fit || !p.weights_aligned) weights_bytes_ = bytes_of(p, p.weights());
  }

  MemoryFormat format() const { return format_; }
  /// "nhwc.e65.2=1", "nhwc.e65.2=1.bias", "nhwc.e1.fallback": the format, cuDNN's engine and its
  /// knobs, and whether it adds the bias and is one that cuDNN only falls back to.
  const std::string& name() const { return name_; }
  bool adds_bias() const { return adds_bias_; }
  std::size_t workspace_bytes() const {
    return big_bytes_ + small_bytes_ + weights_bytes_ + plan_.workspace_bytes();
  }

  /// Finds the plan of the same engine whose graph ends in a relu, which has the bits of a relu
  /// after it. There is none without a bias, since cuDNN numbers the engines of such graphs alike
  /// only behind an addition; and only one counts that leaves a NaN, which is tried once there is
  /// memory for it.
  void find_relu(const Stream& stream, const CudnnProblem& p) {
    if (relu_ != Answer::unknown) return;
    const AllowWhileRecording allow;  // loads kernels, and waits
    if (!relu_plan_) relu_plan_ = make_relu(stream, p);
    relu_ = relu_plan_ ? keeps_nan(stream, p) : Answer::no;
    if (relu_ == Answer::unknown && ++failed_trials_ == kTrials) relu_ = Answer::no;
    if (relu_ == Answer::no) forget_relu();
  }
  bool has_relu() const { return relu_ == Answer::yes; }
  void forget_relu() {
    relu_ = Answer::no;
    relu_plan_.reset();
  }
  std::string relu_name() const { return name_ + ".relu"; }

  /// Runs the pass, without bias unless adds_bias(), with relu only if has_relu(). Returns cuDNN's
  /// status.
  cudnnStatus_t run(const Stream& stream, const View& big, const View& small, const View& weights,
                    const View& bias, char* workspace, bool relu = false) const {
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
    const cudnnStatus_t status = run_convolution(
        relu ? *relu_plan_ : plan_, cudnn_handle(stream),
        {own_big.data, own_small.data, own_weights.data, adds_bias_ ? bias.data : nullptr},
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
           (weights_bytes_ || is_aligned(weights)) && (!adds_bias_ || is_aligned(bias));
  }

 private:
  std::optional<EnginePlan> make_relu(const Stream& stream, const CudnnProblem& p) const {
    const PlanDevice device{.handle = cudnn_handle(stream)};
    const ConvGraph graph(p, format_, {.bias = true, .relu = true}, device);
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      for (const EngineConfig& config : graph.offered(mode)) {
        if (config.name != engine_) continue;
        auto plan = EnginePlan::make(config, device);
        if (plan && plan->workspace_bytes() <= plan_.workspace_bytes()) return plan;
      }
    }
    return {};
  }

  /// Runs relu_plan_ on zeros with a bias of NaN, and waits for it. Unknown if it fails but is not
  /// refused: there may be no memory for it now.
  Answer keeps_nan(const Stream& stream, const CudnnProblem& p) const try {
    MemoryParts parts;
    const std::size_t big = parts.add(bytes_of(p, p.big()));
    const std::size_t small = parts.add(bytes_of(p, p.small()));
    const std::size_t weights = parts.add(bytes_of(p, p.weights()));
    const std::size_t bias = parts.add(bytes_of(p, {p.k}));
    const std::size_t found = parts.add(sizeof(double));
    const std::size_t workspace = parts.add(relu_plan_->workspace_bytes());
    const TrialMemory memory(stream, parts.bytes, /*drop_cache=*/failed_trials_ == 0);
    const auto at = [&](std::size_t part) { return memory.data() + part; };
    fill(stream, std::numeric_limits<double>::quiet_NaN(), View{at(bias), p.dtype, {p.k}, {1}});
    const cudnnStatus_t status =
        run_convolution(*relu_plan_, cudnn_handle(stream),
                        {at(big), at(small), at(weights), at(bias)}, at(workspace));
    if (is_refusal(status)) {
      warn_refused(p, stream.device.index, relu_name());
      return Answer::no;
    }
    if (status != CUDNN_STATUS_SUCCESS) return Answer::unknown;
    copy(stream, View{at(small), p.dtype, {1}, {1}}, View{at(found), DType::f64, {1}, {1}});
    double first = 0;
    cuda_runtime().copy(&first, Device(), at(found), stream.device, sizeof first, stream);
    // Not the runtime's wait, which would throw for an earlier bad index.
    WEFT_CUDA(cudaStreamSynchronize(handle(stream)));
    return std::isnan(first) ? Answer::yes : Answer::no;
  } catch (const std::bad_alloc&) {
    return Answer::unknown;
  }

  /// Returns the operand for cuDNN: where it is, or copied to `to` in the execution's format, as
  /// the first rows and columns of `whole`.
  View place(const View& given, const Shape& whole, std::size_t bytes, char* to) const {
    if (bytes == 0) return given;
    return View{to, given.dtype, given.shape, format_strides(whole, format_)};
  }

  ConvPass pass_;
  bool pads_small_, adds_bias_;
  Shape library_small_;
  MemoryFormat format_;
  std::string name_;
  std::string engine_;  // EngineConfig::name
  EnginePlan plan_;
  std::optional<EnginePlan> relu_plan_;
  Answer relu_;
  int failed_trials_ = 0;
  std::size_t big_bytes_ = 0, small_bytes_ = 0, weights_bytes_ = 0;
};

/// The candidates of a problem, all that cuDNN offers and the rules admit, in the order in which
/// they are tried: those of one format after the other, best first by cuDNN's estimate. A plan is
/// made when one is asked for.
class Candidates {
 public:
  Candidates(const CudnnProblem& p, int device) : problem_(p), device_(device) {}

  void add(MemoryFormat format) {
    // By a fixed rule the bias is added as it is everywhere else.
    if (problem_.fusable_bias && !thread_state().deterministic) {
      const ConvGraph graph(problem_, format, {.bias = true}, here());
      add(graph, CUDNN_HEUR_MODE_A, format, true, kTimedWithBias);
    }
    const ConvGraph graph(problem_, format, {}, here());
    add(graph, CUDNN_HEUR_MODE_A, format, false, kTimed);
    add(graph, CUDNN_HEUR_MODE_FALLBACK, format, false, kTimedOfFallback);
  }

  const std::vector<std::string>& names() const { return names_; }
  /// Whether cuDNN can make a plan of it, of a bearable size. Keeps the plan.
  bool build(std::size_t i) {
    Candidate& c = candidates_[i];
    if (!c.execution && !std::exchange(c.tried, true)) {
      auto plan = EnginePlan::make(c.config, here());
      if (plan && plan->workspace_bytes() <= problem_.most_workspace()) {
        c.execution.emplace(problem_, c.format, names_[i], c.config.name, c.adds_bias,
                            std::move(*plan));
      }
    }
    return c.execution.has_value();
  }
  /// Whether one can be built.
  bool any() {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (build(i)) return true;
    }
    return false;
  }
  /// One that was built.
  Execution& at(std::size_t i) { return *candidates_[i].execution; }

  /// Those that are timed: the first of each list that can be built.
  std::vector<std::size_t> timed() {
    std::vector<std::size_t> found;
    for (const List& list : lists_) {
      std::size_t left = list.timed;
      for (const std::size_t i : list.members) {
        if (left == 0) break;
        if (std::ranges::find(found, i) != found.end() || !build(i)) continue;
        found.push_back(i);
        --left;
      }
    }
    return found;
  }

 private:
  struct Candidate {
    MemoryFormat format;
    bool adds_bias;
    EngineConfig config;
    bool tried = false;
    std::optional<Execution> execution = {};
  };
  struct List {
    std::size_t timed;  // so many of them
    std::vector<std::size_t> members = {};
  };

  /// The handle is the thread's.
  PlanDevice here() const { return {.handle = cudnn_handle(device_)}; }

  /// Adds those of a list that the rules admit. One that an earlier list has keeps its place there.
  void add(const ConvGraph& graph, cudnnBackendHeurMode_t mode, MemoryFormat format, bool adds_bias,
           std::size_t timed) {
    const ThreadState& state = thread_state();
    List& list = lists_.emplace_back(List{timed});
    for (EngineConfig& config : graph.offered(mode)) {
      if (!admissible(config, problem_.dtype, state.allow_tf32_conv, state.deterministic)) continue;
      const auto is_it = [&](const Candidate& other) {
        return other.format == format && other.adds_bias == adds_bias &&
               other.config.name == config.name;
      };
      const auto found = std::ranges::find_if(candidates_, is_it);
      list.members.push_back(std::size_t(found - candidates_.begin()));
      if (found != candidates_.end()) continue;
      names_.push_back(detail::concat(format == MemoryFormat::nchw ? "nchw." : "nhwc.", config.name,
                                      adds_bias ? ".bias" : "",
                                      mode == CUDNN_HEUR_MODE_FALLBACK ? ".fallback" : ""));
      candidates_.push_back({format, adds_bias, std::move(config)});
    }
  }

  CudnnProblem problem_;
  int device_;
  std::vector<std::string> names_;
  std::vector<Candidate> candidates_;
  std::vector<List> lists_;
};

class CudaConvPlan final : public Conv2dPlan {
 public:
  CudaConvPlan(const Conv2dArgs& args, int device);
  void run(const Stream& stream, const Conv2dArgs& args, void* workspace) const;

 private:
  void time(Candidates& candidates, std::vector<Measured>& measured) const;
  std::optional<Execution> next() const;
  void run_empty(const Stream& stream, const Conv2dArgs& args) const;
  ConvEpilogue run_library(const Stream& stream, const Conv2dArgs& args, char* workspace) const;

  CudnnProblem problem_;
  std::string text_;  // describes the problem in messages
  int device_;
  // What runs, none for an empty problem, and the names of those that cuDNN has refused to run.
  // cuDNN's plans are not made to run in several threads at once.
  mutable std::mutex mutex_;
  mutable std::optional<Execution> execution_;
  mutable std::vector<std::string> refused_;
};

/// The bias as a view with y's dimensions, all of length 1 except the channels.
View channel_view(const View& bias) {
  View view = bias;
  view.shape = Shape{1, bias.shape[0], 1, 1};
  view.strides = Strides{0, bias.strides[0], 0, 0};
  return view;
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
  // Loading the kernels of a plan allocates memory.
  const AllowWhileRecording allow;
  Candidates candidates(problem_, device);
  candidates.add(output_format);
  // Without timing the images keep their format, unless only the other format has a plan.
  if (why_not.empty() || !candidates.any()) candidates.add(other);
  const auto words = problem_.key(0, 0, state.allow_tf32_conv);
  text_ = text_of(problem_, device);
  WEFT_CHECK(candidates.any(), Unsupported, "conv2d", "cuDNN has no ",
             state.deterministic ? "deterministic " : "", "plan for ", text_);
  const ChoiceProblem problem{"conv2d",
                              text_,
                              machine(device),
                              {words.begin(), words.end()},
                              CudnnProblem::family(words),
                              candidates.names(),
                              [device] { wait_for_quiet(device); }};
  const std::size_t best = choose(
      problem, why_not, [&](std::vector<Measured>& measured) { time(candidates, measured); }, 1,
      [&](std::size_t i) { return candidates.build(i); });
  execution_ = std::move(candidates.at(best));
  output_format = execution_->format();
  // The bias gradient is computed before the pass uses the memory.
  workspace_bytes = std::max(workspace_bytes, execution_->workspace_bytes());
}

void CudaConvPlan::time(Candidates& candidates, std::vector<Measured>& measured) const {
  const Stream stream = current_stream(Device(DeviceType::cuda, device_));
  const std::vector<std::size_t> timed = candidates.timed();
  std::size_t most = 0;
  for (const std::size_t i : timed) most = std::max(most, candidates.at(i).workspace_bytes());
  MemoryParts parts;
  const std::size_t of_big = parts.add(bytes_of(problem_, problem_.big()));
  const std::size_t of_small = parts.add(bytes_of(problem_, problem_.small()));
  const std::size_t of_weights = parts.add(bytes_of(problem_, problem_.weights()));
  const Shape channels{problem_.k};  // some candidates add the bias and some do not
  const std::size_t of_bias = parts.add(problem_.fusable_bias ? bytes_of(problem_, channels) : 0);
  const std::size_t workspace = parts.add(most);
  const TrialMemory memory(stream, parts.bytes);
  const auto at = [&](std::size_t part) { return memory.data() + part; };
  const View bias{at(of_bias), problem_.dtype, channels, contiguous_strides(channels)};
  // Not before: while it lives, NCCL begins nothing, and other ranks may wait.
  const Quiet quiet(device_);
  if (!quiet.is()) return;
  for (const std::size_t i : timed) {
    const Execution& candidate = candidates.at(i);
    // The images as in a real run: an input in its given format, an output in the execution's
    // format.
    const auto image = [&](std::size_t part, const Shape& shape, bool read,
                           const Formats& formats) {
      MemoryFormat format = candidate.format();
      if (read && !formats.has(format)) {
        format = formats.nchw ? MemoryFormat::nchw : MemoryFormat::nhwc;
      }
      return View{at(part), problem_.dtype, shape, format_strides(shape, format)};
    };
    const View big = image(of_big, problem_.big(), !problem_.writes_big(), problem_.big_formats);
    const View small =
        image(of_small, problem_.small(), !problem_.writes_small(), problem_.small_formats);
    const View weights = image(of_weights, problem_.weights(), true, problem_.weights_formats);
    const double ms = time_ms(stream, [&] {
      const cudnnStatus_t status = candidate.run(stream, big, small, weights, bias, at(workspace));
      if (is_refusal(status)) warn_refused(problem_, device_, candidate.name());
      if (status != CUDNN_STATUS_SUCCESS) return false;
      if (problem_.fusable_bias && !candidate.adds_bias())
        add_bias(stream, small, bias, Activation::none);
      return true;
    });
    measured.push_back({candidates.names()[i], ms});
  }
}

/// The first plan in the output's format that cuDNN has not refused to run: of those for which the
/// callers' workspace is enough, or else of all. It is asked anew, since its lists are long and
/// hardly ever needed twice.
std::optional<Execution> CudaConvPlan::next() const {
  Candidates candidates(problem_, device_);
  candidates.add(output_format);
  for (const std::size_t most : {workspace_bytes, std::numeric_limits<std::size_t>::max()}) {
    for (std::size_t i = 0; i < candidates.names().size(); ++i) {
      const bool refused = std::ranges::find(refused_, candidates.names()[i]) != refused_.end();
      if (refused || !candidates.build(i)) continue;
      if (candidates.at(i).workspace_bytes() <= most) return std::move(candidates.at(i));
    }
  }
  return {};
}

/// One of the tensors has no elements, so every sum is empty.
void CudaConvPlan::run_empty(const Stream& stream, const Conv2dArgs& args) const {
  switch (problem_.pass) {
    case ConvPass::forward: return fill(stream, 0, small_of(args));
    case ConvPass::backward_data: return fill(stream, 0, big_of(args));
    case ConvPass::backward_weights: return fill(stream, 0, args.w);
  }
}

/// Runs what was chosen, or what takes its place from now on. Returns what that did after the sums.
ConvEpilogue CudaConvPlan::run_library(const Stream& stream, const Conv2dArgs& args,
                                       char* workspace) const {
  const std::lock_guard lock(mutex_);
  bool relu = false;
  intrusive_ptr<Storage> more;
  while (true) {
    // What has taken a refused plan's place may need more than the callers were told.
    if (const std::size_t needed = execution_->workspace_bytes(); needed > workspace_bytes) {
      more = Storage::allocate(stream.device, needed);
      workspace = static_cast<char*>(more->data());
    }
    if (args.then == Activation::relu && why_not_timed(device_).empty()) {
      execution_->find_relu(stream, problem_);
    }
    relu = args.then == Activation::relu && execution_->has_relu();
    WEFT_CHECK(execution_->accepts(big_of(args), small_of(args), args.w, args.bias), Internal,
               "conv2d", "a view is less aligned than the one its plan was made with (",
               kCudnnAlignment, " bytes); ask for a plan with the views themselves");
    const RecordedKernels recorded(stream);
    const cudnnStatus_t status =
        execution_->run(stream, big_of(args), small_of(args), args.w, args.bias, workspace, relu);
    const auto name = [&] { return relu ? execution_->relu_name() : execution_->name(); };
    if (status == CUDNN_STATUS_SUCCESS) {
      // tools/gpu/run lists these kernels.
      if (const std::string kernels = recorded.of_libraries(); !kernels.empty()) {
        log_info(detail::concat("perf: conv2d ", text_, ": ", name(), " runs ", kernels));
      }
      break;
    }
    execution_->forget_relu();
    if (!is_refusal(status)) {
      throw_status(status, "cudnnBackendExecute(...)", __FILE__, __LINE__);
    }
    warn_refused(problem_, device_, name());
    if (relu) continue;
    const AllowWhileRecording allow;
    refused_.push_back(execution_->name());
    auto other = next();
    if (!other) refused_.clear();  // the next call begins anew
    WEFT_CHECK(other, Unsupported, "conv2d", "cuDNN runs none of its plans for ", text_);
    execution_ = std::move(other);
  }
  check_launched("conv2d", stream);
  return {.bias = execution_->adds_bias(), .relu = relu};
}

void CudaConvPlan::run(const Stream& stream, const Conv2dArgs& args, void* workspace) const {
  use_device(device_);
  WEFT_CHECK(problem_.bias || args.pass == ConvPass::backward_data || !args.bias, Internal,
             "conv2d", "a bias is given that the plan was made without");
  if (problem_.bias && args.pass == ConvPass::backward_weights) {
    reduce(stream, ReduceOp::sum, args.y, channel_view(args.bias), workspace);
  }
  ConvEpilogue done;
  if (problem_.empty()) {
    run_empty(stream, args);
  } else {
    if (!problem_.writes_weights()) {
      const View& written = problem_.writes_small() ? small_of(args) : big_of(args);
      WEFT_CHECK(formats_of(written).has(output_format), Internal, "conv2d",
                 "the output is not in the format its plan names");
    }
    done = run_library(stream, args, static_cast<char*>(workspace));
  }
  if (problem_.bias && args.pass == ConvPass::forward && !done.bias) {
    add_bias(stream, args.y, args.bias, args.then);
  } else if (args.then == Activation::relu && !done.relu) {
    unary(stream, UnaryOp::relu, {}, args.y, args.y);
  }
}

PlanRef<Conv2dPlan> plan(const Conv2dArgs& args) {
  // One cache per device; never destroyed, for static objects.
  using Cache = PlanCache<CudaConvPlan, std::tuple_size_v<CudnnProblem::Key>>;
  static auto* const caches = new Cache[device_count(DeviceType::cuda)];
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

Conv2dKernels conv_kernels() {
  return {.plan = plan,
          .run = run,
          .relu_backward_workspace_bytes = relu_backward_workspace_bytes,
          .relu_backward = relu_backward};
}

}  // namespace weft::cuda
