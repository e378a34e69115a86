#include "weft/train/recorder_proof.h"

#include "weft/core/base/error.h"
#include "weft/train/proof.h"

namespace weft::train {

RecorderProof::RecorderProof(const Options& options)
    : options_(options), proof_(options.findings->proof) {
  WEFT_CHECK(!proof_ || options.resume.empty(), InvalidArgument, "prove",
             "a run that is resumed cannot be replayed; leave --resume out");
}

void RecorderProof::begin(const Ranks& ranks, ProvedRun run, std::int64_t dataset_size) {
  run.program = options_.example;
  run.dtype = options_.dtype;
  run.dataset_size = dataset_size;
  run.batch_size = options_.batch_size;
  run.shuffle = options_.shuffle;
  proof_->begin(ranks, std::move(run));
  watch_.emplace(*proof_);
}

std::int64_t RecorderProof::steps(std::int64_t batches) const {
  return proof_ ? batches / proof_->batches_per_step() : batches;
}

void RecorderProof::on_batch(std::int64_t step, std::int64_t epoch,
                             std::span<const std::int64_t> indices, std::vector<Tensor> tensors) {
  proof_->on_batch(step, epoch, indices, std::move(tensors));
}

bool RecorderProof::end_step(std::initializer_list<NamedLoss> losses) {
  return !proof_ || proof_->end_step(losses);
}

void RecorderProof::end(std::int64_t steps) {
  if (proof_) proof_->end(steps);
}

}  // namespace weft::train
