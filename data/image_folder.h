// A folder of pictures, one sub-folder for each class.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/data/image_batch.h"
#include "weft/io/image.h"

namespace weft::data {

struct ImageFolderOptions {
  ImageFormat format = {};
  io::ImageOptions limits = {};  ///< for each file
};

/// root/CLASS/any/depth/picture.jpg, as torchvision's ImageFolder. The sub-folders of the root,
/// sorted by name, are the classes 0, 1, ... The samples of a class are its files ending in .jpg,
/// .jpeg or .png (upper or lower case), folder by folder, sorted by name. Names are compared byte
/// by byte. Links are followed, but within a class each folder is listed once, whatever links lead
/// to it: so links may lead round in circles. A link to another class gives its pictures this
/// label, too. Pictures are read and decoded when a batch is fetched, so in the loader's workers,
/// and always as RGB (io/read_image.h). Safe to read from several threads.
class ImageFolder {
 public:
  struct Sample {
    std::string path;
    std::int64_t label;
  };
  /// x [B,3,H,W]: the pictures after the transform. Without a transform they must all have the same
  /// size.
  using Batch = ImageBatch;

  /// Lists the folders but reads no picture. Throws Io for a missing root, for a root without
  /// sub-folders and for a class without pictures; and what ImageBatcher throws for the format.
  explicit ImageFolder(const std::string& root, const ImageFolderOptions& options = {});

  std::int64_t size() const { return static_cast<std::int64_t>(samples_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  const std::vector<Sample>& samples() const { return samples_; }

  /// Throws InvalidArgument for an empty list of indices and for an index outside [0, size()),
  /// Shape for pictures of unequal sizes, Io for a file that cannot be read or is damaged. The
  /// epoch's seed, for random transforms, is drawn from the thread's generator.
  Batch get_batch(std::span<const std::int64_t> indices) const;
  /// The same, but fills `batch`, in memory of the given kind.
  void get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                 std::uint64_t epoch_seed) const;

 private:
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
  io::ImageOptions limits_;
  ImageBatcher batcher_;
};

}  // namespace weft::data
