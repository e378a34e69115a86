#include "weft/data/image_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace weft::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOp = "image_folder";
constexpr std::array<std::string_view, 3> kEndings = {".jpg", ".jpeg", ".png"};

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  // Not tolower(): it follows the locale.
  for (char& c : ending) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

[[noreturn]] void refuse(const std::string& folder, const std::error_code& error) {
  WEFT_THROW(Io, kOp, folder, ": cannot be listed: ", error.message());
}

std::vector<std::string> subfolders(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(root, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code unknown;
    if (it->is_directory(unknown)) names.push_back(it->path().filename().string());
  }
  if (error) refuse(root, error);
  std::ranges::sort(names);
  return names;
}

/// The pictures below a folder, folder by folder.
std::vector<std::pair<std::string, std::string>> pictures(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink,
                                      error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const fs::path& path = it->path();
    std::error_code unknown;
    if (is_picture(path) && !it->is_directory(unknown)) {
      found.emplace_back(path.parent_path().string(), path.filename().string());
    }
  }
  if (error) refuse(folder, error);
  std::ranges::sort(found);
  return found;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root, const ImageFolderOptions& options)
    : limits_(options.limits), batcher_(kOp, options.format, 3) {
  classes_ = subfolders(root);
  WEFT_CHECK(!classes_.empty(), Io, kOp, root,
             ": no sub-folders; needs one for each class, with its pictures in it");
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    const std::string folder = (fs::path(root) / classes_[label]).string();
    const std::size_t before = samples_.size();
    for (const auto& [place, name] : pictures(folder)) {
      samples_.push_back({(fs::path(place) / name).string(), static_cast<std::int64_t>(label)});
    }
    WEFT_CHECK(samples_.size() > before, Io, kOp, folder, ": class \"", classes_[label],
               "\" has no pictures: no file ends in .jpg, .jpeg or .png");
  }
}

ImageFolder::Batch ImageFolder::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), default_generator().random64());
  return batch;
}

void ImageFolder::get_batch(std::span<const std::int64_t> indices, Batch& batch,
                            const HostMemory& memory, std::uint64_t epoch_seed) const {
  const auto load = [this](std::int64_t index, Picture& picture) {
    const Sample& sample = samples_[static_cast<std::size_t>(index)];
    io::Image image = io::read_image(sample.path, limits_);
    picture.swap(image);
    return sample.label;
  };
  batcher_.fill(indices, size(), load, batch, memory, epoch_seed);
}

}  // namespace weft::data
