// Trains a ResNet, its first half on one device and its second on another: `./weft run resnet_mp
// --host-devices 2`.
#include "weft/examples/devices.h"
#include "weft/examples/resnet_program.h"
#include "weft/train/train.h"
#include "weft/weft.h"

using namespace weft;

// conv1 to layer2 on the first device, layer3 to fc on the second.
struct SplitResNet : examples::ResNet {
  Device second;

  SplitResNet(const examples::ResNet& net, const std::vector<Device>& devices, DType dtype)
      : examples::ResNet(net), second(devices[1]) {
    to(devices[0], dtype);
    layer3.to(second);
    layer4.to(second);
    fc.to(second);
  }

  Tensor operator()(const Tensor& images) { return tail(head(images).to(second)); }
};

void resnet(train::Options options, const examples::ResNetFlags& flags, const std::string& names) {
  const std::vector<Device> devices = examples::two_devices(options, names);
  const examples::Images sets = examples::images(options, static_cast<int>(flags.image_size));
  examples::ResNet net = examples::resnet(
      flags.depth, {.num_classes = sets.classes, .zero_init_residual = flags.zero_init_residual});
  SplitResNet model(net, devices, options.dtype);
  if (flags.freeze == "all-but-fc") {
    model.requires_grad(false);
    model.fc.requires_grad(true);
    model.eval();  // the running statistics do not change either
  }
  if (train::show_model(options, model, {1, 3, flags.image_size, flags.image_size})) return;
  optim::SGD sgd(examples::trainable(model),
                 {.lr = options.lr, .momentum = 0.9, .weight_decay = 1e-4});
  const auto schedule = examples::make_schedule(flags.schedule, sgd, options.epochs);
  data::DataLoader loader(sets.train, options.loader());
  auto test = train::test_loader(
      sets.test, options,
      {.batch_size = options.batch_size, .workers = options.workers, .device = options.device});
  train::Step step(options, [&](const Tensor& x, const Tensor& label) {
    sgd.zero_grad();
    const Tensor loss = nn::cross_entropy(model(x), label.to(devices[1]));
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
  std::fputs(train::memory_table(devices, true).c_str(), stdout);
  if (recorder.interrupted()) return;
  if (loader.position() > 0) test_model();
  recorder.note(examples::peaks(devices));
  recorder.finish(model);
}

int main(int argc, char** argv) {
  examples::ResNetFlags flags;
  std::string devices = "all";
  std::vector<train::Flag> all = examples::flags(flags);
  all.push_back(examples::devices_flag(devices));
  return train::run(
      argc, argv,
      {.example = "resnet_mp",
       .description =
           "Trains a ResNet in two parts on two devices, on pictures in folders or on made-up "
           "ones.",
       .lr = 0.0125,  // 0.1 for 256 images
       .data = "fake",
       .data_help = "folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or fake for made-up images",
       .head = "fc.",
       .log_every = 10},
      [&](const train::Options& options) { resnet(options, flags, devices); }, all);
}
