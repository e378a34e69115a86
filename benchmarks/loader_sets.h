// Synthetic data sets in files, to measure how fast they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/benchmarks/temp_folder.h"

namespace weft::bench {

/// Seeded images in the formats of MNIST, CIFAR-10 and ImageFolder, in a temporary folder that is
/// removed with this. Throws Io if it cannot be made.
class LoaderSets {
 public:
  /// The number of images of each format.
  struct Counts {
    int mnist = 6400;
    int cifar = 2048;
    int pictures = 80;
  };

  explicit LoaderSets(const Counts& counts);

  std::string mnist() const { return root_.path() + "/mnist"; }    ///< only a training set, 28 x 28
  std::string cifar() const { return root_.path() + "/cifar"; }    ///< only a test set
  std::string folder() const { return root_.path() + "/folder"; }  ///< two classes

  /// The bytes of the folder's JPEG files.
  const std::vector<std::vector<unsigned char>>& jpegs() const { return jpegs_; }

 private:
  TempFolder root_;
  std::vector<std::vector<unsigned char>> jpegs_;
};

/// Picture `number` of an endless series, the same bytes on every machine: 224, 256 or 288 pixels
/// high and wide, with detail at every scale like a photograph, quality 90.
std::vector<unsigned char> encode_picture(std::uint64_t number);

/// Decodes a JPEG by libjpeg alone, RGB into `pixels`: no JPEG loader can be faster.
void decode_picture(const std::vector<unsigned char>& jpeg, std::vector<unsigned char>& pixels);

/// For example "libjpeg-turbo 2.1.5".
std::string jpeg_library();

}  // namespace weft::bench
