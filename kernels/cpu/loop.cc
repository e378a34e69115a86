#include "weft/kernels/cpu/loop.h"

#include <cstring>

#include "weft/kernels/cpu/simd.h"

namespace weft::cpu {
namespace {

template <class U>
void gather_as(std::int64_t rows, std::int64_t n, const char* from, std::int64_t step,
               std::int64_t row_step, char* to) {
  const U* source = reinterpret_cast<const U*>(from);
  U* out = reinterpret_cast<U*>(to);
  for (std::int64_t r = 0; r < rows; ++r, out += n) {
    if (r > 0 && row_step == 0) {
      std::memcpy(out, to, static_cast<std::size_t>(n) * sizeof(U));
      continue;
    }
    const U* row = source + r * row_step;
    if (step == 1) {
      std::memcpy(out, row, static_cast<std::size_t>(n) * sizeof(U));
    } else if (step == 0) {
      const U value = *row;
      for (std::int64_t i = 0; i < n; ++i) out[i] = value;
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[i] = row[i * step];
    }
  }
}

template <class U>
void scatter_as(std::int64_t rows, std::int64_t n, const char* from, char* to, std::int64_t step,
                std::int64_t row_step) {
  const U* source = reinterpret_cast<const U*>(from);
  for (std::int64_t r = 0; r < rows; ++r, source += n) {
    U* row = reinterpret_cast<U*>(to) + r * row_step;
    for (std::int64_t i = 0; i < n; ++i) row[i * step] = source[i];
  }
}

}  // namespace

void gather(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from,
            std::int64_t step, std::int64_t row_step, char* to) {
  switch (bytes) {
    case 1: return gather_as<std::uint8_t>(rows, n, from, step, row_step, to);
    case 2: return gather_as<std::uint16_t>(rows, n, from, step, row_step, to);
    case 4:
      if (row_step == 1 && step > 1 && rows > 1)
        return simd().transpose4(n, rows, from, step, to, n);
      return gather_as<std::uint32_t>(rows, n, from, step, row_step, to);
    default: return gather_as<std::uint64_t>(rows, n, from, step, row_step, to);
  }
}

void scatter(std::int64_t bytes, std::int64_t rows, std::int64_t n, const char* from, char* to,
             std::int64_t step, std::int64_t row_step) {
  switch (bytes) {
    case 1: return scatter_as<std::uint8_t>(rows, n, from, to, step, row_step);
    case 2: return scatter_as<std::uint16_t>(rows, n, from, to, step, row_step);
    case 4: return scatter_as<std::uint32_t>(rows, n, from, to, step, row_step);
    default: return scatter_as<std::uint64_t>(rows, n, from, to, step, row_step);
  }
}

}  // namespace weft::cpu
