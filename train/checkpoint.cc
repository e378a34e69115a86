#include "weft/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

#include "weft/io/state_dict.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

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
constexpr const char* kVersionWithFiles = "2";  // which earlier programs cannot read
constexpr const char* kGenerator = "generator";
constexpr const char* kLoader = "loader";
constexpr const char* kParts = "parts";
constexpr const char* kEngines = "engines";
constexpr const char* kModelFiles = "model_files";  // one name a line
constexpr const char* kPartFiles = "part_files";
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

std::string numbered(std::string_view prefix, std::size_t number) {
  return detail::concat(prefix, number, '.');
}

bool has_prefix(const io::SliceReader& file, const std::string& prefix) {
  const std::vector<std::string> names = file.names();
  return std::ranges::any_of(names, [&](const auto& name) { return name.starts_with(prefix); });
}

/// What the file has under names with this prefix, without it.
nn::SavedState saved_state(const std::shared_ptr<const io::SliceReader>& file,
                           const std::string& prefix) {
  nn::SavedState saved;
  for (const std::string& name : file->names()) {
    if (!name.starts_with(prefix)) continue;
    saved.entries.push_back({name.substr(prefix.size()), file->dtype(name), file->shape(name)});
  }
  saved.read = [file, prefix](const std::string& name, const nn::Cut& cut, const Tensor& part) {
    for (const io::TensorSlice& slice : slices_of({{prefix + name, part, cut}})) file->read(slice);
  };
  return saved;
}

std::vector<std::string> lines(const io::Metadata& metadata, const char* key) {
  std::vector<std::string> result;
  const auto text = metadata.find(key);
  std::istringstream in(text == metadata.end() ? "" : text->second);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}
std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += line + '\n';
  return text;
}

void add_numbered(io::NamedTensors& tensors, std::string_view prefix,
                  const std::vector<io::NamedTensors>& lists) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (const auto& [name, x] : lists[i]) tensors.emplace_back(numbered(prefix, i) + name, x);
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
  const std::size_t most = std::max(checkpoint.parts.size(), checkpoint.engines.size());
  WEFT_CHECK(most <= kMostParts, InvalidArgument, kOp, path, ": got ", most,
             " optimisers and schedulers, or engines, expected at most ", kMostParts);
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
  if (!checkpoint.model_files.empty()) {
    metadata[kFormat] = kVersionWithFiles;
    metadata[kModelFiles] = joined(checkpoint.model_files);
    metadata[kPartFiles] = joined(checkpoint.part_files);
  }
  for (const auto& [key, value] : checkpoint.notes) metadata.emplace(with(kNote, key), value);
  io::save_safetensors(path, tensors, metadata);
}

