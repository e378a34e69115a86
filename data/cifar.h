// CIFAR-10 and CIFAR-100.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "weft/data/image_batch.h"
#include "weft/io/cifar.h"

namespace weft::data {

struct CifarOptions {
  bool train = true;  ///< false: the test set
  ImageFormat format = {};
};

/// RGB images of 32 x 32 pixels in memory (as u8), read from the binary version of the data set.
/// Copies share the images. Safe to read from several threads.
class Cifar {
 public:
  /// x [B,3,32,32], or what the transform makes of it.
  using Batch = ImageBatch;

  std::int64_t size() const { return set_.images.shape(0); }
  /// Throws InvalidArgument for an empty list of indices and for an index outside [0, size()). The
  /// epoch's seed is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const;

  const Tensor& images() const { return set_.images; }  ///< u8 [N,3,32,32]
  const Tensor& labels() const { return set_.labels; }  ///< u8 [N]

 protected:
  Cifar(io::CifarKind kind, const std::string& folder, const CifarOptions& options);

  io::CifarImages set_;

 private:
  ImageBatcher batcher_;
};

/// 50,000 images (10,000 in the test set) with labels 0 to 9, from data_batch_1.bin to
/// data_batch_5.bin (test_batch.bin) in the folder or in its sub-folder cifar-10-batches-bin.
class Cifar10 : public Cifar {
 public:
  /// Throws Io for a missing folder or file, with the names it looked for, and for
  /// damaged files (io/cifar.h). Throws what ImageBatcher throws for the format.
  explicit Cifar10(const std::string& folder, const CifarOptions& options = {})
      : Cifar(io::CifarKind::Cifar10, folder, options) {}
};

/// The same with labels 0 to 99, from train.bin (test.bin) in the folder or in its sub-folder
/// cifar-100-binary.
class Cifar100 : public Cifar {
 public:
  /// Throws as Cifar10.
  explicit Cifar100(const std::string& folder, const CifarOptions& options = {})
      : Cifar(io::CifarKind::Cifar100, folder, options) {}

  const Tensor& coarse_labels() const { return set_.coarse_labels; }  ///< u8 [N], 0 to 19
};

}  // namespace weft::data
