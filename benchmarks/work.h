// The training steps that are timed; both sides compute the inputs by the same formula.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/tensor/tensor.h"

namespace weft::bench {

/// What a work trains, and on which data; the peer gets the same.
struct WorkSpec {
  std::string name;
  std::string model;  ///< the program's: autoencoder, mlp, cnn, resnet, dcgan or transformer
  Shape images;       ///< of a batch, [N,C,H,W]; for the transformer texts, [N,L]
  std::int64_t classes = 10;
  std::int64_t count = 8;                    ///< number of batches that take turns
  int block = 10;                            ///< steps timed together on the CPU
  double width = 1;                          ///< of the cnn
  std::int64_t hidden = 8000;                ///< of the cnn
  std::int64_t depth = 50;                   ///< of the ResNet
  std::int64_t channels = 64, latent = 100;  ///< of the dcgan
  bool train = true;                         ///< else only the forward, without a tape

  /// Whether the batches' layout makes a difference, i.e. whether images have several channels.
  bool has_layouts() const { return images.size() == 4 && images[1] > 1; }
};

/// "autoencoder" (batch 32, Adam), "mlp" (batch 64, SGD), "cnn" (1/16 of the width, batch 64, SGD),
/// "transformer" (char_transformer with its defaults, batch 32, texts of 64 characters, AdamW),
/// "transformer-infer" (its forward in evaluation mode, without a tape), "cnn-full" (the cnn's full
/// width for a GPU: 604 million parameters), "resnet50" (batch 8, 224x224, SGD with momentum and
/// weight decay), "resnet50-b256" (batch 256) or "dcgan" (batch 64, 64x64, 64 channels next to the
/// image, a step of both nets). Throws InvalidArgument.
WorkSpec find_work(const std::string& name);
/// The same program in its smallest size, for trying out: it gives no results.
WorkSpec tiny(WorkSpec spec);
nlohmann::json to_json(const WorkSpec& spec);

/// `count` batches: x of this shape = (i * 7919 mod 256) / 255 over all elements i, labels
/// [shape[0]] = 7 i mod classes.
std::vector<std::pair<Tensor, Tensor>> batches(const Shape& shape, std::int64_t classes,
                                               std::int64_t count);

/// The transformer's: texts of characters that follow a formula, and the characters after each.
std::vector<std::pair<Tensor, Tensor>> texts(const WorkSpec& spec);

/// One training step of a model, repeatable.
class Work {
 public:
  virtual ~Work() = default;
  /// Forward, backward and update with the next batch; without train the forward alone.
  virtual void step() = 0;
};

struct WorkOptions {
  bool channels_last = false;  ///< batches are channels last, and the layers keep this
  bool amp = false;            ///< bf16, as --amp bf16 of the programs
  bool captured = false;       ///< as --graph of the programs
};

/// For a scope, what products of f32 are on CUDA: "f32", "tf32"; "bf16": TF32 beside autocast, for
/// which the work needs `amp`; "default": PyTorch's default, TF32 in convolutions alone.
class PrecisionScope {
 public:
  explicit PrecisionScope(const std::string& name)
      : conv_(&ThreadState::allow_tf32_conv, name != "f32"),
        matmul_(&ThreadState::allow_tf32_matmul, name == "tf32" || name == "bf16") {}

 private:
  Scoped<bool> conv_, matmul_;
};

/// Makes a work on the thread's current device.
std::unique_ptr<Work> make_work(const WorkSpec& spec, const WorkOptions& options = {});

}  // namespace weft::bench
