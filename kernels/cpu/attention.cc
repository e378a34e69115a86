// Attention on the CPU. A task computes the blocks of scores of some queries of one (a, b), each
// kQueries x kKeys, with the tiles of matrix products. Tasks and the order of all sums depend on
// the shapes alone, so the results do not depend on the number of threads.
#include "weft/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "weft/core/runtime/parallel.h"
#include "weft/kernels/backend.h"
#include "weft/kernels/cpu/loops/attention.h"
#include "weft/kernels/cpu/loops/tiles.h"
#include "weft/kernels/cpu/matmul/gemm.h"

namespace weft::cpu {
namespace {

constexpr std::int64_t kQueries = 96, kKeys = 256;
/// From one row of a block of scores to the next. Not a power of two: the rows of one column would
/// share few sets of the L1 cache.
constexpr std::int64_t kScoreStep = kKeys + 16;
/// So few queries cost less without tiles, which would need the keys transposed.
constexpr std::int64_t kFewQueries = 4;
/// The number of tasks that is aimed at where the batch is small.
constexpr std::int64_t kTasks = 16;

/// Memory that is handed out piece by piece; without memory it only counts.
class Arena {
 public:
  explicit Arena(void* memory = nullptr) : begin_(static_cast<char*>(memory)) {}
  template <class X>
  X* take(std::int64_t n) {
    char* const piece = begin_ ? begin_ + bytes_ : nullptr;
    bytes_ += round_up(n * std::int64_t{sizeof(X)}, 64);
    return reinterpret_cast<X*>(piece);
  }
  std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

 private:
  char* begin_;
  std::int64_t bytes_ = 0;
};

// --- Products of blocks --------------------------------------------------------------------------

/// The tile that computes n columns fastest: each row costs a multiplication per vector, or if
/// that is more, the loads; and a little for the loads in any case.
template <class C>
int tile_for(std::int64_t n) {
  const HeavyLoops<C>& loops = heavy_loops<C>();
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int t = 0; t < kMostTiles && loops.tiles[t].run; ++t) {
    const double vectors = ceil_div(loops.tiles[t].cols, loops.lanes);
    const double loads = 1 + vectors / loops.tiles[t].rows;
    const double cost = static_cast<double>(ceil_div(n, loops.tiles[t].cols)) *
                        (std::max(vectors, loads) + 0.1 * loads);
    if (cost < least) least = cost, best = t;
  }
  return best;
}

/// The tile for whole blocks of keys.
template <class C>
int tile_for_keys() {
  int best = 0;
  for (int t = 0; t < kMostTiles && heavy_loops<C>().tiles[t].run; ++t) {
    if (kKeys % heavy_loops<C>().tiles[t].cols == 0) best = t;
  }
  return best;
}

template <class C>
struct Left {
  const C* data;
  std::int64_t row_step, step;
};
template <class C>
struct Right {
  const C* data;
  std::int64_t step;
  std::int64_t column_step;  ///< from a tile's column to the same of the next tile, per column
};
/// What part of a tile of a product is needed: its columns and steps.
struct Part {
  std::int64_t columns, first, last;
};

/// c = or += a b, by tiles; part_of(first row, last row) says which part of a product's rows is
/// needed. c and b must have room for whole tiles.
template <class C, class PartOf>
void multiply(int widest, std::int64_t rows, std::int64_t columns, const Left<C>& a,
              const Right<C>& b, C* c, std::int64_t ldc, bool accumulate, const PartOf& part_of) {
  const MicroTile<C>* const tiles = heavy_loops<C>().tiles;
  const std::int64_t height = tiles[widest].rows, width = tiles[widest].cols;
  const std::int64_t lanes = std::min<std::int64_t>(heavy_loops<C>().lanes, width);
  std::int64_t a_rows[kMostTileRows];
  for (int i = 0; i < kMostTileRows; ++i) a_rows[i] = i * a.row_step;
  TileArgs<C> args;
  args.a_rows = a_rows;
  args.a_segments = args.b_segments = kOneSegment;
  args.a_step = a.step;
  args.b_step = b.step;
  args.ldc = ldc;
  args.accumulate = accumulate;
  for (std::int64_t j = 0; j < columns; j += width) {
    for (std::int64_t i = 0; i < rows; i += height) {
      args.rows = std::min(height, rows - i);
      const Part part = part_of(i, i + args.rows - 1);
      const std::int64_t needed = std::min(part.columns - j, width);
      if (needed <= 0) continue;
      // Narrower tiles have as many rows, or more. Half a vector would be slow to load as a whole.
      int tile = widest;
      while (tile > 0 && tiles[tile - 1].cols >= std::max(needed, lanes)) --tile;
      args.steps = std::max<std::int64_t>(part.last - part.first, 0);
      args.a = a.data + i * a.row_step + part.first * a.step;
      args.b = b.data + j * b.column_step + part.first * b.step;
      args.c = c + i * ldc + j;
      tiles[tile].run(args);
    }
  }
}

/// rows [0, n) of a matrix, transposed: panels of `width` columns, one for each row, with zeros
/// beyond n.
template <class C>
void pack_transposed(std::int64_t n, std::int64_t features, const C* from, std::int64_t step,
                     std::int64_t width, C* to) {
  for (std::int64_t j = 0; j < n; j += width, to += width * features) {
    const std::int64_t here = std::min(width, n - j);
    if (here < width) std::fill_n(to, width * features, C(0));
    heavy_loops<C>().transpose(here, features, to, width, from + j * step, step);
  }
}

// --- What forward and backward share -------------------------------------------------------------

/// Rows as they are multiplied.
template <class C>
struct Rows {
  const C* data;
  std::int64_t step;
};

template <class T>
struct Problem {
  using C = accumulate_t<T>;
  static constexpr bool kSameType = std::is_same_v<T, C>;

