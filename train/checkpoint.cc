#include "weft/train/checkpoint.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "weft/io/state_dict.h"
#include "weft/tensor/creation.h"

namespace weft::train {
namespace {

constexpr const char* kOp = "checkpoint";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kPart = "part";
constexpr std::string_view kEngine = "engine";
constexpr std::string_view kNote = "note.";
constexpr const char* kLosses = "losses";
constexpr std::string_view kMoreLosses = "losses.";
constexpr const char* kFormat = "weft.checkpoint";
constexpr const char* kVersion = "1";
constexpr const char* kGenerator = "generator";
constexpr const char* kLoader = "loader";
constexpr const char* kParts = "parts";
constexpr const char* kEngines = "engines";
constexpr std::size_t kMostParts = 64;

std::string with(std::string_view prefix, const std::string& name) {
  return std::string(prefix) + name;
}

Tensor as_tensor(const std::vector<double>& losses) {
  return from_vector(losses, {static_cast<std::int64_t>(losses.size())}, Device());
}

/// Whether `name` has the prefix; if so, removes it.
bool strip(std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.erase(0, prefix.size());
  return true;
}

std::size_t parse_count(const std::string& path, const char* what, const std::string& text) {
  std::size_t count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  WEFT_CHECK(error == std::errc() && stop == end && count <= kMostParts, InvalidArgument, kOp, path,
             ": \"", text, "\" is no number of ", what);
  return count;
}

/// The list to which "part3.NAME" belongs; leaves NAME in `name`. Null for other names.
io::NamedTensors* strip_number(std::string& name, std::string_view prefix,
                               std::vector<io::NamedTensors>& lists) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (strip(name, detail::concat(prefix, i, '.'))) return &lists[i];
  }
  return nullptr;
}

void add_numbered(io::NamedTensors& tensors, std::string_view prefix,
                  const std::vector<io::NamedTensors>& lists) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (const auto& [name, x] : lists[i])
      tensors.emplace_back(detail::concat(prefix, i, '.', name), x);
  }
}

[[noreturn]] void throw_missing(const std::string& path, std::string_view entry) {
  WEFT_THROW(Io, kOp, path, ": the entry \"", entry,
             "\" is missing, so the run cannot be continued from this file: something else than "
             "weft has written it, or written it anew. Resume from another checkpoint, or begin "
             "without one");
}

}  // namespace

const std::string& checkpoint_entry(const std::string& path, const io::Metadata& entries,
                                    const std::string& key) {
  const auto found = entries.find(key);
  if (found == entries.end()) throw_missing(path, key);
  return found->second;
}

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  io::NamedTensors tensors;
  for (const auto& [name, x] : checkpoint.model) tensors.emplace_back(with(kModel, name), x);
  add_numbered(tensors, kPart, checkpoint.parts);
  add_numbered(tensors, kEngine, checkpoint.engines);
  tensors.emplace_back(kLosses, as_tensor(checkpoint.losses));
  for (const auto& [name, values] : checkpoint.more_losses)
    tensors.emplace_back(with(kMoreLosses, name), as_tensor(values));
  io::Metadata metadata = {{kFormat, kVersion},
                           {kGenerator, checkpoint.generator},
                           {kLoader, checkpoint.loader},
                           {kParts, std::to_string(checkpoint.parts.size())},
                           {kEngines, std::to_string(checkpoint.engines.size())}};
  for (const auto& [key, value] : checkpoint.notes) metadata.emplace(with(kNote, key), value);
  io::save_safetensors(path, tensors, metadata);
}

Checkpoint load_checkpoint(const std::string& path, Device device) {
  WEFT_CHECK(!io::is_pickle_file(path), InvalidArgument, kOp, path,
             ": a file of PyTorch's, not a checkpoint of weft's; --weights begins a run from its "
             "state dict");
  io::SafetensorsFile file = io::load_safetensors(path, {.device = device});
  const auto version = file.metadata.find(kFormat);
  WEFT_CHECK(version != file.metadata.end(), InvalidArgument, kOp, path,
             ": not a checkpoint (its metadata has no ", kFormat,
             "); a model alone can be loaded, but not resumed from: --weights begins a run from "
             "its state dict");
  WEFT_CHECK(version->second == kVersion, InvalidArgument, kOp, path, ": checkpoint of version ",
             version->second, ", this program knows version ", kVersion);
  Checkpoint checkpoint;
  checkpoint.generator = checkpoint_entry(path, file.metadata, kGenerator);
  checkpoint.loader = checkpoint_entry(path, file.metadata, kLoader);
  checkpoint.parts.resize(
      parse_count(path, "parts", checkpoint_entry(path, file.metadata, kParts)));
  if (const auto engines = file.metadata.find(kEngines); engines != file.metadata.end()) {
    checkpoint.engines.resize(parse_count(path, "engines", engines->second));
  }
  for (auto& [key, value] : file.metadata) {
    std::string name = key;
    if (strip(name, kNote)) checkpoint.notes.emplace(std::move(name), std::move(value));
  }
  bool has_losses = false;
  for (auto& [key, x] : file.tensors) {
    if (key == kLosses) {
      checkpoint.losses = x.to_vector<double>();
      has_losses = true;
    } else if (strip(key, kMoreLosses)) {
      checkpoint.more_losses.push_back({std::move(key), x.to_vector<double>()});
    } else if (strip(key, kModel)) {
      checkpoint.model.emplace_back(std::move(key), std::move(x));
    } else if (auto* const part = strip_number(key, kPart, checkpoint.parts)) {
      part->emplace_back(std::move(key), std::move(x));
    } else if (auto* const engine = strip_number(key, kEngine, checkpoint.engines)) {
      engine->emplace_back(std::move(key), std::move(x));
    } else {
      WEFT_THROW(InvalidArgument, kOp, path, ": tensor \"", key, "\" is no part of a checkpoint");
    }
  }
  if (!has_losses) throw_missing(path, kLosses);
  return checkpoint;
}

std::int64_t checkpoint_count(const std::string& path, const io::Metadata& notes, const char* key) {
  const std::string& text = checkpoint_entry(path, notes, key);
  char* end = nullptr;
  errno = 0;
  const std::int64_t value = std::strtoll(text.c_str(), &end, 10);
  WEFT_CHECK(errno == 0 && *end == '\0' && !text.empty() && value >= 0, InvalidArgument,
             "checkpoint", path, ": note \"", key, "\" is no count: \"", text, '"');
  return value;
}

}  // namespace weft::train
