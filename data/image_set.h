// ImageSet: any of the image sets, chosen while the program runs.
#pragma once

#include "weft/data/any_dataset.h"
#include "weft/data/image_batch.h"

namespace weft::data {

/// Holds any data set with ImageBatch as its batch: Cifar10, FakeData, ImageFolder, or your own.
///   data::ImageSet set = fake ? data::ImageSet(data::FakeData(...))
///                             : data::ImageSet(data::Cifar10(dir));
using ImageSet = AnyDataset<ImageBatch>;

}  // namespace weft::data