  explicit Problem(const AttentionArgs& arguments)
      : args(arguments),
        batch(args.q.shape[0] * args.q.shape[1]),
        queries(args.q.shape[2]),
        keys(args.k.shape[2]),
        features(args.q.shape[3]),
        values(args.v.shape[3]),
        feature_tile(tile_for<C>(features)),
        value_tile(tile_for<C>(values)),
        key_tile(tile_for_keys<C>()),
        feature_width(round_up(features, heavy_loops<C>().tiles[feature_tile].cols)),
        value_width(round_up(values, heavy_loops<C>().tiles[value_tile].cols)),
        key_width(heavy_loops<C>().tiles[key_tile].cols) {}

  /// Row i of number `at` of the batch.
  const T* row(const View& x, std::int64_t at, std::int64_t i) const {
    return x.as<const T>() + offset(x, at, i);
  }
  static std::int64_t offset(const View& x, std::int64_t at, std::int64_t i) {
    return at / x.shape[1] * x.strides[0] + at % x.shape[1] * x.strides[1] + i * x.strides[2];
  }

  /// The number of keys from j0 on, at most n, that query i sees but for the mask.
  std::int64_t visible(std::int64_t i, std::int64_t j0, std::int64_t n) const {
    return args.causal ? std::clamp<std::int64_t>(i + 1 - j0, 0, n) : n;
  }

  /// Rows of scores have room for as many: loops over them need no tail.
  static std::int64_t whole_vectors(std::int64_t n) { return round_up(n, heavy_loops<C>().lanes); }

  /// n rows from row i on, as they are or converted in `copy`.
  Rows<C> rows(const View& x, std::int64_t at, std::int64_t i, std::int64_t n, C* copy) const {
    const T* const from = row(x, at, i);
    if constexpr (kSameType) return {from, x.strides[2]};
    const std::int64_t width = x.shape[3];
    loops().load(n, width, from, x.strides[2], 1, copy, width);
    return {copy, width};
  }

  const AttentionLoops& loops() const { return attention_table().rows.of(args.q.dtype); }

