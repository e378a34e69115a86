// Text for char_transformer: files, numbers of characters, and the pieces it learns from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/tensor/tensor.h"

namespace weft::examples {

/// A text as numbers of its different bytes, in the order of their codes.
class Text {
 public:
  /// Throws InvalidArgument for an empty one.
  explicit Text(const std::string& text);

  std::int64_t characters() const { return static_cast<std::int64_t>(alphabet_.size()); }
  const std::vector<std::int64_t>& numbers() const { return numbers_; }
  char character(std::int64_t number) const { return alphabet_[static_cast<std::size_t>(number)]; }
  /// Throws InvalidArgument for a byte that the text has not.
  std::int64_t number(char character) const;

 private:
  std::string alphabet_;
  std::vector<std::int64_t> numbers_;
};

/// A file, or all files *.md and *.txt of a folder in the order of their names. Throws Io for none.
std::string read_text(const std::string& path);

/// Pieces of `context` characters that begin every half context, with what comes behind each
/// character: {x, y} i64 [N,context].
class Windows {
 public:
  /// Throws InvalidArgument where not even one fits.
  Windows(std::span<const std::int64_t> text, std::int64_t context);
  std::int64_t size() const { return size_; }
  std::pair<Tensor, Tensor> get_batch(std::span<const std::int64_t> indices) const;

 private:
  std::vector<std::int64_t> text_;
  std::int64_t context_, step_, size_;
};

}  // namespace weft::examples
