// The training steps that are timed, with inputs that both sides compute by one formula.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::bench {

/// `count` batches: x of this shape = (i * 7919 mod 256) / 255 over all elements i, labels
/// [shape[0]] = 7 i mod classes.
std::vector<std::pair<Tensor, Tensor>> batches(const Shape& shape, std::int64_t classes,
                                               std::int64_t count);

/// One training step of a model, repeatable.
class Work {
 public:
  virtual ~Work() = default;
  /// Forward, backward, update with the next batch.
  virtual void step() = 0;
  virtual std::int64_t batch_size() const = 0;
  /// Steps that are timed as one.
  virtual int block() const { return 10; }
};

/// bench: small enough for a CPU. full: what a GPU is for.
enum class WorkSize { bench, full };

/// "autoencoder" (batch 32, Adam), "mlp" (batch 64, SGD), "cnn" (1/16 of the width, batch 64, SGD),
/// "resnet50" (batch 8, 224x224, SGD with momentum and weight decay) or "dcgan" (batch 64, 64x64,
/// 64 channels next to the image, a step of both nets). channels_last: the batches come in that
/// layout, which the layers keep. At full size cnn has its whole width, resnet50 batches of 256.
/// Throws InvalidArgument.
std::unique_ptr<Work> make_work(const std::string& name, bool channels_last = false,
                                WorkSize size = WorkSize::bench);

/// Whether channels_last makes a difference: whether the work's images have several channels.
bool has_layouts(const std::string& name);

}  // namespace weft::bench
