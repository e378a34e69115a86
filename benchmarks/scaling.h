// How time and memory of a training step grow with the batch and with the depth of the net.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace weft::bench {

/// Of a training step in its steady state.
struct StepCost {
  double ms = 0;                ///< median
  std::int64_t peak_bytes = 0;  ///< most bytes of live tensors, the model and its state included
};

/// Forward, backward and Adam of the autoencoder in f32 on the thread's device; steps are timed for
/// about `seconds`. Throws InvalidArgument for a batch below 1.
StepCost autoencoder_cost(std::int64_t batch, double seconds);

/// Forward, backward and SGD with momentum of a ResNet for 10 classes on 8 images of 64 x 64.
/// depth: 18, 34, 50 or 101, else InvalidArgument.
StepCost resnet_cost(std::int64_t depth, double seconds);

/// The peak of the autoencoder's step, added up by hand; bytes.
struct MemorySum {
  std::int64_t parameters = 0;
  std::int64_t moments = 0;      ///< Adam's two
  std::int64_t gradients = 0;    ///< those of parameters that exist at the peak
  std::int64_t batch = 0;        ///< the images
  std::int64_t activations = 0;  ///< what forward made and backward or the caller still holds
  std::int64_t passing = 0;      ///< gradients on their way back

  std::int64_t total() const {
    return parameters + moments + gradients + batch + activations + passing;
  }
};
MemorySum autoencoder_memory(std::int64_t batch);

/// Prints the autoencoder over batches 1, 2, 4 ... 512 and ResNets over their depths as tables, and
/// draws them into STEM-batch.png and STEM-depth.png. Returns the rows.
nlohmann::json run_scaling(const std::string& stem);

}  // namespace weft::bench
