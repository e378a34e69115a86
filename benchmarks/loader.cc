#include "weft/benchmarks/loader.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "weft/benchmarks/timing.h"
#include "weft/core/base/error.h"
#include "weft/data/cifar.h"
#include "weft/data/dataloader.h"
#include "weft/data/image_folder.h"
#include "weft/data/mnist.h"

namespace weft::bench {
namespace {

using nlohmann::json;

json to_json(const std::vector<double>& values) {
  const Quartiles q = quartiles(values);
  return {{"low", q.low}, {"median", q.median}, {"high", q.high}};
}

template <class Set>
std::function<std::int64_t()> epoch_of(Set set, std::int64_t batch_size, int workers) {
  using Loader = data::DataLoader<Set>;
  const auto loader = std::make_shared<Loader>(
      std::move(set),
      data::DataLoaderOptions{.batch_size = batch_size, .shuffle = true, .workers = workers});
  return [loader] {
    std::int64_t images = 0;
    for (auto& batch : *loader) images += batch.x.shape(0);
    return images;
  };
}

std::int64_t batch_size_of(const std::string& name) {
  return std::stoll(name.substr(name.find('-') + 1));
}

/// Images per second in one epoch.
double rate(const std::function<std::int64_t()>& epoch) {
  std::int64_t images = 0;
  const double ms = time_ms([&] { images = epoch(); });
  return static_cast<double>(images) / ms * 1e3;
}

/// Decodes all files; the threads share them.
std::int64_t decode_all(const LoaderSets& sets, int threads) {
  const auto decode = [&](int first) {
    std::vector<unsigned char> pixels;
    for (auto i = static_cast<std::size_t>(first); i < sets.jpegs().size();
         i += static_cast<std::size_t>(threads))
      decode_picture(sets.jpegs()[i], pixels);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(decode, i);
  decode(0);
  for (std::thread& other : others) other.join();
  return static_cast<std::int64_t>(sets.jpegs().size());
}

std::string folder_of(const std::string& name, const LoaderSets& sets) {
  if (name.starts_with("mnist")) return sets.mnist();
  return name.starts_with("cifar") ? sets.cifar() : sets.folder();
}

json bench_case(const std::string& name, const LoaderSets& sets, int workers, int windows,
                Peer* peer) {
  const auto epoch = loader_epoch(name, sets, workers);
  const std::int64_t images = epoch();  // starts the workers and reads the files into the cache
  json row = {{"case", name},
              {"batch_size", batch_size_of(name)},
              {"workers", workers},
              {"images", images}};
  if (peer) {
    const json answer = peer->ask({{"cmd", "loader"},
                                   {"case", name},
                                   {"folder", folder_of(name, sets)},
                                   {"batch_size", batch_size_of(name)},
                                   {"workers", workers}});
    if (answer.contains("error")) {
      row["peer_error"] = answer["error"];
      peer = nullptr;
    } else {
      row["peer_config"] = answer["config"];
      row["peer_tried"] = answer["tried"];
    }
  }
  std::vector<double> mine, theirs, ratios, decoding;
  for (int i = 0; i < windows; ++i) {
    // The side that goes first alternates, too.
    const auto run_theirs = [&] {
      if (peer) theirs.push_back(peer->ask({{"cmd", "epoch"}})["per_second"].get<double>());
    };
    if (i % 2) run_theirs();
    mine.push_back(rate(epoch));
    if (i % 2 == 0) run_theirs();
    if (peer) ratios.push_back(mine.back() / theirs.back());
    if (name.starts_with("folder"))
      decoding.push_back(rate([&] { return decode_all(sets, std::max(1, workers)); }));
  }
  row["weft_per_second"] = to_json(mine);
  std::printf("%-10s %7d %12.0f", name.c_str(), workers, quartiles(mine).median);
  if (decoding.empty()) {
    std::printf(" %12s", "");
  } else {
    row["decode_per_second"] = to_json(decoding);
    std::printf(" %12.0f", quartiles(decoding).median);
  }
  if (peer) {
    row["peer_per_second"] = to_json(theirs);
    row["ratio"] = to_json(ratios);
    const Quartiles q = quartiles(ratios);
    std::printf(" %12.0f   %6.2fx [%.2f, %.2f]  %s", quartiles(theirs).median, q.median, q.low,
                q.high, row["peer_config"].get<std::string>().c_str());
  } else if (row.contains("peer_error")) {
    std::printf("   not compared: %s", row["peer_error"].get<std::string>().c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
  return row;
}

}  // namespace

const std::vector<std::string> kLoaderCases = {"mnist-32", "mnist-64", "cifar-64", "folder-8"};

std::function<std::int64_t()> loader_epoch(const std::string& name, const LoaderSets& sets,
                                           int workers) {
  using namespace data;
  WEFT_CHECK(std::ranges::count(kLoaderCases, name), InvalidArgument, "bench", "no loader case ",
             name);
  const std::int64_t batch_size = batch_size_of(name);
  if (name.starts_with("mnist")) return epoch_of(Mnist(sets.mnist()), batch_size, workers);
  if (name.starts_with("cifar")) {
    const Normalize normalize{{0.4914F, 0.4822F, 0.4465F}, {0.247F, 0.2435F, 0.2616F}};
    const Compose augment({RandomCrop(32, 4), RandomHorizontalFlip()});
    return epoch_of(Cifar10(sets.cifar(), {.train = false, .format = {augment, normalize}}),
                    batch_size, workers);
  }
  const Normalize normalize{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
  const Compose augment({RandomResizedCrop(224), RandomHorizontalFlip()});
  return epoch_of(ImageFolder(sets.folder(), {.format = {augment, normalize}}), batch_size,
                  workers);
}

json run_loader(int windows, Peer* peer, const LoaderSets::Counts& counts) {
  const LoaderSets sets(counts);
  json result = {{"windows", windows}, {"jpeg_library", jpeg_library()}};
  std::size_t bytes = 0;
  for (const auto& jpeg : sets.jpegs()) bytes += jpeg.size();
  result["jpeg_bytes"] = bytes / sets.jpegs().size();
  std::printf("%s, %zu bytes a file\n", jpeg_library().c_str(), bytes / sets.jpegs().size());

  std::printf(
      "images a second; a worker is a thread of weft, a process of PyTorch\n%-10s %7s %12s %12s",
      "", "workers", "weft", "decoding");
  if (peer) std::printf(" %12s   %6s", "PyTorch", "ratio");
  std::printf("\n");
  for (const std::string& name : kLoaderCases) {
    for (const int workers : {0, 1, 2})
      result["rows"].push_back(bench_case(name, sets, workers, windows, peer));
  }
  return result;
}

}  // namespace weft::bench
