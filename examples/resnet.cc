// Trains a ResNet. `./weft run resnet --help` lists the options.
#include "weft/examples/resnet.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

struct ResNetFlags {
  std::int64_t depth = 18;
  std::int64_t image_size = 224;
  bool zero_init_residual = false;
  std::string weights = {};
  std::string freeze = "none";
  std::string schedule = "none";
};

struct Images {
  data::ImageSet train, test;
  std::int64_t classes;
};

Images images(const train::Options& options, int size) {
  using namespace data;
  const Normalize normalize{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
  if (options.data == "fake") {
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

/// Weights of a file; fc keeps its first values when the file's tells other classes apart.
void load_weights(examples::ResNet& model, const std::string& path) {
  io::NamedTensors weights = io::load_safetensors(path).tensors;
  for (auto& [name, value] : weights) {
    for (const auto& [own_name, own] : model.fc.named_parameters())
      if (name == "fc." + own_name && value.shape() != own.shape()) value = own;
  }
  model.load_state_dict(weights);
}

std::vector<Tensor> trainable(const examples::ResNet& model) {
  std::vector<Tensor> parameters = model.parameters();
  std::erase_if(parameters, [](const Tensor& p) { return !p.requires_grad(); });
  return parameters;
}

std::unique_ptr<optim::LRScheduler> make_schedule(const std::string& name, optim::Optimizer& sgd,
                                                  std::int64_t epochs) {
  using namespace optim;
  if (name == "cosine")
    return std::make_unique<CosineAnnealingLR>(sgd, CosineAnnealingLROptions{.T_max = epochs});
  return std::make_unique<StepLR>(
      sgd, StepLROptions{.step_size = 30, .gamma = name == "step" ? 0.1 : 1});
}

void resnet(const train::Options& options, const ResNetFlags& flags) {
  const Images sets = images(options, static_cast<int>(flags.image_size));
  examples::ResNet model = examples::resnet(
      flags.depth, {.num_classes = sets.classes, .zero_init_residual = flags.zero_init_residual});
  if (!flags.weights.empty()) load_weights(model, flags.weights);
  model.to(options.device, options.dtype);
  if (flags.freeze == "all-but-fc") {
    model.requires_grad(false);
    model.fc.requires_grad(true);
    model.eval();  // the running statistics stay as well
  }
  if (train::show_model(options, model, {1, 3, flags.image_size, flags.image_size})) return;
  optim::SGD sgd(trainable(model), {.lr = options.lr, .momentum = 0.9, .weight_decay = 1e-4});
  const auto schedule = make_schedule(flags.schedule, sgd, options.epochs);
  data::DataLoader loader(sets.train, options.loader());
  data::DataLoader test(
      sets.test,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label);
    loss.backward();
    sgd.step();
    return loss;
  });

  train::Recorder recorder(options);
  recorder.resume(model, loader, sgd, *schedule);
  const auto test_model = [&] {
    const std::vector<double> top = train::top_accuracy(model, test, {1, 5});
    recorder.test("top1", top[0]);
    recorder.test("top5", top[1]);
  };
  while (recorder.next_epoch()) {
    for (auto& [x, label] : recorder.batches(loader)) recorder.step(step(x, label));
    if (loader.position() == 0) {  // the epoch is complete
      schedule->step();
      test_model();
    }
    recorder.save(model, loader, sgd, *schedule);
  }
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_model();
  recorder.finish(model);
}

int main(int argc, char** argv) {
  ResNetFlags flags;
  return train::run(
      argc, argv,
      {.example = "resnet",
       .description = "Trains a ResNet on pictures in folders, or on made-up ones.",
       .lr = 0.0125,  // 0.1 for 256 images
       .data = "fake",
       .data_help = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or fake",
       .log_every = 10},
      [&](const train::Options& options) { resnet(options, flags); },
      {{"--depth", &flags.depth, "18, 34, 50 or 101", {"18", "34", "50", "101"}},
       {"--image-size", &flags.image_size, "height and width of what the net sees"},
       {"--zero-init-residual", &flags.zero_init_residual, "each block starts as the identity"},
       {"--weights", &flags.weights, "start from this model.safetensors"},
       {"--freeze", &flags.freeze, "what is not trained", {"none", "all-but-fc"}},
       {"--schedule",
        &flags.schedule,
        "learning rate per epoch: a tenth every 30, or down to 0 along a cosine",
        {"none", "step", "cosine"}}});
}
