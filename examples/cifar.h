// The images for the programs of the convolutional net.
#pragma once

#include "weft/train/options.h"
#include "weft/weft.h"

namespace weft::examples {

/// CIFAR-10's images in the folder --data, or as many generated ones for "--data fake". Throws Io.
inline data::ImageSet cifar(const train::Options& options, bool train) {
  if (options.data != "fake")
    return data::ImageSet(
        data::Cifar10(options.data, {.train = train, .format = {.dtype = options.dtype}}));
  return data::ImageSet(
      data::FakeData(train ? 50'000 : 10'000, {3, 32, 32}, 10,
                     {.first = train ? 0 : 50'000, .format = {.dtype = options.dtype}}));
}

/// Throws Io if the images are missing, before the model takes gigabytes of memory.
inline void check_cifar(const train::Options& options) {
  if (!options.summary) cifar(options, false);
}

}  // namespace weft::examples
