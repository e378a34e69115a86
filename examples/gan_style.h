// Super-resolution: a generator restores pictures that were made four times smaller. A frozen VGG
// judges them by what it sees in them, a discriminator by whether they look real. The losses:
//  - J. Johnson, A. Alahi, L. Fei-Fei, "Perceptual Losses for Real-Time Style Transfer and
//    Super-Resolution", 2016: the VGG's features must be those of the original;
//  - L. Gatys, A. Ecker, M. Bethge, "Image Style Transfer Using Convolutional Neural Networks",
//    2016: so must the Gram matrices of its features;
//  - C. Ledig et al., "Photo-Realistic Single Image Super-Resolution Using a Generative Adversarial
//    Network", 2017: the discriminator beside such a loss.
// No net has a batch norm, so that ranks with half of a batch make the steps of one process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "weft/examples/wgan_gp.h"
#include "weft/train/options.h"
#include "weft/train/pictures.h"
#include "weft/weft.h"

namespace weft::examples {

constexpr int kSize = 32, kScale = 4;

/// MNIST's pictures with a black margin: [1,32,32], from 0 to 1.
inline data::Mnist pictures(const train::Options& options, bool train) {
  return data::Mnist(options.data,
                     {.train = train, .dtype = options.dtype, .transform = data::Pad(2)});
}

/// What the generator gets: x [N,C,H,W] -> [N,C,H/4,W/4], means of squares of 4x4 pixels.
inline Tensor shrink(const Tensor& x) { return nn::AvgPool2d(kScale)(x); }

/// x [N,1,H,W] -> [N,1,4H,4W] in (0,1)
struct Upscaler : nn::Module<Upscaler> {
  nn::Sequential main;

  explicit Upscaler(std::int64_t width) {
    const nn::ConvOptions same = {.padding = 1};
    main.append(nn::Conv2d(1, width, 3, same));
    main.append(nn::ReLU());
    for (int scale = 1; scale < kScale; scale *= 2) {
      main.append(nn::Upsample({.scale_factor = {2}}));
      main.append(nn::Conv2d(width, width, 3, same));
      main.append(nn::ReLU());
    }
    main.append(nn::Conv2d(width, 1, 3, same));
    main.append(nn::Sigmoid());
    add_child("main", main);
  }

  Tensor forward(const Tensor& x) { return main(x); }
};

/// The first three blocks of torchvision's vgg16, with its names, frozen. `width`: channels of the
/// first block, 64 there; the second has twice as many, the third four times.
struct Vgg : nn::Module<Vgg> {
  nn::Sequential features;

  explicit Vgg(std::int64_t width) {
    std::int64_t in = 3;
    for (const int convolutions : {2, 2, 3}) {
      if (features.size() > 0) features.append(nn::MaxPool2d(2));
      for (int i = 0; i < convolutions; ++i) {
        features.append(nn::Conv2d(in, width, 3, {.padding = 1}));
        features.append(nn::ReLU());
        in = width;
      }
      width *= 2;
    }
    add_child("features", features);
    for (const Tensor& p : parameters()) {
      p.dim() == 4 ? nn::init::kaiming_uniform_(p) : nn::init::zeros_(p);
    }
    requires_grad(false);
  }