  /// Adds the mask to the scores of query i for n keys from j0 on. Returns whether it sees one.
  bool add_mask(std::int64_t at, std::int64_t i, std::int64_t j0, std::int64_t n, C* scores) const {
    if (!args.mask) return n > 0;
    return args.mask.dtype == DType::boolean
               ? masked<bool>(at, i, j0, n, scores, score_loops<C>().hide)
               : masked<C>(at, i, j0, n, scores, score_loops<C>().add_mask);
  }
  const bool* kept(std::int64_t at, std::int64_t i, std::int64_t j) const {
    return args.kept.as<const bool>() + offset(args.kept, at, i) + j;
  }

  const AttentionArgs& args;
  std::int64_t batch, queries, keys, features, values;
  int feature_tile, value_tile, key_tile;
  std::int64_t feature_width, value_width, key_width;

 private:
  template <class M>
  bool masked(std::int64_t at, std::int64_t i, std::int64_t j0, std::int64_t n, C* scores,
              bool (*add)(std::int64_t, const M*, C*)) const {
    const View& mask = args.mask;
    const std::int64_t step = mask.strides[3];
    const M* const from = mask.as<const M>() + offset(mask, at, i) + j0 * step;
    if (step == 1) return add(n, from, scores);
    M copy[kKeys];
    for (std::int64_t j = 0; j < n; ++j) copy[j] = from[j * step];
    return add(n, copy, scores);
  }
};

/// scores = q k^T for `rows` queries from i0 on and n keys from j0 on. Also any other product with
/// keys as columns: q [rows, q_step] and k packed, of `features` steps.
template <class T, class C = accumulate_t<T>>
void multiply_by_keys(const Problem<T>& p, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                      std::int64_t n, std::int64_t features, const C* q, std::int64_t q_step,
                      const C* packed, C* scores) {
  multiply<C>(p.key_tile, rows, n, {q, q_step, 1}, {packed, p.key_width, features}, scores,
              kScoreStep, false, [&](std::int64_t, std::int64_t last) {
                return Part{p.visible(i0 + last, j0, n), 0, features};
              });
}

/// sums += weights [rows, n] times rows of keys or values, `width` of them.
template <class T, class C = accumulate_t<T>>
void add_over_keys(const Problem<T>& p, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                   std::int64_t n, const C* weights, const C* right, int tile, std::int64_t width,
                   C* sums) {
  multiply<C>(
      tile, rows, width, {weights, kScoreStep, 1}, {right, width, 1}, sums, width, true,
      [&](std::int64_t, std::int64_t last) { return Part{width, 0, p.visible(i0 + last, j0, n)}; });
}

/// sums += the transpose of weights [rows, n], times rows of queries or gradients.
template <class T, class C = accumulate_t<T>>
void add_over_queries(const Problem<T>& p, std::int64_t i0, std::int64_t rows, std::int64_t j0,
                      std::int64_t n, const C* weights, const C* right, int tile,
                      std::int64_t width, C* sums) {
  multiply<C>(tile, n, width, {weights, 1, kScoreStep}, {right, width, 1}, sums, width, true,
              [&](std::int64_t first, std::int64_t) {
                const std::int64_t hidden = p.args.causal ? j0 + first - i0 : 0;
                return Part{width, std::clamp<std::int64_t>(hidden, 0, rows), rows};
              });
}

/// Products of less than 2^20 multiply-adds stay in one thread.
template <class T>
int team(const Problem<T>& p, std::int64_t tasks) {
  const double work = static_cast<double>(p.batch) * static_cast<double>(p.queries) *
                      static_cast<double>(p.keys) * static_cast<double>(p.features + p.values);
  return work < 0x1p20 ? 1 : static_cast<int>(std::clamp<std::int64_t>(tasks, 1, num_threads()));
}

/// Calls f(task, lane) for tasks [0, count); the tasks of one lane run one after the other.
template <class F>
void for_tasks(std::int64_t count, int lanes, F&& f) {
  parallel_for(lanes, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t lane = begin; lane < end; ++lane) {
      for (std::int64_t t = count * lane / lanes; t < count * (lane + 1) / lanes; ++t) f(t, lane);
    }
  });
}

