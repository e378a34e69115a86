// Command-line options that every example has.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "weft/core/base/device.h"
#include "weft/core/base/dtype.h"
#include "weft/data/loader_core.h"
#include "weft/data/mnist.h"

namespace weft::train {

/// Of the flags that a program has besides the common ones, by their names without the dashes.
using FlagValues = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;

struct Options {
  std::string example = {};      ///< the program's name, set by the program
  std::string description = {};  ///< one line for --help
  std::string unit = "images";   ///< what a batch holds, for --help and the progress
  Device device = Device();      ///< filled in: CUDA where there is one
  /// In programs of several processes: this process's number on its host, in place of which comes
  /// --local-rank's where it is given. With n GPUs "cuda" is this number modulo n. May throw.
  std::function<int()> local_rank = {};
  DType dtype = DType::f32;
  bool amp = false;  ///< --amp bf16: the body runs under autograd::Autocast
  std::string float32_matmul_precision = "highest";  ///< as set_float32_matmul_precision()
  std::string conv_fp32_precision = "tf32";          ///< as cudnn::conv::set_fp32_precision()
  std::int64_t epochs = 3;
  std::int64_t batch_size = 32;
  double lr = 1e-3;
  std::uint64_t seed = 0;
  bool shuffle = true;
  int workers = 2;
  bool data_on_device = false;  ///< the training set is copied there once
  int threads = 0;              ///< 0: all cores
  /// 0: no limit; counts the steps before --resume too. Also the most batches of a test
  /// (test_loader in evaluate.h).
  std::int64_t limit_steps = 0;
  std::string data = data::kFashionMnistDir;
  std::string data_help = "folder of MNIST's IDX files";  ///< what --help says of it
  std::string out = {};                                   ///< default outputs/EXAMPLE
  std::string resume = {};            ///< a checkpoint; "latest": that of `out`, if it is there
  std::int64_t checkpoint_every = 0;  ///< steps; besides the ends of epochs; 0: at these alone
  Device map_location = Device();     ///< where its tensors are put before they are copied
  std::string trace = {};             ///< where the spans go
  bool tensorboard = false;           ///< event files in OUT/tensorboard
  bool deterministic = false;
  bool graph = false;                   ///< steps are captured and replayed (step.h)
  int host_devices = 0;                 ///< 0: as WEFT_HOST_DEVICES says
  std::int64_t host_device_memory = 0;  ///< bytes that each of them may hold; 0: no limit
  std::int64_t log_every = 0;           ///< a line that stays every so many steps; 0: none
  bool summary = false;                 ///< show what nn::summary finds, and train nothing
  bool keep_checkpoints = false;        ///< one of each epoch; else only the last
  int as_ranks = 1;                     ///< take the steps of so many ranks (shards.h)
  FlagValues flags = {};                ///< filled in; metrics.json has them

  /// Options for the loader of the training data; `sampler` replaces shuffle. Throws
  /// InvalidArgument if --as-ranks was given.
  data::DataLoaderOptions loader(std::shared_ptr<const data::Sampler> sampler = nullptr) const;
  /// The same for a program that supports --as-ranks, for a data set of `size` images.
  data::DataLoaderOptions loader(std::int64_t size) const;
};

/// An option of one program besides the common ones. Values for a double are above 0 and may be
/// quotients like "1/16"; integers are 1 to 10^9; texts are not empty.
struct Flag {
  std::string name;                                                 ///< "--depth"
  std::variant<bool*, std::int64_t*, double*, std::string*> value;  ///< holds the default
  std::string help;
  std::vector<std::string> choices = {};  ///< none: any value
  /// For a text: returns what is wrong with it, or an empty string.
  std::function<std::string(const std::string&)> check = {};
};

/// Fills `options` and the variables of the flags, which hold the program's defaults. Returns an
/// exit status when the program should end now: 0 after --help, 2 after printing to stderr what is
/// wrong and, for an unknown option, the nearest known one. Whether the device exists is not
/// checked here.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options,
                                 const std::vector<Flag>& flags = {});

}  // namespace weft::train
