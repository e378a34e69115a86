// The inner loops of attention: rows of a block of scores. Their products are the tiles' work.
#pragma once

#include <cstdint>

#include "weft/kernels/cpu/loops/table.h"

namespace weft::cpu {

/// C: the type of scores and sums. n: the number of keys of a row, from 1 on.
template <class C>
struct ScoreLoops {
  /// scores[j] += mask[j]. Returns whether one of them is not hidden.
  bool (*add_mask)(std::int64_t n, const C* mask, C* scores);
  /// scores[j] += mask[j] ? 0 : -infinity. Returns whether one of them is not hidden.
  bool (*hide)(std::int64_t n, const bool* mask, C* scores);
  /// One step of the softmax over blocks of keys: most becomes the largest score so far but for
  /// NaN, scores[j] becomes exp(scores[j] - most), and sum the sum of all exponentials; a NaN makes
  /// it NaN for good. Returns exp(old most - most), by which what was summed before is multiplied.
  /// The last vector becomes 0 beyond n.
  C (*exponentials)(std::int64_t n, C* scores, C& most, double& sum);
  /// scores[j] = exp(scores[j] - log_sum)
  void (*weights)(std::int64_t n, C log_sum, C* scores);
  /// grads[j] = weights[j] (grads[j] - common)
  void (*score_grads)(std::int64_t n, const C* weights, C common, C* grads);
  /// x[j] *= kept[j] ? scale : 0
  void (*drop)(std::int64_t n, const bool* kept, C scale, C* x);
  /// x[j] *= factor
  void (*multiply)(std::int64_t n, C factor, C* x);
  /// scores[j] = the product of x and row j of k, features elements each.
  void (*products)(std::int64_t n, std::int64_t features, const C* x, const C* k,
                   std::int64_t k_step, C* scores);
  /// sums[e] += sum over j of weights[j] v[j * v_step + e], e < values
  void (*weigh)(std::int64_t n, std::int64_t values, const C* weights, const C* v,
                std::int64_t v_step, C* sums);
};

/// Rows of a matrix with the elements T, which the sums of type C are made from and stored in.
struct AttentionLoops {
  /// to[i * width + j] = factor from[i * step + j], j < n; 0 for n <= j < width. to: of C.
  void (*load)(std::int64_t rows, std::int64_t n, const void* from, std::int64_t step,
               double factor, void* to, std::int64_t width);
  /// to[j] = factor from[j]; from: of C.
  void (*store)(std::int64_t n, const void* from, double factor, void* to);
  /// The sum of a[j] b[j].
  double (*dot)(std::int64_t n, const void* a, const void* b);
};

struct AttentionTable {
  ScoreLoops<float> f32;
  ScoreLoops<double> f64;
  ByDType<AttentionLoops> rows;
};
WEFT_LOOPS(AttentionTable, attention_table)

template <class C>
const ScoreLoops<C>& score_loops() {
  if constexpr (sizeof(C) == 8)
    return attention_table().f64;
  else
    return attention_table().f32;
}

}  // namespace weft::cpu
