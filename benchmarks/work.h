// The training steps that are timed, with inputs that both sides compute by one formula.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::bench {

/// `count` batches: x [size,1,28,28] = (i * 7919 mod 256) / 255 over all elements i, labels
/// [size] = 7 i mod 10.
std::vector<std::pair<Tensor, Tensor>> batches(std::int64_t size, std::int64_t count = 8);

/// One training step of a model, repeatable.
class Work {
 public:
  virtual ~Work() = default;
  /// Forward, backward, update with the next batch.
  virtual void step() = 0;
  virtual std::int64_t batch_size() const = 0;
};

/// "autoencoder" (batch 32, Adam) or "mlp" (batch 64, SGD). Throws InvalidArgument.
std::unique_ptr<Work> make_work(const std::string& name);

}  // namespace weft::bench
