#include "weft/benchmarks/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/runtime.h"
#include "weft/examples/autoencoder.h"
#include "weft/examples/resnet.h"
#include "weft/train/charts.h"

namespace weft::bench {
namespace {

using nlohmann::json;

constexpr std::int64_t kImages = 8, kImageSize = 64, kClasses = 10;  // of the ResNets

// make() builds a model with its optimiser and returns its step.
template <class Make>
StepCost cost_of(const Make& make, double seconds) {
  const Device device = thread_state().device;
  const std::int64_t others = memory_stats(device).in_use_bytes;
  manual_seed(0);
  auto step = make();
  const auto timed = [&] {
    return time_ms([&] {
      step();
      runtime(device).synchronize_device(device.index);
    });
  };
  timed();  // makes gradients and moments, and times the candidates of every kernel
  reset_peak_memory(device);
  const double first = timed();
  StepCost cost{.peak_bytes = memory_stats(device).peak_in_use_bytes - others};
  std::vector<double> times;
  const auto count = static_cast<int>(std::clamp(seconds * 1e3 / first, 1.0, 1000.0));
  for (int i = 0; i < count; ++i) times.push_back(timed());
  cost.ms = quartiles(times).median;
  return cost;
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

StepCost autoencoder_cost(std::int64_t batch, double seconds) {
  WEFT_CHECK(batch >= 1, InvalidArgument, "bench", "batch: got ", batch, ", expected 1 or more");
  return cost_of(
      [&] {
        examples::Autoencoder model;
        return [model, adam = optim::Adam(model.parameters()),
                x = rand({batch, 1, 28, 28})]() mutable {
          adam.zero_grad();
          nn::mse_loss(model(x).first, x).backward();
          adam.step();
        };
      },
      seconds);
}

StepCost resnet_cost(std::int64_t depth, double seconds) {
  return cost_of(
      [&] {
        examples::ResNet model = examples::resnet(depth, {.num_classes = kClasses});
        return [model, sgd = optim::SGD(model.parameters(), {.lr = 1e-3, .momentum = 0.9}),
                x = rand({kImages, 3, kImageSize, kImageSize}),
                label = zeros({kImages}, DType::i64)]() mutable {
          sgd.zero_grad();
          nn::cross_entropy(model(x), label).backward();
          sgd.step();
        };
      },
      seconds);
}

MemorySum autoencoder_memory(std::int64_t batch) {
  constexpr std::int64_t kFloat = 4;
  // Parameters of each layer, weight and bias.
  constexpr std::int64_t kConv1 = 8 * 1 * 9 + 8, kConv2 = 64 * 8 * 9 + 64;
  constexpr std::int64_t kFc = 32 * 36864 + 32, kDecoderFc = 36864 * 32 + 36864;
  constexpr std::int64_t kDecoderConv2 = 64 * 8 * 9 + 8, kDecoderConv1 = 8 * 1 * 9 + 1;
  constexpr std::int64_t kParameters =
      kConv1 + kConv2 + kFc + kDecoderFc + kDecoderConv2 + kDecoderConv1;
  // The sizes of the layers' outputs for one image; relu works in the memory of its convolution.
  constexpr std::int64_t kImage = 28 * 28, kSmall = 8 * 26 * 26, kLarge = 64 * 24 * 24;
  constexpr std::int64_t kCode = 32;
  // The caller holds output and code until backward returns. At both peaks below, backward has not
  // reached the encoder's convolutions yet, which hold conv1's and conv2's outputs.
  constexpr std::int64_t kHeld = kImage + kCode + kSmall + kLarge;

  MemorySum sum{.parameters = kFloat * kParameters,
                .moments = 2 * kFloat * kParameters,
                .batch = kFloat * batch * kImage};
  // The peak is in a relu's backward on 64 channels. In the encoder all later layers have their
  // gradients. Besides the relu's output there are two gradients: the one that arrived, flattened,
  // and the one that is passed on, channels last...
  MemorySum encoder = sum;
  encoder.gradients = kFloat * (kFc + kDecoderFc + kDecoderConv2 + kDecoderConv1);
  encoder.activations = kFloat * batch * kHeld;
  encoder.passing = 2 * kFloat * batch * kLarge;
  // ... in the decoder only its convolutions have theirs, and the second gradient overwrites the
  // first. But the relu's output adds to the encoder's, and so does the input of fc: conv2's
  // output, flattened into a copy.
  MemorySum decoder = sum;
  decoder.gradients = kFloat * (kDecoderConv2 + kDecoderConv1);
  decoder.activations = kFloat * batch * (kHeld + 2 * kLarge);
  decoder.passing = kFloat * batch * kLarge;
  return encoder.total() > decoder.total() ? encoder : decoder;
}

namespace {

/// Draws times above and memory below, each with its own axis.
void draw(const std::string& file, const std::vector<train::PointCurve>& times,
          const std::vector<train::PointCurve>& memory, const std::string& title,
          const std::string& x_name) {
  const std::vector<train::LogLogChart> charts = {{title + ": time", x_name, "ms", times},
                                                  {title + ": memory", x_name, "MiB", memory}};
  write_file_atomically(file, train::log_log_picture(charts));
}

}  // namespace

json run_scaling(const std::string& stem) {
  constexpr double kSeconds = 1;
  json result;
  const auto curve = [](const char* name) { return train::PointCurve{name, {}}; };

  train::PointCurve step = curve("ms per step"), image = curve("ms per image"),
                    peak = curve("peak, MiB"), by_hand = curve("by hand, MiB");
  std::printf("autoencoder, Adam\n%8s %12s %12s %12s %12s %8s\n", "batch", "ms/step", "ms/image",
              "peak MiB", "by hand", "of it");
  for (std::int64_t batch = 1; batch <= 512; batch *= 2) {
    const StepCost cost = autoencoder_cost(batch, kSeconds);
    const MemorySum sum = autoencoder_memory(batch);
    const auto n = static_cast<double>(batch);
    std::printf("%8lld %12.3f %12.3f %12.2f %12.2f %8.3f\n", static_cast<long long>(batch), cost.ms,
                cost.ms / n, mebibytes(cost.peak_bytes), mebibytes(sum.total()),
                static_cast<double>(cost.peak_bytes) / static_cast<double>(sum.total()));
    std::fflush(stdout);
    result["autoencoder"].push_back({{"batch_size", batch},
                                     {"step_ms", cost.ms},
                                     {"ms_per_image", cost.ms / n},
                                     {"peak_bytes", cost.peak_bytes},
                                     {"bytes_by_hand",
                                      {{"parameters", sum.parameters},
                                       {"moments", sum.moments},
                                       {"gradients", sum.gradients},
                                       {"batch", sum.batch},
                                       {"activations", sum.activations},
                                       {"passing", sum.passing},
                                       {"total", sum.total()}}}});
    step.points.emplace_back(n, cost.ms);
    image.points.emplace_back(n, cost.ms / n);
    peak.points.emplace_back(n, mebibytes(cost.peak_bytes));
    by_hand.points.emplace_back(n, mebibytes(sum.total()));
  }
  draw(stem + "-batch.svg", {step, image}, {peak, by_hand}, "autoencoder", "batch size");

  step = curve("ms per step"), peak = curve("peak, MiB");
  std::printf("ResNet, SGD with momentum, %lld images of %lld x %lld\n%8s %12s %12s %12s\n",
              static_cast<long long>(kImages), static_cast<long long>(kImageSize),
              static_cast<long long>(kImageSize), "depth", "ms/step", "ms/image", "peak MiB");
  for (const std::int64_t depth : {18, 34, 50, 101}) {
    const StepCost cost = resnet_cost(depth, kSeconds);
    std::printf("%8lld %12.1f %12.2f %12.2f\n", static_cast<long long>(depth), cost.ms,
                cost.ms / kImages, mebibytes(cost.peak_bytes));
    std::fflush(stdout);
    result["resnet"].push_back({{"depth", depth},
                                {"batch_size", kImages},
                                {"image_size", kImageSize},
                                {"step_ms", cost.ms},
                                {"ms_per_image", cost.ms / kImages},
                                {"peak_bytes", cost.peak_bytes}});
    step.points.emplace_back(static_cast<double>(depth), cost.ms);
    peak.points.emplace_back(static_cast<double>(depth), mebibytes(cost.peak_bytes));
  }
  draw(stem + "-depth.svg", {step}, {peak}, "ResNet, 8 images of 64 x 64", "depth");
  return result;
}

}  // namespace weft::bench
