// DCGAN (Radford, Metz and Chintala, 2015): a generator of images and a discriminator that tells
// generated images from real ones, as in PyTorch's tutorial.
#pragma once

#include "weft/weft.h"

namespace weft::examples {

/// N(0, 0.02) for the weights of convolutions, N(1, 0.02) for those of BatchNorm2d, biases 0.
inline void dcgan_init(nn::ModuleBase& net) {
  net.apply([](nn::ModuleBase& module) {
    const bool norm = module.type_name() == "BatchNorm2d";
    for (auto& [name, tensor] : module.named_parameters(/*recurse=*/false)) {
      if (name == "bias") {
        nn::init::zeros_(tensor);
      } else {
        nn::init::normal_(tensor, norm ? 1.0 : 0.0, 0.02);
      }
    }
  });
}

/// z [N,latent,1,1] -> images [N,1,size,size] in (-1,1); size is a power of 2, at least 8. The
/// number of channels halves when the side doubles, down to `width` at size/2.
struct Generator : nn::Module<Generator> {
  nn::Sequential main;

  Generator(std::int64_t size, std::int64_t width, std::int64_t latent) {
    std::int64_t channels = width * size / 8;
    main.append(nn::ConvTranspose2d(latent, channels, 4, {.bias = false}));
    for (; channels >= width; channels /= 2) {
      main.append(nn::BatchNorm2d(channels));
      main.append(nn::ReLU());
      main.append(nn::ConvTranspose2d(channels, channels > width ? channels / 2 : 1, 4,
                                      {.stride = 2, .padding = 1, .bias = false}));
    }
    main.append(nn::Tanh());
    add_child("main", main);
  }

  Tensor forward(const Tensor& z) { return main(z); }
};

/// images [N,1,size,size] -> logits [N]: the layers of the generator in reverse.
struct Discriminator : nn::Module<Discriminator> {
  nn::Sequential main;

  Discriminator(std::int64_t size, std::int64_t width) {
    const nn::ConvOptions halve = {.stride = 2, .padding = 1, .bias = false};
    main.append(nn::Conv2d(1, width, 4, halve));
    main.append(nn::LeakyReLU(0.2));
    std::int64_t channels = width;
    for (; channels < width * size / 8; channels *= 2) {
      main.append(nn::Conv2d(channels, 2 * channels, 4, halve));
      main.append(nn::BatchNorm2d(2 * channels));
      main.append(nn::LeakyReLU(0.2));
    }
    main.append(nn::Conv2d(channels, 1, 4, {.bias = false}));
    add_child("main", main);
  }

  Tensor forward(const Tensor& x) { return main(x).flatten(); }
};

/// Both nets, for one checkpoint and one state dict.
struct Gan : nn::Module<Gan> {
  Generator generator;
  Discriminator discriminator;

  Gan(std::int64_t size, std::int64_t width, std::int64_t latent)
      : generator(child("generator", Generator(size, width, latent))),
        discriminator(child("discriminator", Discriminator(size, width))) {}
};

/// Trains the discriminator to tell `real` from `fake`; returns its loss. Here fakes are only data:
/// no gradient reaches the generator.
template <class Net>
Tensor train_discriminator(Net& discriminator, optim::Adam& adam, const Tensor& real,
                           const Tensor& fake) {
  adam.zero_grad();
  const Tensor of_real = discriminator(real), of_fake = discriminator(fake.detach());
  const Tensor loss = nn::bce_with_logits(of_real, ones_like(of_real)) +
                      nn::bce_with_logits(of_fake, zeros_like(of_fake));
  loss.backward();
  adam.step();
  return loss;
}

/// Trains the generator, which made `fake`, so that the discriminator takes it for real; returns
/// its loss. The gradient passes through the discriminator, whose weights require none and do not
/// change.
inline Tensor train_generator(Gan& gan, optim::Adam& adam, const Tensor& fake) {
  gan.discriminator.requires_grad(false);
  adam.zero_grad();
  const Tensor of_fake = gan.discriminator(fake);
  const Tensor loss = nn::bce_with_logits(of_fake, ones_like(of_fake));
  loss.backward();
  adam.step();
  gan.discriminator.requires_grad(true);
  return loss;
}

}  // namespace weft::examples
