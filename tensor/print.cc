// Printing as numpy does (numpy/_core/arrayprint.py, numpy 2): the choice between 0.001 and 1.e-03,
// the alignment of columns, the wrapping at 75 characters and the `...` are its rules.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/runtime/capture.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

constexpr int kPrecision = 8;     // digits after the point
constexpr int kThreshold = 1000;  // larger tensors are summarised
constexpr int kEdgeItems = 3;     // shown at each end of a dimension then
constexpr std::size_t kLineWidth = 75;

// The digits d of |value| = d[0].d[1]d[2]... * 10^exponent: the fewest from which value can be read
// back.
struct Digits {
  std::string digits;
  int exponent = 0;
};

Digits parse_scientific(std::string_view text) {
  Digits result;
  const std::size_t e = text.find('e');
  for (char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') result.digits += c;
  }
  std::string_view exponent = text.substr(e + 1);
  if (exponent.front() == '+') exponent.remove_prefix(1);
  std::from_chars(exponent.data(), exponent.data() + exponent.size(), result.exponent);
  while (result.digits.size() > 1 && result.digits.back() == '0') result.digits.pop_back();
  return result;
}

template <class T>
Digits shortest(T value) {
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, std::abs(value), std::chars_format::scientific);
  return parse_scientific({buffer, end.ptr});
}

// value rounded to `places` digits after the point, of its scientific or its plain form.
template <class T>
Digits rounded(T value, int places, bool scientific) {
  char buffer[512];
  const double exact = std::abs(static_cast<double>(value));
  if (scientific) {
    const auto end =
        std::to_chars(buffer, buffer + sizeof buffer, exact, std::chars_format::scientific, places);
    return parse_scientific({buffer, end.ptr});
  }
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, exact, std::chars_format::fixed, places);
  const std::string_view text(buffer, end.ptr);
  Digits result;
  result.exponent = static_cast<int>(text.find('.')) - 1;
  for (char c : text) {
    if (c != '.') result.digits += c;
  }
  return result;
}

// A number split at its point: "-12" and "5" for -12.5. Trailing zeros of the fraction are removed.
struct Parts {
  std::string whole, fraction, exponent;
};

void trim_zeros(std::string& fraction) {
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
}

template <class T>
Parts positional(T value, int precision) {
  Digits d = shortest(value);
  const int places = static_cast<int>(d.digits.size()) - 1 - d.exponent;
  if (places > precision) d = rounded(value, precision, false);
  Parts parts;
  if (std::signbit(value)) parts.whole = "-";
  const auto digit = [&d](int i) {
    return i >= 0 && i < static_cast<int>(d.digits.size()) ? d.digits[i] : '0';
  };
  if (d.exponent < 0) parts.whole += '0';
  for (int i = 0; i <= d.exponent; ++i) parts.whole += digit(i);
  for (int i = d.exponent + 1; i < static_cast<int>(d.digits.size()); ++i) {
    parts.fraction += digit(i);
  }
  trim_zeros(parts.fraction);
  return parts;
}

template <class T>
Parts scientific_parts(T value, const Digits& d) {
  Parts parts;
  parts.whole = std::string(std::signbit(value) ? "-" : "") + d.digits[0];
  parts.fraction = d.digits.substr(1);
  trim_zeros(parts.fraction);
  parts.exponent = std::to_string(std::abs(d.exponent));
  if (parts.exponent.size() < 2) parts.exponent.insert(0, "0");
  parts.exponent.insert(0, d.exponent < 0 ? "-" : "+");
  return parts;
}

template <class T>
Parts scientific(T value, int precision) {
  const Digits d = shortest(value);
  const bool fits = static_cast<int>(d.digits.size()) - 1 <= precision;
  return scientific_parts(value, fits ? d : rounded(value, precision, true));
}

std::string non_finite(double value) {
  return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
}

std::string padded_left(const std::string& text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

// numpy's FloatingFormat: one format for all elements.
template <class T>
std::vector<std::string> format_floats(const std::vector<T>& values) {
  T largest = 0, smallest = 0;
  bool any_non_finite = false, negative_infinity = false;
  for (T value : values) {
    if (!std::isfinite(value)) {
      any_non_finite = true;
      negative_infinity |= value < 0;
    } else if (const T size = std::abs(value); size != 0) {
      if (largest == 0 || size > largest) largest = size;
      if (smallest == 0 || size < smallest) smallest = size;
    }
  }
  const double cutoff = std::is_same_v<T, float> ? 1e6 : 1e8;
  const bool exponents =
      largest != 0 && (largest >= cutoff || smallest < T(0.0001) || largest / smallest > T(1000));
  std::vector<Parts> parts(values.size());
  std::size_t left = 0, right = 0, exponent = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    parts[i] = exponents ? scientific(values[i], kPrecision) : positional(values[i], kPrecision);
    left = std::max(left, parts[i].whole.size());
    right = std::max(right, parts[i].fraction.size());
    exponent = std::max(exponent, parts[i].exponent.size());
  }
  if (exponents) {
    // All elements get as many digits as the one that needs most: digits of the exact value, which
    // may be more than are needed to tell it from its neighbours.
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) continue;
      parts[i] = scientific_parts(values[i], rounded(values[i], static_cast<int>(right), true));
    }
  }
  const std::size_t behind = right + (exponents ? 1 + exponent : 0);  // after the point
  if (any_non_finite) {
    const auto beyond = [behind](std::size_t n) { return n > behind + 1 ? n - behind - 1 : 0; };
    left = std::max({left, beyond(3), beyond(negative_infinity ? 4 : 3)});
  }
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      texts.push_back(padded_left(non_finite(values[i]), left + behind + 1));
      continue;
    }
    std::string text = padded_left(parts[i].whole, left) + '.' + parts[i].fraction;
    if (exponents) {
      text.append(right - parts[i].fraction.size(), '0');
      std::string digits = parts[i].exponent;
      if (digits.size() < exponent) digits.insert(1, exponent - digits.size(), '0');
      text += 'e' + digits;
    } else {
      text.append(right - parts[i].fraction.size(), ' ');
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> format_integers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> texts;
  std::size_t width = 0;
  for (std::int64_t value : values) {
    texts.push_back(std::to_string(value));
    width = std::max(width, texts.back().size());
  }
  for (std::string& text : texts) text = padded_left(text, width);
  return texts;
}

