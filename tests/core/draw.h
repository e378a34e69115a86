// Random cases, determined by a seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>

namespace weft::testing {

/// A number from the environment: the number of cases, or the seed.
inline std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : bits_(seed) {}
  /// A number from first to last.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + std::int64_t(bits_() % std::uint64_t(last - first + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, std::int64_t(values.size()) - 1)];
  }
  std::uint64_t seed() { return bits_(); }

 private:
  std::mt19937_64 bits_;  // the standard defines its numbers
};

}  // namespace weft::testing
