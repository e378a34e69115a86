// Images per second from the DataLoader, compared with PyTorch's and with decoding alone.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/benchmarks/loader_sets.h"
#include "weft/benchmarks/peer.h"

namespace weft::bench {

/// What is loaded: one of
///   mnist-32, mnist-64  images of an IDX file, divided by 255
///   cifar-64            CIFAR-10, RandomCrop(32, padding 4), flip, normalised
///   folder-8            JPEG files, RandomResizedCrop(224), flip, normalised
/// in shuffled batches of the size in the name.
extern const std::vector<std::string> kLoaderCases;

/// Makes a function that runs one epoch of a case, without a training step, and returns the number
/// of images. Throws InvalidArgument for another case.
std::function<std::int64_t()> loader_epoch(const std::string& name, const LoaderSets& sets,
                                           int workers);

/// Prints and returns the rates of every case with 0, 1 and 2 workers: the median and the quartiles
/// over `windows` epochs, which alternate with the peer's, if there is one. For JPEG files also the
/// rate of libjpeg alone in as many threads.
nlohmann::json run_loader(int windows, Peer* peer, const LoaderSets::Counts& counts = {});

}  // namespace weft::bench
