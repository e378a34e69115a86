// Sorting. The elements of a row become words: the key, and in the lower half of the bits the
// position. No two words are equal, so any way to sort them keeps the order of equal elements.
#include "weft/kernels/sorting.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/loop.h"

namespace weft::cpu {
namespace {

using Word64 = std::uint64_t;
using Word128 = unsigned __int128;

/// The number of bits of a position, below the key.
template <class Word>
inline constexpr int kPositionBits = 4 * sizeof(Word);

template <class Word>
std::uint8_t key_byte(Word word, int byte) {
  return static_cast<std::uint8_t>(word >> (kPositionBits<Word> + 8 * byte));
}

/// Sorts the words, and returns where they are then: in `words` or in `spare`, which has as many.
/// By the bytes of the key from the lowest one (radix sort), where words come in the order of
/// their positions.
template <class Word>
const Word* sorted(Word* words, Word* spare, std::int64_t n, int key_bytes) {
  if (n < 12 * key_bytes) {  // measured: fewer are sorted faster by comparing them
    std::sort(words, words + n);
    return words;
  }
  std::array<std::array<std::int64_t, 256>, 8> counts;
  for (int b = 0; b < key_bytes; ++b) counts[b].fill(0);
  for (std::int64_t i = 0; i < n; ++i) {
    for (int b = 0; b < key_bytes; ++b) ++counts[b][key_byte(words[i], b)];
  }
  for (int b = 0; b < key_bytes; ++b) {
    std::array<std::int64_t, 256>& next = counts[b];
    if (next[key_byte(words[0], b)] == n) continue;  // all have the same byte
    std::int64_t begin = 0;
    for (std::int64_t& at : next) begin += std::exchange(at, begin);
    for (std::int64_t i = 0; i < n; ++i) spare[next[key_byte(words[i], b)]++] = words[i];
    std::swap(words, spare);
  }
  return words;
}

/// The number of parts in which the rows are sorted, each with memory of its own.
std::int64_t parts_of(const View& x) {
  const std::int64_t most = std::min<std::int64_t>(num_threads(), x.shape[0]);
  return std::clamp<std::int64_t>(x.numel() / kCostlyGrain, 1, std::max<std::int64_t>(most, 1));
}

template <class T, class Word>
void sort_row(bool descending, std::int64_t n, const T* x, T* values, std::int64_t* indices,
              Word* words) {
  for (std::int64_t i = 0; i < n; ++i) {
    words[i] = Word{sort_key(x[i], descending)} << kPositionBits<Word> | static_cast<Word>(i);
  }
  const Word* const found = sorted(words, words + n, n, sizeof(T));
  for (std::int64_t i = 0; i < n; ++i) {
    constexpr Word kPosition = ~(~Word{0} << kPositionBits<Word>);
    indices[i] = static_cast<std::int64_t>(found[i] & kPosition);
  }
  if (!values) return;
  for (std::int64_t i = 0; i < n; ++i) values[i] = x[indices[i]];
}

template <class T, class Word>
void sort_rows(bool descending, const View& x, const View& values, const View& indices,
               void* workspace) {
  const std::int64_t rows = x.shape[0], n = x.shape[1], parts = parts_of(x);
  parallel_for(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      Word* const words = static_cast<Word*>(workspace) + part * 2 * n;
      for (std::int64_t r = part; r < rows; r += parts) {
        sort_row(descending, n, x.as<T>() + r * n, values ? values.as<T>() + r * n : nullptr,
                 indices.as<std::int64_t>() + r * n, words);
      }
    }
  });
}

/// Whether keys and positions fit into the halves of the small words.
bool fits_small(const View& x) {
  return size_of(x.dtype) <= 4 && x.shape[1] <= std::int64_t{1} << 32;
}

std::size_t workspace_bytes(const Stream&, const View& x) {
  const std::size_t word = fits_small(x) ? sizeof(Word64) : sizeof(Word128);
  return static_cast<std::size_t>(parts_of(x) * 2 * x.shape[1]) * word;
}

void sort(const Stream&, bool descending, const View& x, const View& values, const View& indices,
          void* workspace) {
  dispatch_all(x.dtype, [&]<class T>() {
    if constexpr (sizeof(T) <= 4) {
      if (fits_small(x)) return sort_rows<T, Word64>(descending, x, values, indices, workspace);
    }
    sort_rows<T, Word128>(descending, x, values, indices, workspace);
  });
}

void search(const Stream&, bool right, const View& sequence, const View& values, const View& y) {
  const std::int64_t n = sequence.shape[1], columns = values.shape[1];
  const std::int64_t step = sequence.shape[0] == 1 ? 0 : n;
  dispatch_all(values.dtype, [&]<class T>() {
    parallel_for(values.numel(), kCostlyGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* const row = sequence.as<T>() + i / columns * step;
        y.as<std::int64_t>()[i] = searched(row, n, values.as<T>()[i], right);
      }
    });
  });
}

}  // namespace

SortingKernels sorting_kernels() {
  return {.workspace_bytes = workspace_bytes, .sort = sort, .search = search};
}

}  // namespace weft::cpu