/// Number i of the order 0, n - 1, 1, n - 2, ..: with causal, the work of neighbours adds up to
/// the same.
std::int64_t from_both_ends(std::int64_t i, std::int64_t n) {
  return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

// --- Forward -------------------------------------------------------------------------------------

struct RunningSum {
  double sum, most;
  bool sees;
};

template <class T>
class Forward {
 public:
  using C = accumulate_t<T>;

  explicit Forward(const AttentionArgs& args) : p_(args) {
    // Q and the sums of a task stay in the L2 cache, with a block of keys and values.
    const std::int64_t most = std::clamp<std::int64_t>(
        65536 / std::max<std::int64_t>(p_.features + p_.values, 1), kQueries, 10 * kQueries);
    const std::int64_t wanted = std::clamp(ceil_div(p_.batch * p_.queries, kTasks), kQueries, most);
    chunks_ = ceil_div(p_.queries, wanted);
    chunk_ = round_up(ceil_div(p_.queries, std::max<std::int64_t>(chunks_, 1)), kQueries);
    chunk_ = std::min(chunk_, p_.queries);
    lanes_ = team(p_, p_.batch * chunks_);
  }

  std::size_t workspace_bytes() const {
    Arena arena;
    const Lane lane(*this, arena);
    return arena.bytes() * static_cast<std::size_t>(lanes_);
  }

  void run(const View& y, const View& log_sums, void* workspace) const {
    Arena counted;
    const Lane sizes(*this, counted);
    for_tasks(p_.batch * chunks_, lanes_, [&](std::int64_t task, std::int64_t lane) {
      Arena arena(static_cast<char*>(workspace) + static_cast<std::size_t>(lane) * counted.bytes());
      run_task(task / chunks_, from_both_ends(task % chunks_, chunks_), y, log_sums,
               Lane(*this, arena));
    });
  }

 private:
  struct Lane {
    Lane(const Forward& f, Arena& arena)
        : q(arena.take<C>(f.chunk_ * f.p_.feature_width)),
          sums(arena.take<C>(f.chunk_ * f.p_.value_width)),
          running(arena.take<RunningSum>(f.chunk_)),
          scores(arena.take<C>(kQueries * kScoreStep)),
          packed_k(arena.take<C>(f.tiled_rows() * f.p_.features)),
          v(arena.take<C>(f.tiled_rows() * f.p_.value_width)),
          copy(arena.take<C>(
              Problem<T>::kSameType ? 0 : kKeys * std::max(f.p_.features, f.p_.values))) {}
    C *q, *sums;
    RunningSum* running;
    C *scores, *packed_k, *v, *copy;
  };

  /// The rows of keys that are packed for the tiles.
  std::int64_t tiled_rows() const { return chunk_ > kFewQueries ? kKeys : 0; }

  void run_task(std::int64_t at, std::int64_t chunk, const View& y, const View& log_sums,
                const Lane& lane) const {
    const std::int64_t i0 = chunk * chunk_, n = std::min(chunk_, p_.queries - i0);
    if (n <= 0) return;
    p_.loops().load(n, p_.features, p_.row(p_.args.q, at, i0), p_.args.q.strides[2], p_.args.scale,
                    lane.q, p_.feature_width);
    std::fill_n(lane.sums, n * p_.value_width, C(0));
    std::fill_n(lane.running, n, RunningSum{0, -std::numeric_limits<double>::infinity(), false});
    const std::int64_t keys = p_.args.causal ? std::min(p_.keys, i0 + n) : p_.keys;
    for (std::int64_t j0 = 0; j0 < keys; j0 += kKeys) {
      add_keys(at, i0, n, j0, std::min(kKeys, keys - j0), lane);
    }
    finish(at, i0, n, y, log_sums, lane);
  }

  // Adds keys [j0, j0 + count) to the sums of n queries from i0 on.
  void add_keys(std::int64_t at, std::int64_t i0, std::int64_t n, std::int64_t j0,
                std::int64_t count, const Lane& lane) const {
    const Rows<C> k = p_.rows(p_.args.k, at, j0, count, lane.copy);
    if (n <= kFewQueries) {
      for (std::int64_t i = 0; i < n; ++i) {
        score_loops<C>().products(count, p_.features, lane.q + i * p_.feature_width, k.data, k.step,
                                  lane.scores + i * kScoreStep);
      }
      add_scores(at, i0, n, j0, count, lane, lane.running, lane.sums);
      const Rows<C> v = p_.rows(p_.args.v, at, j0, count, lane.copy);
      for (std::int64_t i = 0; i < n; ++i) {
        score_loops<C>().weigh(p_.visible(i0 + i, j0, count), p_.values,
                               lane.scores + i * kScoreStep, v.data, v.step,
                               lane.sums + i * p_.value_width);
      }
      return;
    }
    pack_transposed(count, p_.features, k.data, k.step, p_.key_width, lane.packed_k);
    p_.loops().load(count, p_.values, p_.row(p_.args.v, at, j0), p_.args.v.strides[2], 1, lane.v,
                    p_.value_width);
    for (std::int64_t r = 0; r < n; r += kQueries) {
      const std::int64_t rows = std::min(kQueries, n - r), i = i0 + r;
      if (p_.visible(i + rows - 1, j0, count) == 0) continue;
      C* const sums = lane.sums + r * p_.value_width;
      multiply_by_keys(p_, i, rows, j0, count, p_.features, lane.q + r * p_.feature_width,
                       p_.feature_width, lane.packed_k, lane.scores);
      add_scores(at, i, rows, j0, count, lane, lane.running + r, sums);
      add_over_keys(p_, i, rows, j0, count, lane.scores, lane.v, p_.value_tile, p_.value_width,
                    sums);
    }
  }

  // Turns scores into what multiplies v, and the earlier sums into those by the new maximum.
  void add_scores(std::int64_t at, std::int64_t i, std::int64_t rows, std::int64_t j0,
                  std::int64_t count, const Lane& lane, RunningSum* running, C* sums) const {
    const ScoreLoops<C>& loops = score_loops<C>();
    for (std::int64_t r = 0; r < rows; ++r) {
      C* const scores = lane.scores + r * kScoreStep;
      const std::int64_t n = p_.visible(i + r, j0, count), whole = p_.whole_vectors(n);
      if (whole < count) std::fill(scores + whole, scores + count, C(0));
      if (n == 0) continue;
      RunningSum& state = running[r];
      state.sees |= p_.add_mask(at, i + r, j0, n, scores);
      C most = static_cast<C>(state.most);
      const C shrink = loops.exponentials(n, scores, most, state.sum);
      state.most = static_cast<double>(most);
      if (shrink != C(1)) loops.multiply(p_.value_width, shrink, sums + r * p_.value_width);
      if (p_.args.kept) loops.drop(n, p_.kept(at, i + r, j0), C(1), scores);
    }
  }

  void finish(std::int64_t at, std::int64_t i0, std::int64_t n, const View& y, const View& log_sums,
              const Lane& lane) const {
    C* const logs = log_sums.as<C>() + at * p_.queries + i0;
    T* const to = y.as<T>() + (at * p_.queries + i0) * p_.values;
    for (std::int64_t i = 0; i < n; ++i) {
      const RunningSum& state = lane.running[i];
      C* const sums = lane.sums + i * p_.value_width;
      if (!state.sees) std::fill_n(sums, p_.values, C(0));
      const double factor = state.sees ? p_.args.keep_scale / state.sum : 1;
      p_.loops().store(p_.values, sums, factor, to + i * p_.values);
      logs[i] = state.sees ? static_cast<C>(state.most + std::log(state.sum))
                           : std::numeric_limits<C>::infinity();
    }
  }

  Problem<T> p_;
  std::int64_t chunks_, chunk_;
  int lanes_;
};

// --- Backward ------------------------------------------------------------------------------------

// The blocks of keys of one (a, b) are divided into `parts` groups, and so are those of queries. In
// round r, group g of the keys meets group (g + r) % parts of the queries: so no two tasks of a
// round add to the same sums, and each sum has an order of its own.
template <class T>
class Backward {
 public:
  using C = accumulate_t<T>;

  explicit Backward(const AttentionArgs& args) : p_(args) {
    const std::int64_t most = std::min(ceil_div(p_.queries, kQueries), ceil_div(p_.keys, kKeys));
    const std::int64_t wanted = ceil_div(kTasks, std::max<std::int64_t>(p_.batch, 1));
    parts_ = std::clamp<std::int64_t>(most, 1, wanted);
    lanes_ = team(p_, p_.batch * parts_);
  }

  std::size_t workspace_bytes() const {
    Arena arena;
    const Shared shared(*this, arena);
    Arena of_lane;
    const Lane lane(*this, of_lane);
    return arena.bytes() + of_lane.bytes() * static_cast<std::size_t>(lanes_);
  }

  void run(const AttentionGradArgs& grads, void* workspace) const {
    Arena arena(workspace);
    Shared shared(*this, arena);
    use_gradients(grads, shared);
    char* const lanes = static_cast<char*>(workspace) + arena.bytes();
    Arena counted;
    const Lane sizes(*this, counted);
    add_products(grads, shared.common);
    for (std::int64_t round = 0; round < parts_; ++round) {
      for_tasks(p_.batch * parts_, lanes_, [&](std::int64_t task, std::int64_t lane) {
        Arena own(lanes + static_cast<std::size_t>(lane) * counted.bytes());
        run_task(grads, shared, task / parts_, from_both_ends(task % parts_, parts_), round,
                 Lane(*this, own));
      });
    }
  }

 private:
  // The sums of all tasks. Those of keys and values are here if they take several rounds.
  struct Shared {
    Shared(const Backward& b, Arena& arena)
        : common(arena.take<C>(b.p_.batch * b.p_.queries)),
          grad_q(arena.take<C>(in_place(b.p_.features, b.p_.feature_width)
                                   ? 0
                                   : b.p_.batch * b.p_.queries * b.p_.feature_width)),
          grad_k(arena.take<C>(b.parts_ == 1 ? 0 : b.p_.batch * b.p_.keys * b.p_.feature_width)),
          grad_v(arena.take<C>(b.parts_ == 1 ? 0 : b.p_.batch * b.p_.keys * b.p_.value_width)) {}
    C* common;  ///< the product of y and grad_y
    C *grad_q, *grad_k, *grad_v;
  };
  struct Lane {
    Lane(const Backward& b, Arena& arena)
        : q(arena.take<C>(kQueries * b.p_.feature_width)),
          grad_y(arena.take<C>(kQueries * b.p_.value_width)),
          weights(arena.take<C>(kQueries * kScoreStep)),
          grads(arena.take<C>(kQueries * kScoreStep)),
          k(arena.take<C>(kKeys * b.p_.feature_width)),
          packed_k(arena.take<C>(kKeys * b.p_.features)),
          packed_v(arena.take<C>(kKeys * b.p_.values)),
          copy(arena.take<C>(kKeys * b.p_.values)),
          grad_k(arena.take<C>(b.parts_ == 1 ? kKeys * b.p_.feature_width : 0)),
          grad_v(arena.take<C>(b.parts_ == 1 ? kKeys * b.p_.value_width : 0)) {}
    C *q, *grad_y, *weights, *grads, *k, *packed_k, *packed_v, *copy, *grad_k, *grad_v;
  };

  /// Whether sums of this width may lie in the gradient's own memory.
  static bool in_place(std::int64_t n, std::int64_t width) {
    return Problem<T>::kSameType && n == width;
  }

  void use_gradients(const AttentionGradArgs& grads, Shared& shared) const {
    if (in_place(p_.features, p_.feature_width)) shared.grad_q = grads.grad_q.as<C>();
  }

  void add_products(const AttentionGradArgs& grads, C* common) const {
    const std::int64_t grain = lanes_ == 1 ? p_.batch * p_.queries : 1;
    parallel_for(p_.batch * p_.queries, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        common[i] = static_cast<C>(p_.loops().dot(p_.values, grads.grad_y.as<T>() + i * p_.values,
                                                  grads.y.as<T>() + i * p_.values));
      }
    });
  }

  /// Blocks of queries or keys, from `begin` to `end`.
  struct Span {
    std::int64_t begin, end;
  };
  Span part(std::int64_t n, std::int64_t block, std::int64_t index) const {
    const std::int64_t blocks = ceil_div(n, block);
    return {std::min(n, blocks * index / parts_ * block),
            std::min(n, blocks * (index + 1) / parts_ * block)};
  }

  void run_task(const AttentionGradArgs& grads, const Shared& shared, std::int64_t at,
                std::int64_t group, std::int64_t round, const Lane& lane) const {
    const Span queries = part(p_.queries, kQueries, (group + round) % parts_);
    const Span keys = part(p_.keys, kKeys, group);
    const bool first = round == 0, last = round == parts_ - 1;
    C* const grad_q = grads.grad_q ? shared.grad_q + at * p_.queries * p_.feature_width : nullptr;
    if (first && grads.grad_q) {
      std::fill(grad_q + queries.begin * p_.feature_width, grad_q + queries.end * p_.feature_width,
                C(0));
    }
    for (std::int64_t j0 = keys.begin; j0 < keys.end; j0 += kKeys) {
      const std::int64_t count = std::min(kKeys, keys.end - j0), row = at * p_.keys + j0;
      C* const grad_k = parts_ == 1 ? lane.grad_k : shared.grad_k + row * p_.feature_width;
      C* const grad_v = parts_ == 1 ? lane.grad_v : shared.grad_v + row * p_.value_width;
      if (first) {
        std::fill_n(grad_k, count * p_.feature_width, C(0));
        std::fill_n(grad_v, count * p_.value_width, C(0));
      }
      add_keys(grads, shared.common, at, queries, j0, count, lane, grad_q, grad_k, grad_v);
      if (last) {
        store(grads.grad_k, row, count, p_.features, 1, grad_k, p_.feature_width);
        store(grads.grad_v, row, count, p_.values, 1, grad_v, p_.value_width);
      }
    }
    if (last && grads.grad_q) {
      store(grads.grad_q, at * p_.queries + queries.begin, queries.end - queries.begin, p_.features,
            p_.args.scale, grad_q + queries.begin * p_.feature_width, p_.feature_width);
    }
  }

  void store(const View& grad, std::int64_t row, std::int64_t rows, std::int64_t n, double factor,
             const C* sums, std::int64_t width) const {
    if (!grad) return;
    for (std::int64_t i = 0; i < rows; ++i) {
      p_.loops().store(n, sums + i * width, factor, grad.as<T>() + (row + i) * n);
    }
  }

  // What keys [j0, j0 + count) and the queries of a part add to the sums.
  void add_keys(const AttentionGradArgs& grads, const C* common, std::int64_t at,
                const Span& queries, std::int64_t j0, std::int64_t count, const Lane& lane,
                C* grad_q, C* grad_k, C* grad_v) const {
    if (p_.visible(queries.end - 1, j0, count) == 0) return;
    const bool scores_matter = grads.grad_q || grads.grad_k;
    p_.loops().load(count, p_.features, p_.row(p_.args.k, at, j0), p_.args.k.strides[2], 1, lane.k,
                    p_.feature_width);
    pack_transposed(count, p_.features, lane.k, p_.feature_width, p_.key_width, lane.packed_k);
    if (scores_matter) {
      const Rows<C> v = p_.rows(p_.args.v, at, j0, count, lane.copy);
      pack_transposed(count, p_.values, v.data, v.step, p_.key_width, lane.packed_v);
    }
    for (std::int64_t i = queries.begin; i < queries.end; i += kQueries) {
      const std::int64_t rows = std::min(kQueries, queries.end - i);
      if (p_.visible(i + rows - 1, j0, count) == 0) continue;
      load_queries(grads, at, i, rows, lane);
      multiply_by_keys(p_, i, rows, j0, count, p_.features, lane.q, p_.feature_width, lane.packed_k,
                       lane.weights);
      if (scores_matter) {
        multiply_by_keys(p_, i, rows, j0, count, p_.values, lane.grad_y, p_.value_width,
                         lane.packed_v, lane.grads);
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        from_scores(grads.log_sums.as<C>()[at * p_.queries + i + r],
                    common[at * p_.queries + i + r], at, i + r, j0, count,
                    lane.weights + r * kScoreStep, lane.grads + r * kScoreStep, scores_matter);
      }
      if (grads.grad_v) {
        add_over_queries(p_, i, rows, j0, count, lane.weights, lane.grad_y, p_.value_tile,
                         p_.value_width, grad_v);
      }
      if (grads.grad_k) {
        add_over_queries(p_, i, rows, j0, count, lane.grads, lane.q, p_.feature_tile,
                         p_.feature_width, grad_k);
      }
      if (grads.grad_q) {
        add_over_keys(p_, i, rows, j0, count, lane.grads, lane.k, p_.feature_tile, p_.feature_width,
                      grad_q + i * p_.feature_width);
      }
    }
  }

  void load_queries(const AttentionGradArgs& grads, std::int64_t at, std::int64_t i,
                    std::int64_t rows, const Lane& lane) const {
    p_.loops().load(rows, p_.features, p_.row(p_.args.q, at, i), p_.args.q.strides[2],
                    p_.args.scale, lane.q, p_.feature_width);
    p_.loops().load(rows, p_.values, grads.grad_y.as<T>() + (at * p_.queries + i) * p_.values,
                    p_.values, 1, lane.grad_y, p_.value_width);
  }

  // One row: scores become the weights that multiply v, and the gradients of the weights those of
  // the scores.
  void from_scores(C log_sum, C common, std::int64_t at, std::int64_t i, std::int64_t j0,
                   std::int64_t count, C* scores, C* grads, bool scores_matter) const {
    const ScoreLoops<C>& loops = score_loops<C>();
    const bool blind = log_sum == std::numeric_limits<C>::infinity();
    const std::int64_t n = blind ? 0 : p_.visible(i, j0, count);
    if (n > 0) {
      p_.add_mask(at, i, j0, n, scores);
      loops.weights(p_.whole_vectors(n), log_sum, scores);
      const C keep_scale = static_cast<C>(p_.args.keep_scale);
      if (scores_matter) {
        if (p_.args.kept) loops.drop(n, p_.kept(at, i, j0), keep_scale, grads);
        loops.score_grads(p_.whole_vectors(n), scores, common, grads);
      }
      if (p_.args.kept) loops.drop(n, p_.kept(at, i, j0), keep_scale, scores);
    }
    if (n < count) {
      std::fill(scores + n, scores + count, C(0));
      std::fill(grads + n, grads + count, C(0));
    }
  }

  Problem<T> p_;
  std::int64_t parts_;
  int lanes_;
};