// A scalar is printed like a number in Python, with all its digits.
template <class T>
std::string format_scalar(T value) {
  if (!std::isfinite(value)) return non_finite(value);
  const double size = std::abs(static_cast<double>(value));
  const double cutoff = std::is_same_v<T, float> ? 1e6 : 1e16;
  if (size != 0 && (size >= cutoff || size < 1e-4)) {
    const Parts parts = scientific(value, 1000);
    return parts.whole + (parts.fraction.empty() ? "" : "." + parts.fraction) + 'e' +
           parts.exponent;
  }
  const Parts parts = positional(value, 1000);
  return parts.whole + '.' + (parts.fraction.empty() ? "0" : parts.fraction);
}

// numpy's _formatArray for finished texts in row-major order. `shape` is the shape of the texts;
// `cut` says which dimensions were shortened to their edges.
class Layout {
 public:
  Layout(const std::vector<std::string>& texts, const Shape& shape, unsigned cut)
      : texts_(texts), shape_(shape), cut_(cut) {}

  std::string print() { return nested(0, 1, kLineWidth); }

 private:
  std::string nested(int axis, std::size_t indent, std::size_t width) {
    return axis + 1 == shape_.size() ? row(axis, indent, width - 1) : block(axis, indent, width);
  }

  std::string block(int axis, std::size_t indent, std::size_t width) {
    const std::string separator(shape_.size() - axis - 1, '\n');
    const std::string prefix(indent, ' ');
    std::string text = "[";
    for (std::int64_t i = 0; i < shape_[axis]; ++i) {
      if (i > 0) text += separator + prefix;
      if (i == kEdgeItems && is_cut(axis)) text += "..." + separator + prefix;
      text += nested(axis + 1, indent + 1, width - 1);
    }
    return text + ']';
  }

  std::string row(int axis, std::size_t indent, std::size_t width) {
    std::string done;
    std::string line(indent, ' ');
    const auto add = [&](const std::string& word) {
      if (line.size() + word.size() > width && line.size() > indent) {
        done += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
        line.assign(indent, ' ');
      }
      line += word;
    };
    for (std::int64_t i = 0; i < shape_[axis]; ++i) {
      if (i > 0) line += ' ';
      if (i == kEdgeItems && is_cut(axis)) {
        add("...");
        line += ' ';
      }
      add(texts_[next_++]);
    }
    return '[' + (done + line).substr(indent) + ']';
  }

  bool is_cut(int axis) const { return cut_ >> axis & 1; }

  const std::vector<std::string>& texts_;
  Shape shape_;
  unsigned cut_;
  std::size_t next_ = 0;
};

std::vector<std::string> format_elements(const Tensor& x) {
  switch (x.dtype()) {
    case DType::f64: return format_floats(x.to_vector<double>());
    case DType::f32:
    case DType::bf16: return format_floats(x.to_vector<float>());
    case DType::boolean: {
      std::vector<std::string> texts;
      for (bool value : x.to_vector<bool>()) texts.push_back(value ? " True" : "False");
      return texts;
    }
    default: return format_integers(x.to_vector<std::int64_t>());
  }
}

std::string scalar_text(const Tensor& x) {
  switch (x.dtype()) {
    case DType::f64: return format_scalar(x.item<double>());
    case DType::f32:
    case DType::bf16: return format_scalar(x.item<float>());
    case DType::boolean: return x.item<bool>() ? "True" : "False";
    default: return std::to_string(x.item<std::int64_t>());
  }
}

std::string array_text(const Tensor& x) {
  if (x.numel() == 0) return "[]";
  Tensor shown = x;
  unsigned cut = 0;
  if (x.numel() > kThreshold) {
    for (int i = 0; i < x.dim(); ++i) {
      const std::int64_t n = x.shape()[i];
      if (n <= 2 * kEdgeItems) continue;
      const Tensor edges[] = {raw::narrow(shown, i, 0, kEdgeItems),
                              raw::narrow(shown, i, n - kEdgeItems, kEdgeItems)};
      shown = raw::cat(edges, i);
      cut |= 1u << i;
    }
  }
  return Layout(format_elements(shown), shown.shape(), cut).print();
}

}  // namespace

std::string to_string(const Tensor& x) {
  graph::check_not_capturing("to_string", "it waits for the values; print after the step");
  if (!x.defined()) return "undefined";
  std::string text = x.dim() == 0 ? scalar_text(x) : array_text(x);
  if (x.dtype() != DType::f32) text += std::string(" ") + to_string(x.dtype());
  if (!(x.device() == Device())) text += " " + to_string(x.device());
  return text;
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }

}  // namespace weft
