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

/// The values of a program's own flags, by their names without the dashes.
using FlagValues = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;

class Proof;

/// What a run finds out about its options, for metrics.json.
struct Findings {
  bool graph = false;                 ///< a step was captured
  std::shared_ptr<Proof> proof = {};  ///< of the run, if the environment asks for one (proof.h)
};

struct Options {
  std::string example = {};  ///< the program's name, set by the program
  /// Set by the program: a name for all programs that can go on from each other's checkpoints;
  /// empty: none can.
  std::string family = {};
  std::string description = {};  ///< one line for --help
  std::string unit = "images";   ///< what a batch holds, for --help and progress
  Device device = Device();      ///< filled in: CUDA if there is a GPU
  /// In programs of several processes: this process's number on its host; --local-rank replaces it.
  /// With n GPUs "cuda" is this number modulo n. May throw.
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
  std::string data_help = "folder of MNIST's IDX files";  ///< the --help text of --data
  std::string out = {};                                   ///< default outputs/EXAMPLE
  /// A state dict to begin from at step 0, FILE or FILE:KEY (io::load_state_dict). A checkpoint to
  /// resume from replaces it, so the same command with --resume goes on.
  std::string weights = {};
  /// Set by the program: tensors whose names begin with it keep their initial values if `weights`
  /// has them in another shape, as the last layer for another number of classes.
  std::string head = {};
  std::string resume = {};            ///< a checkpoint; "latest": that of `out`, if it is there
  std::int64_t checkpoint_every = 0;  ///< steps; 0: only at the ends of epochs
  Device map_location = Device();     ///< the device of its tensors before they are copied
  std::string trace = {};             ///< the file for the spans
  bool tensorboard = false;           ///< event files in OUT/tensorboard
  bool deterministic = false;
  std::optional<bool> graph = {};       ///< whether steps are captured and replayed (step.h)
  int host_devices = 0;                 ///< 0: as WEFT_HOST_DEVICES says
  std::int64_t host_device_memory = 0;  ///< bytes that each of them may hold; 0: no limit
  std::int64_t log_every = 0;           ///< a lasting line after this many steps; 0: none
  bool summary = false;                 ///< show what nn::summary finds, and train nothing
  bool keep_checkpoints = false;        ///< one per epoch; else only the last
  FlagValues flags = {};                ///< filled in; for metrics.json
  /// What the run with these options, or copies of them, has found out.
  std::shared_ptr<Findings> findings = std::make_shared<Findings>();

  /// Options for the loader of the training data; `sampler` replaces shuffle.
  data::DataLoaderOptions loader(std::shared_ptr<const data::Sampler> sampler = nullptr) const;
  /// Whether this is the one process that ./weft prove compares with ranks or devices. It must not
  /// use an engine that would still do something with one rank or device.
  bool alone() const;
  /// Called in this one process where the engine would work: the backward of a batch's micro-batch
  /// `number` is done. So a micro-batch that the engine has lost can be named.
  void note_micro_batch(std::int64_t number) const;
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
  /// Names of flags that are refused beside this one.
  std::vector<std::string> excludes = {};
};

/// Fills `options` and the variables of the flags, which hold the program's defaults. Returns an
/// exit status if the program should end now: 0 after --help, 2 after printing to stderr what is
/// wrong and, for an unknown option, the nearest known one. It does not check whether the device
/// exists.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options,
                                 const std::vector<Flag>& flags = {});

}  // namespace weft::train
