// GradientBuckets: gradients in blocks of memory. Each block is reduced over the ranks in place and
// in one message, while backward computes the next. Reducer and GradientExchange use it: they
// decide when a gradient is ready, and how a bucket is reduced.
//
// A bucket is sent when it is full and all buckets before it have been sent: so the ranks, whose
// gradients may come in different orders, send the same buckets in the same order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/comm/group/process_group.h"
#include "weft/parallel/comm_hooks.h"

namespace weft::parallel {

// --- Which gradients go together: the same assignment as PyTorch's ------------------------

/// The cap of the first bucket to be reduced, if the cap of the others is the default: it should be
/// sent early.
inline constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kDefaultBucketMb = 25;

/// The properties of a gradient that decide its bucket.
struct GradientSize {
  std::int64_t bytes = 0;
  DType dtype = DType::f32;
  Device device;
};

/// Indices of gradients, by bucket.
using BucketPlan = std::vector<std::vector<std::size_t>>;

/// Fills buckets of one dtype and device each, in the given `order` of all gradients (empty: as
/// given). A bucket is closed when it reaches its limit, so its last gradient may exceed it. The
/// limits are those of the first, second ... bucket of each dtype and device; the last one is for
/// all further buckets. With an order the result has the buckets as they were closed, those left
/// open last; without an order it is sorted by their smallest index. PyTorch's
/// compute_bucket_assignment_by_size (reducer.cpp). Throws InvalidArgument without limits, and for
/// an order that has another number of gradients or one that does not exist.
BucketPlan plan_buckets(std::span<const GradientSize> gradients,
                        std::span<const std::int64_t> limits,
                        std::span<const std::size_t> order = {});

/// As text, to send it to other ranks.
std::string to_string(const BucketPlan& plan);
BucketPlan parse_bucket_plan(const std::string& text);

// --- The buckets ---------------------------------------------------------------------------------

/// Statistics of one rank.
struct ReducerStats {
  std::vector<std::int64_t> bucket_bytes;  ///< of the present buckets, in order
  std::int64_t reductions = 0;             ///< backwards that averaged
  std::int64_t bytes_reduced = 0;          ///< of gradients, in all reductions
  /// Time of all reductions: from the first bucket sent to the last bucket reduced ...
  double reduce_ms = 0;
  /// ... and, in each reduction, from this rank's last gradient to the last bucket reduced: waiting
  /// for ranks whose gradients come later, and communication.
  std::vector<double> exposed_ms;
};

/// Functions that take an index mean the parameter of that index in parameters(). All of them are
/// for one thread at a time.
class GradientBuckets {
 public:
  using Clock = std::chrono::steady_clock;
  /// Starts to reduce the memory of a bucket.
  using Send = std::function<Reduction(const Tensor& memory)>;

  /// The names that an engine uses in traces and errors.
  struct Words {
    const char* op;
    const char* send;      ///< the name of the span that sends a bucket
    const char* number;    ///< the span's argument for the bucket's number
    const char* tag;       ///< of the bucket's collectives, followed by the number
    const char* moved;     ///< after "parameter a was moved from cpu to cuda:0"
    const char* unfrozen;  ///< after "requires a gradient now and did not when "
  };

  struct Parameter {
    std::string name;
    Tensor tensor;
    DType dtype;    ///< when the buckets were made
    Device device;  ///< when the buckets were made
    std::size_t bucket = 0;
    Tensor place = {};     ///< its gradient's view of the bucket, in the parameter's strides
    bool attached = true;  ///< the gradient is there
    bool ready = false;    ///< its bucket may be sent
  };
  struct Bucket {
    Tensor memory;  ///< of one dimension
    std::vector<std::size_t> members;
    std::size_t pending = 0;  ///< members that are not ready
    Reduction reduction = {};
  };

  /// For the parameters that require a gradient. There are no buckets until make().
  GradientBuckets(const std::vector<std::pair<std::string, Tensor>>& parameters, const Words& words,
                  Send send);
  /// Keeps the gradients, in memory of their own.
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Calls f(index) when a backward has finished a gradient; see autograd::add_final_leaf_hook.
  void on_gradient(const std::function<void(std::size_t)>& f);
  /// Calls f(index) before each contribution to a gradient.
  void before_contribution(const std::function<void(std::size_t)>& f);

  /// What plan_buckets() needs.
  std::vector<GradientSize> sizes() const;
  /// Makes new buckets, to which the gradients move. After its gradients a bucket has `extra`
  /// numbers for each of them. On the CPU its memory is ProcessGroup::empty(): all ranks call it,
  /// and wait for each other.
  void make(comm::ProcessGroup& group, const BucketPlan& plan, std::int64_t extra = 0);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The parameters of each bucket, in their order.
  std::vector<std::vector<std::string>> names() const;
  const ReducerStats& stats() const { return stats_; }
  /// Throws when a parameter was moved, converted or unfrozen.
  void check_unchanged() const;

  // A reduction: attach(), make_ready() for each gradient; wait(); hand_over() for each; reset().

  /// The gradient's place in its bucket; it holds zeros if nothing was added.
  const Tensor& attach(std::size_t index);
  /// Marks the gradient as ready. Sends each full bucket whose earlier buckets have all been sent.
  void make_ready(std::size_t index);
  /// Tries again to send what make_ready() could not send.
  void send_full();
  /// When the first bucket was sent.
  Clock::time_point first_sent() const { return first_sent_; }
  /// Waits for all buckets. `last_ready`: when the last gradient was ready, for the statistics.
  void wait(Clock::time_point last_ready);
  /// Makes the reduced values the gradient of the parameter; without `used` it gets no gradient.
  void hand_over(std::size_t index, bool used);
  void reset();

 private:
  void send_next();

  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, Tensor>> frozen_;  // that require no gradient
  const Words words_;
  const Send send_;
  std::vector<autograd::HookHandle> hooks_;
  std::vector<Bucket> buckets_;
  ReducerStats stats_;
  std::size_t next_ = 0;  // bucket to be sent
  Clock::time_point first_sent_;
};

}  // namespace weft::parallel
