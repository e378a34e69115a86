// Command-line options every example understands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/device.h"
#include "weft/core/dtype.h"
#include "weft/data/loader_core.h"
#include "weft/data/mnist.h"

namespace weft::train {

struct Options {
  std::string example = {};      ///< the program's name, set by the program
  std::string description = {};  ///< one line for --help
  Device device = Device();      ///< filled in: CUDA where there is one
  DType dtype = DType::f32;
  std::int64_t epochs = 3;
  std::int64_t batch_size = 32;
  double lr = 1e-3;
  std::uint64_t seed = 0;
  bool shuffle = true;
  int workers = 2;
  int threads = 0;               ///< 0: all cores
  std::int64_t limit_steps = 0;  ///< 0: no limit; counts the steps before --resume too
  std::string data = data::kFashionMnistDir;
  std::string out = {};     ///< default outputs/EXAMPLE
  std::string resume = {};  ///< a checkpoint
  std::string trace = {};   ///< where the spans go
  bool deterministic = false;
  int host_devices = 0;  ///< 0: as WEFT_HOST_DEVICES says

  /// For the loader of the training data.
  data::DataLoaderOptions loader() const {
    return {.batch_size = batch_size, .shuffle = shuffle, .workers = workers, .device = device};
  }
};

/// Fills `options`, which hold the program's defaults. An exit status when the program should end
/// now: 0 after --help, 2 after printing to stderr what is wrong and, for an unknown option, the
/// nearest known one. Whether the device exists is not checked here.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options);

/// The known word nearest to `word` by edit distance, or nothing when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

}  // namespace weft::train
