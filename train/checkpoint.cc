#include "weft/train/checkpoint.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "weft/tensor/creation.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "checkpoint";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kPart = "part";
constexpr std::string_view kNote = "note.";
constexpr const char* kLosses = "losses";
constexpr std::string_view kMoreLosses = "losses.";
constexpr const char* kFormat = "weft.checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kGenerator = "generator";
constexpr const char* kLoader = "loader";
constexpr const char* kParts = "parts";
constexpr std::size_t kMostParts = 64;

std::string with(std::string_view prefix, const std::string& name) {
  return std::string(prefix) + name;
}

Tensor as_tensor(const std::vector<double>& losses) {
  return from_vector(losses, {static_cast<std::int64_t>(losses.size())}, Device());
}

/// Whether `name` has the prefix, which is then removed.
bool strip(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.erase(0, prefix.size());
  return true;
}

std::size_t parse_parts(const std::string& path, const std::string& text) {
  std::size_t parts = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, parts);
  WEFT_CHECK(error == std::errc() && stop == end && parts <= kMostParts, InvalidArgument, kOp, path,
             ": \"", text, "\" is no number of parts");
  return parts;
}

/// Which part "part3.NAME" belongs to, NAME being left; nothing for another name.
std::optional<std::size_t> strip_part(std::string& name, std::size_t parts) {
  for (std::size_t i = 0; i < parts; ++i) {
    if (strip(name, detail::concat(kPart, i, '.'))) return i;
  }
  return std::nullopt;
}

}  // namespace

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  io::NamedTensors tensors;
  for (const auto& [name, x] : checkpoint.model) tensors.emplace_back(with(kModel, name), x);
  for (std::size_t i = 0; i < checkpoint.parts.size(); ++i) {
    for (const auto& [name, x] : checkpoint.parts[i])
      tensors.emplace_back(detail::concat(kPart, i, '.', name), x);
  }
  tensors.emplace_back(kLosses, as_tensor(checkpoint.losses));
  for (const auto& [name, values] : checkpoint.more_losses)
    tensors.emplace_back(with(kMoreLosses, name), as_tensor(values));
  io::Metadata metadata = {{kFormat, kVersion},
                           {kGenerator, checkpoint.generator},
                           {kLoader, checkpoint.loader},
                           {kParts, std::to_string(checkpoint.parts.size())}};
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
  checkpoint.parts.resize(parse_parts(path, file.metadata[kParts]));
  for (auto& [key, value] : file.metadata) {
    std::string name = key;
    if (strip(name, kNote)) checkpoint.notes.emplace(std::move(name), std::move(value));
  }
  for (auto& [key, x] : file.tensors) {
    if (key == kLosses) {
      checkpoint.losses = x.to_vector<double>();
    } else if (strip(key, kMoreLosses)) {
      checkpoint.more_losses.push_back({std::move(key), x.to_vector<double>()});
    } else if (strip(key, kModel)) {
      checkpoint.model.emplace_back(std::move(key), std::move(x));
    } else if (const auto part = strip_part(key, checkpoint.parts.size())) {
      checkpoint.parts[*part].emplace_back(std::move(key), std::move(x));
    } else {
      WEFT_THROW(InvalidArgument, kOp, path, ": tensor \"", key, "\" is no part of a checkpoint");
    }
  }
  return checkpoint;
}

}  // namespace weft::train
