// Text for char_transformer: files, numbers of characters, and pieces for training.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::examples {

/// A text in which each different byte has a number, in the order of the bytes' codes.
class Text {
 public:
  /// Throws InvalidArgument for an empty text.
  explicit Text(const std::string& text);

  std::int64_t characters() const { return static_cast<std::int64_t>(alphabet_.size()); }
  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  char character(std::int64_t number) const { return alphabet_[static_cast<std::size_t>(number)]; }
  /// Throws InvalidArgument for a byte that is not in the text.
  std::int64_t number(char character) const;

 private:
  std::string alphabet_;
  std::vector<std::int64_t> numbers_;
};

/// Reads a file, or all files *.md and *.txt of a folder in the order of their names. Throws Io if
/// there is none.
std::string read_text(const std::string& path);

/// Pieces of `context` characters, one every half context, and the character after each of theirs:
/// {x, y} i64 [N,context].
class Windows {
 public:
  /// Throws InvalidArgument if the text is too short for one piece.
  Windows(std::span<const std::int64_t> text, std::int64_t context);
  std::int64_t size() const { return size_; }
  std::pair<Tensor, Tensor> get_batch(std::span<const std::int64_t> indices) const;

 private:
  std::vector<std::int64_t> text_;
  std::int64_t context_, step_, size_;
};

/// What a transformer learns from, and is tested with: the last tenth of the text.
struct TextParts {
  Windows train, test;
};
/// Throws InvalidArgument if the last tenth is no longer than `context`.
TextParts split(const Text& text, std::int64_t context);

/// The folder with weft's own docs, if `./weft run` has set it.
std::string docs_folder();

}  // namespace weft::examples