CheckpointReader::CheckpointReader(const std::string& path, Device device) : device_(device) {
  WEFT_CHECK(!io::is_pickle_file(path), InvalidArgument, kOp, path,
             ": a file of PyTorch's, not a checkpoint of weft's; --weights begins a run from its "
             "state dict");
  file_ = std::make_shared<const io::SliceReader>(std::vector{path});
  const io::Metadata metadata = file_->metadata();
  const auto version = metadata.find(kFormat);
  WEFT_CHECK(version != metadata.end(), InvalidArgument, kOp, path,
             ": not a checkpoint (its metadata has no ", kFormat,
             "); a model alone can be loaded, but not resumed from: --weights begins a run from "
             "its state dict");
  WEFT_CHECK(version->second == kVersion || version->second == kVersionWithFiles, InvalidArgument,
             kOp, path, ": checkpoint of version ", version->second, ", this program knows ",
             kVersion, " and ", kVersionWithFiles);
  books_.generator = checkpoint_entry(path, metadata, kGenerator);
  books_.loader = checkpoint_entry(path, metadata, kLoader);
  books_.parts.resize(parse_count(path, "parts", checkpoint_entry(path, metadata, kParts)));
  if (const auto engines = metadata.find(kEngines); engines != metadata.end()) {
    books_.engines.resize(parse_count(path, "engines", engines->second));
  }
  for (const auto& [key, value] : metadata) {
    std::string name = key;
    if (strip(name, kNote)) books_.notes.emplace(std::move(name), value);
  }
  const auto beside = [&](const char* key, std::vector<std::string>& names) {
    names = lines(metadata, key);
    if (names.empty()) return file_;
    std::vector<std::string> paths;
    for (const std::string& name : names) {
      WEFT_CHECK(name.find('/') == std::string::npos, Io, kOp, path, ": names a file outside of ",
                 "its folder: ", name);
      paths.push_back(path.substr(0, path.rfind('/') + 1) + name);
    }
    return std::make_shared<const io::SliceReader>(paths);
  };
  model_ = beside(kModelFiles, books_.model_files);
  parts_ = beside(kPartFiles, books_.part_files);

  for (const std::string& key : file_->names()) {
    std::string name = key;
    if (key == kLosses || strip(name, kMoreLosses)) {
      const Tensor values = empty(file_->shape(key), DType::f64);
      file_->read({key, values.shape(), Shape::filled(values.dim(), 0), values});
      if (key == kLosses) books_.losses = values.to_vector<double>();
      if (key != kLosses) books_.more_losses.push_back({name, values.to_vector<double>()});
      continue;
    }
    bool known = key.starts_with(kModel);
    for (std::size_t i = 0; i < books_.parts.size(); ++i) {
      known |= key.starts_with(numbered(kPart, i));
    }
    for (std::size_t i = 0; i < books_.engines.size(); ++i) {
      known |= key.starts_with(numbered(kEngine, i));
    }
    WEFT_CHECK(known, InvalidArgument, kOp, path, ": tensor \"", key,
               "\" is no part of a checkpoint");
  }
  if (!file_->has(kLosses)) throw_missing(path, kLosses);
  for (std::size_t i = 0; i < books_.engines.size(); ++i) {
    books_.engines[i] = whole(saved_state(file_, numbered(kEngine, i)));
  }
}

nn::SavedState CheckpointReader::model() const {
  return saved_state(model_, std::string(model_ == file_ ? kModel : ""));
}
nn::SavedState CheckpointReader::part(std::size_t number) const {
  const std::string prefix = numbered(kPart, number);
  return saved_state(has_prefix(*file_, prefix) ? file_ : parts_, prefix);
}

io::NamedTensors CheckpointReader::whole(const nn::SavedState& saved) const {
  io::NamedTensors tensors;
  for (const auto& [name, dtype, shape] : saved.entries) {
    tensors.emplace_back(name, empty(shape, {dtype, device_}));
    saved.read(name, {.whole = shape, .dim = -1}, tensors.back().second);
  }
  return tensors;
}

std::string CheckpointReader::fingerprint() const {
  return detail::concat(books_.losses.size(), " steps, ", file_->checksums(), model_->checksums(),
                        parts_->checksums());
}
std::uint64_t CheckpointReader::bytes_read() const {
  std::uint64_t bytes = file_->bytes_read();
  if (model_ != file_) bytes += model_->bytes_read();
  if (parts_ != file_) bytes += parts_->bytes_read();
  return bytes;
}

Checkpoint load_checkpoint(const std::string& path, Device device) {
  const CheckpointReader reader(path, device);
  Checkpoint checkpoint = reader.books();
  checkpoint.model = reader.whole(reader.model());
  for (std::size_t i = 0; i < checkpoint.parts.size(); ++i) {
    checkpoint.parts[i] = reader.whole(reader.part(i));
  }
  return checkpoint;
}

std::vector<io::TensorSlice> slices_of(const nn::StateParts& parts) {
  std::vector<io::TensorSlice> slices;
  for (const auto& [name, tensor, cut] : parts) {
    for (const nn::Box& box : nn::boxes_of(cut)) {
      Tensor x = tensor;
      for (int d = 0; d < x.dim(); ++d) {
        if (x.shape(d) != box.sizes[d]) x = raw::narrow(x, d, box.part_offsets[d], box.sizes[d]);
      }
      slices.push_back({name, cut.parameter_shape(), box.whole_offsets, x});
    }
  }
  return slices;
}

std::vector<std::string> files_beside(const std::string& path) {
  const io::Metadata metadata = io::SliceReader({path}).metadata();
  std::vector<std::string> files = lines(metadata, kModelFiles);
  for (const std::string& name : lines(metadata, kPartFiles)) files.push_back(name);
  return files;
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
