// What a Recorder tells the proof of its run. Without one, as in most runs, these calls do nothing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "weft/optim/optimizer.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/tree.h"
#include "weft/train/losses.h"
#include "weft/train/options.h"
#include "weft/train/proved_run.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// Between a Recorder and options.findings->proof, which may be null. Throws as Proof does.
class RecorderProof {
 public:
  /// `options` must outlive this. Throws InvalidArgument for a run to be proved that is resumed.
  explicit RecorderProof(const Options& options);

  /// Says what is trained. From now on the proof watches the updates.
  template <class Model, class Loader, class... Parts>
  void begin(const Ranks& ranks, Model& model, const Loader& loader, const Parts&... parts) {
    if (proof_) begin(ranks, proved_run(model, parts...), loader.dataset().size());
  }
  /// The steps that these batches of the loader make: in a replay each takes those of all ranks.
  std::int64_t steps(std::int64_t batches) const;
  /// A batch is handed out for the step after `step` steps.
  template <class Loader, class Batch>
  void on_batch(std::int64_t step, std::int64_t epoch, const Loader& loader, Batch& batch) {
    if (!proof_) return;
    std::vector<Tensor> tensors;
    for_each_tensor(batch, [&](const Tensor& x) { tensors.push_back(x); });
    std::span<const std::int64_t> indices;
    if constexpr (requires { loader.indices(); }) indices = loader.indices();
    on_batch(step, epoch, indices, std::move(tensors));
  }
  /// Whether the step is complete: in a replay only after the batch of the last rank.
  bool end_step(std::initializer_list<NamedLoss> losses);
  void end(std::int64_t steps);

 private:
  void begin(const Ranks& ranks, ProvedRun run, std::int64_t dataset_size);
  void on_batch(std::int64_t step, std::int64_t epoch, std::span<const std::int64_t> indices,
                std::vector<Tensor> tensors);

  const Options& options_;
  const std::shared_ptr<Proof> proof_;  // or null
  std::optional<optim::UpdateWatchScope> watch_;
};

}  // namespace weft::train
