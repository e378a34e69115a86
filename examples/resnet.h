// ResNet-18, -34, -50 and -101 as in torchvision: the names of the weights, their initial values,
// and the stride in the 3x3 convolution of a bottleneck ("v1.5").
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "weft/weft.h"

namespace weft::examples {

inline nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, int stride = 1) {
  return {in, out, 3, {.stride = stride, .padding = 1, .bias = false}};
}
inline nn::Conv2d conv1x1(std::int64_t in, std::int64_t out, int stride = 1) {
  return {in, out, 1, {.stride = stride, .bias = false}};
}

/// x [N,in,H,W] -> [N,planes,H/stride,W/stride]
struct BasicBlock : nn::Module<BasicBlock> {
  static constexpr int expansion = 1;
  static constexpr const char* last_norm = ".bn2.weight";

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential downsample;  // x itself if it is empty

  BasicBlock(std::int64_t in, std::int64_t planes, int stride)
      : conv1(child("conv1", conv3x3(in, planes, stride))),
        bn1(child("bn1", nn::BatchNorm2d(planes))),
        conv2(child("conv2", conv3x3(planes, planes))),
        bn2(child("bn2", nn::BatchNorm2d(planes))) {
    if (stride != 1 || in != planes)
      downsample =
          child("downsample", nn::Sequential{conv1x1(in, planes, stride), nn::BatchNorm2d(planes)});
  }

  Tensor forward(const Tensor& x) {
    const Tensor y = conv2(bn1(conv1(x), nn::then_relu()));
    return bn2(y, nn::then_add_relu(downsample(x)));
  }
};

/// x [N,in,H,W] -> [N,4*planes,H/stride,W/stride]
struct Bottleneck : nn::Module<Bottleneck> {
  static constexpr int expansion = 4;
  static constexpr const char* last_norm = ".bn3.weight";

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Sequential downsample;  // x itself if it is empty

  Bottleneck(std::int64_t in, std::int64_t planes, int stride)
      : conv1(child("conv1", conv1x1(in, planes))),
        bn1(child("bn1", nn::BatchNorm2d(planes))),
        conv2(child("conv2", conv3x3(planes, planes, stride))),
        bn2(child("bn2", nn::BatchNorm2d(planes))),
        conv3(child("conv3", conv1x1(planes, 4 * planes))),
        bn3(child("bn3", nn::BatchNorm2d(4 * planes))) {
    if (stride != 1 || in != 4 * planes)
      downsample = child("downsample", nn::Sequential{conv1x1(in, 4 * planes, stride),
                                                      nn::BatchNorm2d(4 * planes)});
  }

  Tensor forward(const Tensor& x) {
    Tensor y = bn1(conv1(x), nn::then_relu());
    y = conv3(bn2(conv2(y), nn::then_relu()));
    return bn3(y, nn::then_add_relu(downsample(x)));
  }
};

/// `count` blocks, the first of which changes channels and size.
template <class Block>
nn::Sequential make_layer(std::int64_t in, std::int64_t planes, int count, int stride) {
  nn::Sequential layer{Block(in, planes, stride)};
  for (int i = 1; i < count; ++i) layer.append(Block(planes * Block::expansion, planes, 1));
  return layer;
}

struct ResNetOptions {
  std::int64_t num_classes = 1000;
  bool zero_init_residual = false;  ///< every block starts as the identity
};

/// x [N,3,H,W] -> logits [N,num_classes]
struct ResNet : nn::Module<ResNet> {
  nn::Conv2d conv1 =
      child("conv1", nn::Conv2d(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}));
  nn::BatchNorm2d bn1 = child("bn1", nn::BatchNorm2d(64));
  nn::MaxPool2d maxpool = child("maxpool", nn::MaxPool2d(3, {.stride = 2, .padding = 1}));
  nn::Sequential layer1, layer2, layer3, layer4;
  nn::AdaptiveAvgPool2d avgpool = child("avgpool", nn::AdaptiveAvgPool2d(1));
  nn::Linear fc;

  template <class Block>
  ResNet(std::type_identity<Block>, const std::array<int, 4>& blocks, const ResNetOptions& options)
      : layer1(child("layer1", make_layer<Block>(64, 64, blocks[0], 1))),
        layer2(child("layer2", make_layer<Block>(64 * Block::expansion, 128, blocks[1], 2))),
        layer3(child("layer3", make_layer<Block>(128 * Block::expansion, 256, blocks[2], 2))),
        layer4(child("layer4", make_layer<Block>(256 * Block::expansion, 512, blocks[3], 2))),
        fc(child("fc", nn::Linear(512 * Block::expansion, options.num_classes))) {
    using namespace nn::init;
    for (const auto& [name, p] : named_parameters()) {
      if (p.dim() == 4) kaiming_normal_(p, 0, FanMode::fan_out, Nonlinearity::relu);
      if (options.zero_init_residual && name.ends_with(Block::last_norm)) zeros_(p);
    }
  }

  Tensor forward(const Tensor& images) { return tail(head(images)); }

  /// The two halves of forward: conv1 to layer2, and layer3 to fc.
  Tensor head(const Tensor& images) {
    return layer2(layer1(maxpool(bn1(conv1(images), nn::then_relu()))));
  }
  Tensor tail(const Tensor& x) { return fc(avgpool(layer4(layer3(x))).flatten(1)); }
};

/// The layers and blocks of `model` as a chain that shares them, in the model's mode.
inline nn::Sequential layers(const ResNet& model) {
  nn::Sequential row{model.conv1, model.bn1, nn::ReLU(), model.maxpool};
  for (const nn::Sequential* layer : {&model.layer1, &model.layer2, &model.layer3, &model.layer4}) {
    for (const nn::AnyModule& block : *layer) row.append(block);
  }
  row.append(model.avgpool);
  row.append(nn::Flatten());
  row.append(model.fc);
  if (!model.is_training()) row.eval();
  return row;
}

inline ResNet resnet18(const ResNetOptions& options = {}) {
  return {std::type_identity<BasicBlock>(), {2, 2, 2, 2}, options};
}
inline ResNet resnet34(const ResNetOptions& options = {}) {
  return {std::type_identity<BasicBlock>(), {3, 4, 6, 3}, options};
}
inline ResNet resnet50(const ResNetOptions& options = {}) {
  return {std::type_identity<Bottleneck>(), {3, 4, 6, 3}, options};
}
inline ResNet resnet101(const ResNetOptions& options = {}) {
  return {std::type_identity<Bottleneck>(), {3, 4, 23, 3}, options};
}

/// depth: 18, 34, 50 or 101, else InvalidArgument.
inline ResNet resnet(std::int64_t depth, const ResNetOptions& options = {}) {
  switch (depth) {
    case 18: return resnet18(options);
    case 34: return resnet34(options);
    case 50: return resnet50(options);
    case 101: return resnet101(options);
    default:
      WEFT_THROW(InvalidArgument, "resnet", "depth: got ", depth, ", there are 18, 34, 50, 101");
  }
}

}  // namespace weft::examples
