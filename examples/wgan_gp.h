// WGAN-GP (Gulrajani et al., "Improved Training of Wasserstein GANs", 2017): the discriminator of a
// GAN becomes a critic whose slope is held near 1, by a penalty on its gradient. So the loss has a
// gradient in it, and its backward computes a second derivative.
#pragma once

#include "weft/examples/dcgan.h"
#include "weft/weft.h"

namespace weft::examples {

/// images [N,1,size,size] -> scores [N]: DCGAN's discriminator without batch norm, since the
/// penalty is one of each image by itself.
struct Critic : nn::Module<Critic> {
  nn::Sequential main;

  Critic(std::int64_t size, std::int64_t width) {
    const nn::ConvOptions halve = {.stride = 2, .padding = 1};
    main.append(nn::Conv2d(1, width, 4, halve));
    main.append(nn::LeakyReLU(0.2));
    std::int64_t channels = width;
    for (; channels < width * size / 8; channels *= 2) {
      main.append(nn::Conv2d(channels, 2 * channels, 4, halve));
      main.append(nn::LeakyReLU(0.2));
    }
    main.append(nn::Conv2d(channels, 1, 4));
    add_child("main", main);
  }

  Tensor forward(const Tensor& x) { return main(x).flatten(); }
};

/// Both nets, for one checkpoint and one state dict.
struct WganGp : nn::Module<WganGp> {
  Generator generator;
  Critic critic;

  WganGp(std::int64_t size, std::int64_t width, std::int64_t latent)
      : generator(child("generator", Generator(size, width, latent))),
        critic(child("critic", Critic(size, width))) {}
};

/// The mean of (|d critic(x) / dx| - 1)^2 at points x between real and fake images; share [N,1,1,1]
/// says how near to the real ones.
template <class Net>
Tensor gradient_penalty(Net& critic, const Tensor& real, const Tensor& fake, const Tensor& share) {
  const Tensor x = (real * share + fake * (1 - share)).detach().set_requires_grad();
  const Tensor slope = autograd::grad(sum(critic(x)), x, {.create_graph = true});
  return mean(square(norm(slope.flatten(1), {1}) - 1));
}

struct CriticLosses {
  Tensor loss;      ///< -distance + weight * penalty
  Tensor distance;  ///< the estimate of Wasserstein's: mean score of real images less that of fakes
  Tensor penalty;
  auto tensors() { return std::tie(loss, distance, penalty); }
};

/// Trains the critic. Here fakes are only data: no gradient reaches the generator.
template <class Net>
CriticLosses train_critic(Net& critic, optim::Adam& adam, const Tensor& real, const Tensor& fake,
                          const Tensor& share, double weight) {
  adam.zero_grad();
  const Tensor distance = mean(critic(real)) - mean(critic(fake.detach()));
  const Tensor penalty = gradient_penalty(critic, real, fake.detach(), share);
  const Tensor loss = penalty * weight - distance;
  loss.backward();
  adam.step();
  return {loss.detach(), distance.detach(), penalty.detach()};
}

/// Trains the generator, which made `fake`, so that the critic scores it higher; returns its loss.
template <class Net>
Tensor train_generator(Net& critic, optim::Adam& adam, const Tensor& fake) {
  critic.requires_grad(false);
  adam.zero_grad();
  const Tensor loss = -mean(critic(fake));
  loss.backward();
  adam.step();
  critic.requires_grad(true);
  return loss;
}

}  // namespace weft::examples
