#include "weft/data/image_folder.h"
#include "weft/io/read_image.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <set>
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

/// What is in a folder, sorted by name.
std::vector<fs::directory_entry> entries(const std::string& folder) {
  std::vector<fs::directory_entry> all;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) all.push_back(*it);
  if (error) refuse(folder, error);
  std::ranges::sort(all);
  return all;
}

std::vector<std::string> subfolders(const std::string& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries(root)) {
    std::error_code unknown;
    if (entry.is_directory(unknown)) names.push_back(entry.path().filename().string());
  }
  return names;
}

/// The pictures below a folder, folder by folder, each folder once. Links may lead round in
/// circles, or to one folder on many ways.
std::vector<std::pair<std::string, std::string>> pictures(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> found;
  std::set<std::pair<dev_t, ino_t>> listed;
  // Links are followed last, so that a folder gets its own path if it has one here.
  std::deque<std::string> folders = {folder};
  while (!folders.empty()) {
    const std::string place = std::move(folders.front());
    folders.pop_front();
    struct stat identity{};
    if (::stat(place.c_str(), &identity) != 0) refuse(place, {errno, std::generic_category()});
    if (!listed.emplace(identity.st_dev, identity.st_ino).second) continue;
    for (const fs::directory_entry& entry : entries(place)) {
      std::error_code unknown;
      if (entry.is_directory(unknown)) {
        const bool is_link = entry.is_symlink(unknown);
        folders.insert(is_link ? folders.end() : folders.begin(), entry.path().string());
      } else if (is_picture(entry.path())) {
        found.emplace_back(place, entry.path().filename().string());
      }
    }
  }
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