// --- The table -----------------------------------------------------------------------------------

void require_floating(const char* op, const Stream& stream, const View& q) {
  if (!is_floating(q.dtype)) throw_unsupported(op, stream.device, q.dtype);
}

template <template <class> class Pass>
std::size_t workspace_bytes(const AttentionArgs& args) {
  std::size_t bytes = 0;
  dispatch_floating(args.q.dtype, "attention",
                    [&]<class T>() { bytes = Pass<T>(args).workspace_bytes(); });
  return bytes;
}

void forward(const Stream& stream, const AttentionArgs& args, const View& y, const View& log_sums,
             void* workspace) {
  require_floating("attention", stream, args.q);
  dispatch_floating(args.q.dtype, "attention",
                    [&]<class T>() { Forward<T>(args).run(y, log_sums, workspace); });
}

void backward(const Stream& stream, const AttentionArgs& args, const AttentionGradArgs& grads,
              void* workspace) {
  require_floating("attention_backward", stream, args.q);
  dispatch_floating(args.q.dtype, "attention_backward",
                    [&]<class T>() { Backward<T>(args).run(grads, workspace); });
}

}  // namespace

AttentionKernels attention_kernels() {
  return {.workspace_bytes = workspace_bytes<Forward>,
          .forward = forward,
          .backward_workspace_bytes = workspace_bytes<Backward>,
          .backward = backward};
}

}  // namespace weft::cpu
