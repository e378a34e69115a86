// Shared by the ResNet programs besides the model: options, pictures, learning rates.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/examples/resnet.h"
#include "weft/train/options.h"
#include "weft/weft.h"

namespace weft::examples {

/// Options of the ResNet programs besides the common ones.
struct ResNetFlags {
  std::int64_t depth = 18;
  std::int64_t image_size = 224;
  bool zero_init_residual = false;
  std::string freeze = "none";
  std::string schedule = "none";
  bool sync_bn = false;              // only for resnet_ddp
  bool deferred_batch_norm = false;  // only for resnet_pipe
};

inline std::vector<train::Flag> flags(ResNetFlags& values) {
  return {{"--depth", &values.depth, "18, 34, 50 or 101", {"18", "34", "50", "101"}},
          {"--image-size", &values.image_size, "height and width of what the net sees"},
          {"--zero-init-residual", &values.zero_init_residual, "each block starts as the identity"},
          {"--freeze", &values.freeze, "what is not trained", {"none", "all-but-fc"}},
          {"--schedule",
           &values.schedule,
           "learning rate per epoch: a tenth every 30, or down to 0 along a cosine",
           {"none", "step", "cosine"}}};
}

/// Data sets and the number of classes.
struct Images {
  data::ImageSet train, test;
  std::int64_t classes;
};

/// Pictures of the folders train and val in --data, or generated ones for "--data fake". Throws Io
/// without these folders, InvalidArgument if their classes differ.
inline Images images(const train::Options& options, int size) {
  using namespace data;
  const Normalize normalize{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
  if (options.data == "fake") {
    if (thread_state().rank == 0)
      std::printf("made-up images of 10 classes; --data names a folder of real ones\n");
    const ImageFormat format{.normalize = normalize, .dtype = options.dtype};
    return {ImageSet(FakeData(1024, {3, size, size}, 10, {.format = format})),
            ImageSet(FakeData(256, {3, size, size}, 10, {.first = 1024, .format = format})), 10};
  }
  for (const char* part : {"/train", "/val"}) {
    WEFT_CHECK(
        std::filesystem::is_directory(options.data + part), Io, "resnet", options.data + part,
        ": no such folder; looked for train and val with a folder of pictures for each "
        "class. Name the folder they are in (--data DIR), or train on made-up images (--data "
        "fake)");
  }
  const Compose augment({RandomResizedCrop(size), RandomHorizontalFlip()});
  const Compose middle({Resize(size * 256 / 224), CenterCrop(size)});
  ImageFolder train(options.data + "/train", {.format = {augment, normalize, options.dtype}});
  ImageFolder test(options.data + "/val", {.format = {middle, normalize, options.dtype}});
  WEFT_CHECK(train.classes() == test.classes(), InvalidArgument, "resnet", options.data,
             ": train has ", train.classes().size(), " classes, val has ", test.classes().size(),
             " or others");
  const auto classes = static_cast<std::int64_t>(train.classes().size());
  return {ImageSet(std::move(train)), ImageSet(std::move(test)), classes};
}

/// The parameters that --freeze leaves trainable.
inline std::vector<Tensor> trainable(const ResNet& model) {
  std::vector<Tensor> parameters = model.parameters();
  std::erase_if(parameters, [](const Tensor& p) { return !p.requires_grad(); });
  return parameters;
}

/// The scheduler that --schedule names.
inline std::unique_ptr<optim::LRScheduler> make_schedule(const std::string& name,
                                                         optim::Optimizer& sgd,
                                                         std::int64_t epochs) {
  using namespace optim;
  if (name == "cosine")
    return std::make_unique<CosineAnnealingLR>(sgd, CosineAnnealingLROptions{.T_max = epochs});
  return std::make_unique<StepLR>(
      sgd, StepLROptions{.step_size = 30, .gamma = name == "step" ? 0.1 : 1});
}

}  // namespace weft::examples
