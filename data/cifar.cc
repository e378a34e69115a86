#include "weft/data/cifar.h"

#include <filesystem>
#include <system_error>
#include <vector>

namespace weft::data {
namespace {

struct Source {
  const char* op;
  const char* subfolder;
  const char* archive;
  std::vector<std::string> files;
};

Source source_of(io::CifarKind kind, bool train) {
  if (kind == io::CifarKind::Cifar100) {
    return {"cifar100",
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            {train ? "train.bin" : "test.bin"}};
  }
  Source source{"cifar10", "cifar-10-batches-bin", "cifar-10-binary.tar.gz", {}};
  if (!train) {
    source.files = {"test_batch.bin"};
  } else {
    for (int i = 1; i <= 5; ++i) {
      source.files.push_back("data_batch_" + std::to_string(i) + ".bin");
    }
  }
  return source;
}

/// The files in `folder` or its sub-folder. Throws Io with the names that were looked for.
std::vector<std::string> find_files(const std::string& folder, const Source& source) {
  std::error_code error;
  const std::filesystem::path outer(folder), inner = outer / source.subfolder;
  std::vector<std::string> paths;
  const std::string* missing = nullptr;
  for (const auto& place : {outer, inner}) {
    paths.clear();
    missing = nullptr;
    for (const std::string& file : source.files) {
      const std::filesystem::path path = place / file;
      if (std::filesystem::exists(path, error)) {
        paths.push_back(path.string());
      } else if (missing == nullptr) {
        missing = &file;
      }
    }
    if (missing == nullptr) return paths;
    if (!paths.empty()) break;  // some are here, but not all of them
  }
  const bool has_folder = std::filesystem::is_directory(outer, error);
  std::string wanted = source.files.front();
  if (source.files.size() > 1) wanted += " to " + source.files.back();
  WEFT_THROW(Io, source.op, folder, has_folder ? ": no file " : ": no such folder; looked for ",
             has_folder ? *missing : wanted, has_folder ? " (wanted: " + wanted + ")" : "",
             " in it or in its ", source.subfolder, "; give the folder in which ", source.archive,
             " was unpacked");
}

}  // namespace

Cifar::Cifar(io::CifarKind kind, const std::string& folder, const CifarOptions& options)
    : batcher_(source_of(kind, options.train).op, options.format, 3) {
  set_ = io::read_cifar(find_files(folder, source_of(kind, options.train)), kind);
}

Cifar::Batch Cifar::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), default_generator().random64());
  return batch;
}

void Cifar::get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                      std::uint64_t epoch_seed) const {
  constexpr std::int64_t kPixels = 3 * 32 * 32;
  const auto load = [this](std::int64_t index, Picture& picture) -> std::int64_t {
    const std::uint8_t* image = set_.images.data<std::uint8_t>() + index * kPixels;
    picture.height = picture.width = 32;
    picture.planes = 3;
    picture.depth = 1;
    picture.pixels.assign(image, image + kPixels);
    return set_.labels.data<std::uint8_t>()[index];
  };
  batcher_.fill(indices, size(), load, batch, memory, epoch_seed);
}

}  // namespace weft::data
