// How time and memory of a training step grow with the batch and with the depth of the net.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace weft::bench {

/// The costs of a training step in its steady state.
struct StepCost {
  double ms = 0;                ///< the median
  std::int64_t peak_bytes = 0;  ///< most bytes of live tensors, with model and state
};

/// Forward, backward and Adam of the autoencoder in f32 on the thread's device; steps are timed for
/// about `seconds`. Throws InvalidArgument for a batch below 1.
StepCost autoencoder_cost(std::int64_t batch, double seconds);

/// Forward, backward and SGD with momentum of a ResNet for 10 classes on 8 images of 64 x 64.
/// depth: 18, 34, 50 or 101, else InvalidArgument.
StepCost resnet_cost(std::int64_t depth, double seconds);

/// The peak of the autoencoder's step in bytes, computed by hand.
struct MemorySum {
  std::int64_t parameters = 0;
  std::int64_t moments = 0;      ///< both of Adam's
  std::int64_t gradients = 0;    ///< of parameters that have one at the peak
  std::int64_t batch = 0;        ///< the images
  std::int64_t activations = 0;  ///< outputs that backward or the caller still holds
  std::int64_t passing = 0;      ///< gradients that backward passes on

  std::int64_t total() const {
    return parameters + moments + gradients + batch + activations + passing;
  }
};
MemorySum autoencoder_memory(std::int64_t batch);

/// Prints tables of the autoencoder's costs for batches 1, 2, 4 ... 512 and of ResNets for their
/// depths, and draws them into STEM-batch.svg and STEM-depth.svg. Returns the rows.
nlohmann::json run_scaling(const std::string& stem);

}  // namespace weft::bench