  /// Grey pictures x [N,1,H,W] from 0 to 1 -> the features relu1_2, relu2_2 and relu3_3 of the same
  /// pictures in red, green and blue, normalised as for torchvision: [N,width,H,W],
  /// [N,2*width,H/2,W/2], [N,4*width,H/4,W/4].
  std::vector<Tensor> forward(const Tensor& x) {
    Tensor y = cat({(x - 0.485) / 0.229, (x - 0.456) / 0.224, (x - 0.406) / 0.225}, 1);
    std::vector<Tensor> seen;
    for (std::size_t i = 0; i < features.size(); ++i) {
      y = features[i](y);
      if (i == 3 || i == 8 || i == 15) seen.push_back(y);  // each block's last
    }
    return seen;
  }
};

/// The Vgg with the weights in `file`, a state dict of torchvision's vgg16 (io::load_state_dict);
/// if it is empty, one of this width with random weights. Throws InvalidArgument for another net's.
inline Vgg make_vgg(const std::string& file, std::int64_t width) {
  if (file.empty()) return Vgg(width);
  nn::NamedTensors values = nn::strip_wrappers(io::load_state_dict(file));
  const auto find = [](const nn::NamedTensors& in, const std::string& name) {
    return std::ranges::find(in, name, &nn::NamedTensors::value_type::first);
  };
  const auto first = find(values, "features.0.bias");
  WEFT_CHECK(first != values.end() && first->second.dim() == 1, InvalidArgument, "vgg", file,
             ": has no features.0.bias of one dimension; expected a state dict of torchvision's "
             "vgg16, which begins with it, or no file, for random weights");
  Vgg net(first->second.numel());
  const nn::NamedTensors own = net.state_dict();
  std::erase_if(values, [&](const auto& value) { return find(own, value.first) == own.end(); });
  net.load_state_dict(values);  // without the layers behind the third block
  return net;
}

/// features [N,C,H,W] -> Gram matrices [N,C,C]: the products of any two channels, summed over all
/// places and divided by C*H*W (Johnson et al., equation 3).
inline Tensor gram(const Tensor& features) {
  const Tensor rows = features.flatten(2);
  return matmul(rows, rows.transpose(1, 2)) / static_cast<double>(rows.shape(1) * rows.shape(2));
}

struct GanStyleFlags {
  std::int64_t width = 16;
  std::string vgg;
  std::int64_t vgg_width = 8;
  double style_weight = 10, adversarial_weight = 0.05;
};

inline std::vector<train::Flag> flags(GanStyleFlags& values) {
  return {{"--width", &values.width, "channels of the generator, and of the discriminator's first"},
          {"--vgg", &values.vgg,
           "weights of the VGG: a state dict of torchvision's vgg16, FILE or FILE:KEY; without: "
           "random ones"},
          {.name = "--vgg-width",
           .value = &values.vgg_width,
           .help = "channels of the first block of a VGG with random weights; vgg16 has 64",
           .excludes = {"--vgg"}},
          {"--style-weight", &values.style_weight, "of the loss of style, beside that of content"},
          {"--adversarial-weight", &values.adversarial_weight,
           "of the loss of being told from a real picture, beside that of content"}};
}

/// All three nets, for one checkpoint and one state dict: so a resumed run has the same VGG.
struct GanStyle : nn::Module<GanStyle> {
  Upscaler generator;
  Critic discriminator;
  Vgg vgg;

  explicit GanStyle(const GanStyleFlags& flags)
      : generator(child("generator", Upscaler(flags.width))),
        discriminator(child("discriminator", Critic(kSize, flags.width))),
        vgg(child("vgg", make_vgg(flags.vgg, flags.vgg_width))) {}
};

struct GeneratorLosses {
  Tensor loss;     ///< content + style_weight * style + adversarial_weight * the GAN's loss
  Tensor content;  ///< the mean squared difference of relu2_2 (Johnson et al., equation 2)
  Tensor style;    ///< those of the Gram matrices of all three features, added up
  auto tensors() { return std::tie(loss, content, style); }
};

/// Of pictures that the generator made to be `real`.
inline GeneratorLosses generator_losses(GanStyle& gan, const Tensor& real, const Tensor& fake,
                                        const GanStyleFlags& flags) {
  const std::vector<Tensor> seen = gan.vgg(fake), expected = gan.vgg(real);
  const Tensor content = nn::mse_loss(seen[1], expected[1]);
  Tensor style = nn::mse_loss(gram(seen[0]), gram(expected[0]));
  for (const std::size_t i : {1, 2}) style = style + nn::mse_loss(gram(seen[i]), gram(expected[i]));
  const Tensor of_fake = gan.discriminator(fake);
  const Tensor adversarial = nn::bce_with_logits(of_fake, ones_like(of_fake));
  return {content + style * flags.style_weight + adversarial * flags.adversarial_weight, content,
          style};
}

/// Trains the generator; returns its losses. The gradient passes through the VGG and the
/// discriminator, whose weights require none and do not change.
inline GeneratorLosses train_generator(GanStyle& gan, optim::Adam& adam, const Tensor& real,
                                       const Tensor& fake, const GanStyleFlags& flags) {
  gan.discriminator.requires_grad(false);
  adam.zero_grad();
  const GeneratorLosses losses = generator_losses(gan, real, fake, flags);
  losses.loss.backward();
  adam.step();
  gan.discriminator.requires_grad(true);
  return losses;
}

/// The first pictures of the test set, 8 at most. Draws no random number, unlike its batches.
inline Tensor first_tests(const train::Options& options) {
  const Tensor all = data::Mnist(options.data, {.train = false}).images();
  const Tensor first = all.narrow(0, 0, std::min<std::int64_t>(8, all.shape(0))).unsqueeze(1);
  return (nn::ZeroPad2d(2)(first.to(options.dtype)) / 255).to(options.device);
}

/// Three rows: what the generator gets of these pictures, what it makes of it, and the pictures.
inline io::Image restored(GanStyle& gan, const Tensor& real) {
  const NoGrad no_grad;
  const Tensor small = shrink(real);
  const Tensor large = interpolate(small, {.scale_factor = {kScale}});
  return train::image_grid(cat({large, gan.generator(small), real}, 0),
                           static_cast<int>(real.shape(0)));
}

}  // namespace weft::examples
