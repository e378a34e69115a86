#include "weft/train/checkpoint.h"

#include <string_view>
#include <utility>

#include "weft/tensor/creation.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "checkpoint";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kNote = "note.";
constexpr const char* kLosses = "losses";
constexpr const char* kFormat = "weft.checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kGenerator = "generator";
constexpr const char* kLoader = "loader";

std::string with(std::string_view prefix, const std::string& name) {
  return std::string(prefix) + name;
}

/// Whether `name` has the prefix, which is then removed.
bool strip(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.erase(0, prefix.size());
  return true;
}

}  // namespace

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  io::NamedTensors tensors;
  for (const auto& [name, x] : checkpoint.model) tensors.emplace_back(with(kModel, name), x);
  for (const auto& [name, x] : checkpoint.optimizer)
    tensors.emplace_back(with(kOptimizer, name), x);
  tensors.emplace_back(
      kLosses, from_vector(checkpoint.losses, {static_cast<std::int64_t>(checkpoint.losses.size())},
                           Device()));
  io::Metadata metadata = {
      {kFormat, kVersion}, {kGenerator, checkpoint.generator}, {kLoader, checkpoint.loader}};
  for (const auto& [key, value] : checkpoint.notes) metadata.emplace(with(kNote, key), value);
  io::save_safetensors(path, tensors, metadata);
}

Checkpoint load_checkpoint(const std::string& path, Device device) {
  io::SafetensorsFile file = io::load_safetensors(path, {.device = device});
  const auto version = file.metadata.find(kFormat);
  WEFT_CHECK(version != file.metadata.end(), InvalidArgument, kOp, path,
             ": not a checkpoint (its metadata has no ", kFormat,
             "); a model alone can be loaded, but not resumed from");
  WEFT_CHECK(version->second == kVersion, InvalidArgument, kOp, path, ": checkpoint of version ",
             version->second, ", this program knows version ", kVersion);
  Checkpoint checkpoint;
  checkpoint.generator = file.metadata[kGenerator];
  checkpoint.loader = file.metadata[kLoader];
  for (auto& [key, value] : file.metadata) {
    std::string name = key;
    if (strip(name, kNote)) checkpoint.notes.emplace(std::move(name), std::move(value));
  }
  for (auto& [key, x] : file.tensors) {
    if (key == kLosses) {
      checkpoint.losses = x.to_vector<double>();
    } else if (strip(key, kModel)) {
      checkpoint.model.emplace_back(std::move(key), std::move(x));
    } else if (strip(key, kOptimizer)) {
      checkpoint.optimizer.emplace_back(std::move(key), std::move(x));
    } else {
      WEFT_THROW(InvalidArgument, kOp, path, ": tensor \"", key, "\" is no part of a checkpoint");
    }
  }
  return checkpoint;
}

}  // namespace weft::train
