// The Reducer: averages a module's gradients over the ranks while backward computes them.
//
//   backward   fc.weight ready   conv2 ready         conv1 ready
//              | * 1/world       |                   |
//   bucket 0   [=== all-reduce ===]                  |
//   bucket 1                     (full) [=== all-reduce ===]
//   bucket 2                                         (full) [== all-reduce ==] backward returns
//
// A checkpoint keeps the order from which the buckets were made: they decide in which order a ring
// adds up the ranks' numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group/process_group.h"
#include "weft/nn/module.h"
#include "weft/parallel/coalesced.h"
#include "weft/parallel/gradient_buckets.h"

namespace weft::parallel {

/// Which gradients share a bucket, and which bucket is sent first.
enum class BucketOrder {
  arrival,   ///< as the first reduction gets them, which has one bucket for all
  reversed,  ///< filled as the parameters are given, the last one sent first
  given,     ///< filled and sent as the parameters are given
};
inline constexpr const char* kBucketOrderNames[] = {"arrival", "reversed", "given"};

/// The same on all ranks.
struct ReducerOptions {
  std::optional<double> bucket_cap_mb = {};  ///< as DistributedDataParallelOptions, and so below
  bool broadcast_buffers = true;
  CommHook comm_hook = {};
  BucketOrder order = BucketOrder::arrival;
  std::string text = {};  ///< one line, compared between the ranks like the model
};

/// Which parameters get a gradient: a Reducer calls these functions in each reduction. By default
/// each parameter gets one in each backward that averages, and it is an error if one does not.
class Expectations {
 public:
  virtual ~Expectations() = default;

  /// Called first: the parameters that will get no gradient in this backward.
  virtual std::vector<std::size_t> left_out() { return {}; }
  /// Called when the parameter has got a gradient, also under set_sync(false). `too_late`: it was
  /// left out, so its bucket may have been sent.
  virtual void on_gradient(std::size_t /*index*/, bool /*too_late*/) {}
  /// Called when all buckets have been sent, before any is waited for.
  virtual void on_all_sent() {}
  /// Called when all are reduced. Returns the parameters that no rank has used, in ascending order.
  virtual std::vector<std::size_t> unused() { return {}; }
  virtual void on_failure() {}  ///< what was used since the last reduction does not count
  /// Called at the end of a backward. `missing`: the parameters that were expected to get a
  /// gradient and got none. Returns null, or the remedy for this error.
  virtual const char* on_end(const std::vector<std::size_t>& missing);
};

class Reducer {
 public:
  /// Throws InvalidArgument on all ranks when their models differ, or have no parameter that
  /// requires a gradient. Copies rank 0's parameters and buffers to all ranks.
  Reducer(const nn::ModuleBase& module, std::shared_ptr<comm::ProcessGroup> group,
          ReducerOptions options);

  /// Checks that the module is still the one that was wrapped; warns once if it was updated since
  /// an earlier forward though no backward has averaged, unless one in evaluation was between;
  /// copies rank 0's buffers.
  void before_forward();

  /// Whether backwards average, and forwards broadcast buffers; returns what it was.
  bool set_sync(bool sync);

  /// Averages the gradients that were accumulated under set_sync(false), in any number of
  /// backwards; a parameter without a gradient counts as zeros. All ranks call it.
  void average();

  const GradientBuckets& buckets() const { return buckets_; }

  /// As DistributedDataParallel's functions of these names.
  nn::NamedTensors engine_state() const;
  void load_engine_state(const nn::NamedTensors& state);

  // --- For extensions ---

  comm::ProcessGroup& group() const { return *group_; }
  /// `expectations` must live as long as backwards run.
  void set_expectations(Expectations& expectations) { expectations_ = &expectations; }
  /// Calls f(index) before a contribution to a gradient that counts as ready.
  void before_late_contribution(const std::function<void(std::size_t)>& f);
  /// "rank 1: parameter layer1.conv.weight of module layer1.conv", for errors.
  std::string describe(std::size_t index) const;

  /// Calls f(kBuffers) before a forward broadcasts, f(kGradients) before a backward sends.
  void before_collectives(std::function<void(const char* next)> f) { before_ = std::move(f); }
  static constexpr const char* kBuffers = "buffers";
  static constexpr const char* kGradients = "gradients";
  /// From now on buffers are copied from rank `root`, and gradients are divided by `divisor`.
  /// Before the first call the root is rank 0, and the divisor the number of ranks.
  void set_shares(int root, double divisor);
  void broadcast_buffers();
  /// Copies root's parameters and buffers to all ranks.
  void broadcast_model(int root);

 private:
  void check_averaged();
  std::vector<std::int64_t> bucket_limits() const;
  void rebuild_buckets(const std::vector<std::size_t>& order);
  Reduction send(const Tensor& memory);

  // Called by the tape.
  void on_gradient(std::size_t index);
  void end_backward(const std::exception_ptr& error);

  void begin_reduction();
  void make_ready(std::size_t index);
  std::vector<std::size_t> complete_reduction();
  void give_up();
  [[noreturn]] void throw_missing(const std::vector<std::size_t>& missing,
                                  const char* remedy) const;

  const nn::ModuleBase module_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  const ReducerOptions options_;
  GradientBuckets buckets_;
  std::vector<Coalesced> buffers_;  // by device
  Expectations all_;
  Expectations* expectations_ = &all_;
  std::function<void(const char*)> before_;

  mutable std::mutex mutex_;  // backward may call from the workers of several devices
  bool sync_ = true;
  bool rebuilt_ = false;  // or if they are never rebuilt
  // The order in which gradients became ready in the first reduction; rank 0's after the rebuild.
  std::vector<std::size_t> order_;
  int root_ = 0;        // the rank whose buffers are broadcast
  double divisor_ = 1;  // of gradients
  bool reducing_ = false;
  bool called_ = false;                              // before_forward()
  GradientBuckets::Clock::time_point last_arrival_;  // of the reduction in progress
  // The first parameter's version in the last forward, if that was one in training, and the
  // reductions when it last changed.
  std::optional<std::uint32_t> version_ = {};
  std::int64_t averaged_ = -1;
  bool warned_ = false;
};

/// While it lives, backwards only add to this rank's gradients, and forwards broadcast no buffers.
/// The first backward after its end averages the whole sum.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.set_sync(false)) {}
  ~NoSync() { reducer_.set_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  Reducer& reducer_;
  const bool before_;
};

}  // namespace weft::parallel
