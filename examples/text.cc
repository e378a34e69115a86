#include "weft/examples/text.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "weft/core/base/error.h"
#include "weft/tensor/creation.h"

namespace weft::examples {

Text::Text(const std::string& text) : alphabet_(text) {
  WEFT_CHECK(!text.empty(), InvalidArgument, "Text", "there is not one character");
  const auto code = [](char c) { return static_cast<unsigned char>(c); };
  std::ranges::sort(alphabet_, {}, code);
  const auto rest = std::ranges::unique(alphabet_);
  alphabet_.erase(rest.begin(), rest.end());
  std::array<std::int64_t, 256> numbers{};
  for (std::size_t i = 0; i < alphabet_.size(); ++i) {
    numbers[code(alphabet_[i])] = static_cast<std::int64_t>(i);
  }
  numbers_.reserve(text.size());
  for (const char c : text) numbers_.push_back(numbers[code(c)]);
}

std::int64_t Text::number(char character) const {
  const std::size_t place = alphabet_.find(character);
  WEFT_CHECK(place != std::string::npos, InvalidArgument, "Text", "there is no '", character,
             "' in the text");
  return static_cast<std::int64_t>(place);
}

std::string read_text(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path)) {
      const auto kind = entry.path().extension();
      if (kind == ".md" || kind == ".txt") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    WEFT_CHECK(!files.empty(), Io, "read_text", "no file *.md or *.txt in ", path);
  } else {
    files.emplace_back(path);
  }
  std::string text;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    WEFT_CHECK(in, Io, "read_text", file.string(),
               " cannot be read; name a text, or a folder with *.md or *.txt (--data PATH)");
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  return text;
}

Windows::Windows(std::span<const std::int64_t> text, std::int64_t context)
    : text_(text.begin(), text.end()),
      context_(context),
      step_(std::max(context / 2, std::int64_t{1})) {
  const std::int64_t length = std::ssize(text);
  WEFT_CHECK(length > context, InvalidArgument, "Windows", "a context of ", context,
             " needs a text of at least ", context + 1, " characters, not ", length);
  size_ = (length - context - 1) / step_ + 1;
}

std::pair<Tensor, Tensor> Windows::get_batch(std::span<const std::int64_t> indices) const {
  std::vector<std::int64_t> x, y;
  for (const std::int64_t index : indices) {
    const auto begin = text_.begin() + index * step_;
    x.insert(x.end(), begin, begin + context_);
    y.insert(y.end(), begin + 1, begin + context_ + 1);
  }
  const Shape shape{std::ssize(indices), context_};
  return {from_vector(x, shape), from_vector(y, shape)};
}

TextParts split(const Text& text, std::int64_t context) {
  const std::span<const std::int64_t> all(text.numbers());
  const std::size_t tested = all.size() / 10;
  const Windows train(all.first(all.size() - tested), context);
  WEFT_CHECK(static_cast<std::int64_t>(tested) > context, InvalidArgument, "char_transformer",
             "the last tenth of the text is for the test, and has to be longer than --context ",
             context, ": the text has ", all.size(), " characters, and needs ", 10 * (context + 1));
  return {train, Windows(all.last(tested), context)};
}

std::string docs_folder() {
  const char* const root = std::getenv("WEFT_ROOT");
  return root ? std::string(root) + "/docs" : "docs";
}

}  // namespace weft::examples
