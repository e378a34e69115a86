// UnusedParameters: steps of DistributedDataParallel that leave parameters out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "weft/parallel/reducer.h"

namespace weft::parallel {

/// A parameter that this rank does not use counts as zeros here; one that no rank uses gets no
/// gradient. After the buckets, the ranks tell each other what they have used.
class UnusedParameters : public Expectations {
 public:
  /// With a static graph each backward leaves out what the first one has left out. Otherwise each
  /// backward leaves out the parameters on which no output of the preceding forwards depends.
  UnusedParameters(Reducer& reducer, bool static_graph);

  /// Whether after_forward() must be called.
  bool walks_outputs() const { return !static_graph_; }
  void after_forward(std::span<const Tensor> outputs);

  std::vector<std::size_t> left_out() override;
  void on_gradient(std::size_t index, bool too_late) override;
  void on_all_sent() override;
  std::vector<std::size_t> unused() override;
  void on_failure() override;
  const char* on_end(const std::vector<std::size_t>& missing) override;

 private:
  void begin_again();
  [[noreturn]] void throw_unexpected(std::size_t index) const;

  Reducer& reducer_;
  const bool static_graph_;
  std::unordered_map<const TensorImpl*, std::size_t> index_of_;
  std::vector<bool> expected_;       // by parameter; empty: all
  std::vector<std::uint8_t> used_;   // by a backward since the last reduction
  std::vector<std::size_t> unused_;  // by any rank, in the last exchange
  // The exchange in progress:
  Tensor uses_;
  std::optional<comm::Work> telling_;
  bool told_ = false;  // a static graph needs it once
};

}  // namespace weft::parallel
