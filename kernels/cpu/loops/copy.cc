// Copies, selection, fills and conversions.
#include <cstring>

#include "weft/kernels/cpu/element.h"
#include "weft/kernels/cpu/loops/copy.h"
#include "weft/kernels/cpu/loops/vector_bytes.h"

namespace weft::cpu {
namespace {

template <class From, class To>
void convert_row(std::int64_t n, char* const* data, const void*) {
  To* y = reinterpret_cast<To*>(data[0]);
  const From* x = reinterpret_cast<const From*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = store<To>(load(x[i]));
}

// Through i32, not i64: AVX2 has no conversion from i64.
void u8_to_f32_row(std::int64_t n, char* const* data, const void*) {
  float* y = reinterpret_cast<float*>(data[0]);
  const auto* x = reinterpret_cast<const std::uint8_t*>(data[1]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<std::int32_t>(x[i]));
}

/// Rows without gaps. A vector loop copies long ones, for which glibc's memcpy uses `rep movsb`:
/// its speed depends on the processor and on the last bits of the addresses. Memory beyond the
/// caches is memcpy's again, which then writes around them.
void copy_bytes(std::int64_t rows, std::size_t n, const char* x, std::int64_t x_row_step, char* y,
                std::int64_t y_row_step) {
  typedef char Bytes __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
  constexpr std::size_t kLong = 2048, kHuge = 1 << 20, kStep = 4 * kVectorBytes;
  for (std::int64_t r = 0; r < rows; ++r, x += x_row_step, y += y_row_step) {
    std::size_t i = 0;
    for (; n < kHuge && n - i >= kLong; i += kStep) {
      Bytes v[4];
      for (int k = 0; k < 4; ++k) v[k] = reinterpret_cast<const Bytes*>(x + i)[k];
      for (int k = 0; k < 4; ++k) reinterpret_cast<Bytes*>(y + i)[k] = v[k];
    }
    std::memcpy(y + i, x + i, n - i);
  }
}

/// y[r][i] = x[r][i * step] with a step that the compiler knows: it loads whole vectors and
/// shuffles them.
template <std::int64_t step, class U>
void copy_spaced(std::int64_t rows, std::int64_t n, const U* x, std::int64_t x_row_step, U* y,
                 std::int64_t y_row_step) {
  for (std::int64_t r = 0; r < rows; ++r, x += x_row_step, y += y_row_step) {
    WEFT_VECTOR_LOOP
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i * step];
  }
}

template <class U>
void copy_tile(std::int64_t rows, std::int64_t n, const void* from, std::int64_t x_step,
               std::int64_t x_row_step, void* to, std::int64_t y_step, std::int64_t y_row_step) {
  const U* x = static_cast<const U*>(from);
  U* y = static_cast<U*>(to);
  constexpr std::int64_t kBytes = sizeof(U);
  switch (y_step == 1 ? x_step : 5) {
    case 1:
      return copy_bytes(rows, static_cast<std::size_t>(n * kBytes), static_cast<const char*>(from),
                        x_row_step * kBytes, static_cast<char*>(to), y_row_step * kBytes);
    case 0: return copy_spaced<0>(rows, n, x, x_row_step, y, y_row_step);
    case -1: return copy_spaced<-1>(rows, n, x, x_row_step, y, y_row_step);
    case 2: return copy_spaced<2>(rows, n, x, x_row_step, y, y_row_step);
    case 3:
      if (kVectorBytes == 16) break;  // gcc 12's shuffles of short vectors are slower
      return copy_spaced<3>(rows, n, x, x_row_step, y, y_row_step);
    case 4: return copy_spaced<4>(rows, n, x, x_row_step, y, y_row_step);
    default: break;
  }
  for (std::int64_t r = 0; r < rows; ++r, x += x_row_step, y += y_row_step) {
    for (std::int64_t i = 0; i < n; ++i) y[i * y_step] = x[i * x_step];
  }
}

template <class U>
void fill_row(std::int64_t n, char* const* data, const void* params) {
  U value;
  std::memcpy(&value, params, sizeof value);
  U* y = reinterpret_cast<U*>(data[0]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) y[i] = value;
}

// Reads both: a branch on a condition without a pattern costs far more.
template <class U>
void where_row(std::int64_t n, char* const* data, const void*) {
  U* y = reinterpret_cast<U*>(data[0]);
  const auto* condition = reinterpret_cast<const std::uint8_t*>(data[1]);
  const U* a = reinterpret_cast<const U*>(data[2]);
  const U* b = reinterpret_cast<const U*>(data[3]);
  WEFT_VECTOR_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    const U u = a[i], v = b[i];
    y[i] = condition[i] ? u : v;
  }
}

// A negative v or bound - 1 - v sets the sign bit: needs no comparison of 64 bits.
bool in_range(std::int64_t n, const std::int64_t* x, std::int64_t bound) {
  const auto last = static_cast<std::uint64_t>(bound) - 1;
  std::uint64_t signs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<std::uint64_t>(x[i]);
    signs |= v | (last - v);
  }
  return signs >> 63 == 0;
}

template <class U>
constexpr CopyLoops::Moves moves{copy_tile<U>, where_row<U>, fill_row<U>};

// Eight words; on a machine with narrower registers, two of these.
typedef std::uint32_t Words __attribute__((vector_size(32)));

// Transposes 8 x 8 words in three rounds: pairs of rows exchange blocks of 1, 2 and 4 words.
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

}  // namespace

namespace WEFT_SIMD {

constinit const CopyLoops copy_loops = {moves<std::uint8_t>,
                                        moves<std::uint16_t>,
                                        moves<std::uint32_t>,
                                        moves<std::uint64_t>,
                                        in_range,
                                        u8_to_f32_row,
                                        convert_row<float, bf16>,
                                        convert_row<bf16, float>,
                                        transpose4};

}  // namespace WEFT_SIMD
}  // namespace weft::cpu
