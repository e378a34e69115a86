// Conversions and transposing copies.
#include <cstring>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/simd.h"

namespace weft::cpu {
namespace {

template <class From, class To>
void convert_row(std::int64_t n, char* const* data, const void*) {
  To* y = reinterpret_cast<To*>(data[0]);
  const From* x = reinterpret_cast<const From*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<To>(load(x[i]));
}

// By way of i32, not i64: AVX2 has no conversion from i64.
void u8_to_f32_row(std::int64_t n, char* const* data, const void*) {
  float* y = reinterpret_cast<float*>(data[0]);
  const auto* x = reinterpret_cast<const std::uint8_t*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<std::int32_t>(x[i]));
}

// Eight words; a machine with narrower registers uses two.
typedef std::uint32_t Words __attribute__((vector_size(32)));

// 8 x 8 words in three rounds of exchanging blocks of 1, 2 and 4 words between pairs of rows.
inline void transpose_8x8(const std::uint32_t* x, std::int64_t x_step, std::uint32_t* y,
                          std::int64_t y_step) {
  Words a[8], b[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&a[i], x + i * x_step, sizeof(Words));
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = i; j < i + 2; ++j) {
      a[j] = __builtin_shufflevector(b[j], b[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[j + 2] = __builtin_shufflevector(b[j], b[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; ++i) std::memcpy(y + i * y_step, &b[i], sizeof(Words));
}

void transpose4(std::int64_t rows, std::int64_t cols, const void* in, std::int64_t x_step,
                void* out, std::int64_t y_step) {
  const auto* x = static_cast<const std::uint32_t*>(in);
  auto* y = static_cast<std::uint32_t*>(out);
  const std::int64_t whole_rows = rows / 8 * 8, whole_cols = cols / 8 * 8;
  for (std::int64_t j = 0; j < whole_cols; j += 8) {
    for (std::int64_t i = 0; i < whole_rows; i += 8) {
      transpose_8x8(x + i * x_step + j, x_step, y + j * y_step + i, y_step);
    }
  }
  for (std::int64_t j = 0; j < cols; ++j) {
    const std::int64_t from = j < whole_cols ? whole_rows : 0;
    for (std::int64_t i = from; i < rows; ++i) y[j * y_step + i] = x[i * x_step + j];
  }
}

constexpr SimdKernels functions() {
  SimdKernels table;
  table.u8_to_f32 = u8_to_f32_row;
  table.f32_to_bf16 = convert_row<float, bf16>;
  table.bf16_to_f32 = convert_row<bf16, float>;
  table.transpose4 = transpose4;
  return table;
}

}  // namespace

namespace WEFT_SIMD {

constinit const SimdKernels copy_functions = functions();

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
