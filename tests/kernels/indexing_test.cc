// Selecting and adding at positions against their definition. tests/tensor has literal values.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

std::vector<double> random_index(std::int64_t n, std::int64_t bound, std::uint64_t seed) {
  std::vector<double> v = random_values(n, 0, static_cast<double>(bound), seed);
  for (double& x : v) x = std::floor(x);
  return v;
}

struct IndexCase {
  Shape shape;
  Strides strides;
  int dim;
};

const std::vector<IndexCase>& index_cases() {
  static const std::vector<IndexCase> all{
      {{5}, {1}, 0},
      {{5}, {3}, 0},
      {{6, 7}, {7, 1}, 0},
      {{6, 7}, {7, 1}, 1},
      {{6, 7}, {1, 6}, 0},
      {{6, 7}, {1, 6}, 1},
      {{6, 7}, {20, 2}, 1},
      {{4, 5, 6}, {30, 6, 1}, 1},
      {{4, 5, 6}, {1, 4, 20}, 1},
      {{4, 5, 6}, {0, 6, 1}, 1},
      {{3, 0}, {1, 1}, 0},
      {{3, 4, 5, 6}, {120, 1, 24, 4}, 0},  // channels last
      {{60, 28, 30}, {840, 30, 1}, 0},
      {{60, 700}, {700, 1}, 1},
  };
  return all;
}

void index_add(const IndexingKernels& kernels, const Stream& on, const View& x, int dim,
               const View& index, const View& y) {
  const DeviceBytes workspace(on.device, kernels.index_add_workspace_bytes(on, x, dim, y));
  kernels.index_add(on, x, dim, index, y, workspace.data());
}

using Scatter = decltype(IndexingKernels::scatter) IndexingKernels::*;

void scatter(Scatter entry, const IndexingKernels& kernels, const Stream& on, const View& x,
             int dim, const View& index, const View& y) {
  const DeviceBytes workspace(on.device, kernels.scatter_workspace_bytes(on, x, dim, y));
  (kernels.*entry)(on, x, dim, index, y, workspace.data());
}

class Indexing : public TargetTest {
 protected:
  /// What run(kernels, stream, x, index, y) writes into a y with the values `before` is what the
  /// definition writes, for x and y in their own layouts and an index with gaps.
  template <class Run>
  void check(DType dtype, const Shape& x_shape, const Strides& x_strides, const Shape& index_shape,
             const std::vector<double>& index, const Shape& y_shape, const Strides& y_strides,
             const std::vector<double>& before, Run run) {
    Buffer x(device(), dtype, x_shape, x_strides), y(device(), dtype, y_shape, y_strides);
    // Sums of small integers are exact in every dtype, except bf16 above 256; u8 wraps at 256: 70
    // times 1 plus 3 stays below.
    x.set(before.empty() ? values_for(dtype, numel(x_shape), -9, 9, 4)
                         : values_for(DType::i32, numel(x_shape), 0, 2, 6));
    if (!before.empty()) y.set(before);
    Strides gaps = contiguous_strides(index_shape);
    for (std::int64_t& s : gaps) s *= 2;
    run(kernels().indexing, stream, x.view(),
        Buffer(device(), DType::i64, index_shape, gaps, index).view(), y.view());
    const Buffer dense(Device(), dtype, x_shape, x.values());
    Buffer want(Device(), dtype, y_shape);
    if (!before.empty()) want.set(before);
    run(reference_kernels().indexing, current_stream(Device()), dense.view(),
        Buffer(Device(), DType::i64, index_shape, index).view(), want.view());
    expect_equal(y.values(), want.values());
  }
  static std::vector<double> counted(DType dtype, const Shape& shape) {
    std::vector<double> v = values_for(dtype, numel(shape), 0, 3, 4);
    for (double& x : v) x = std::floor(x);
    return v;
  }
};
WEFT_ON_EVERY_TARGET(Indexing);

Strides reversed_strides(const Shape& shape) {
  Strides strides = contiguous_strides(shape);
  std::int64_t step = 1;
  for (int d = 0; d < shape.size(); ++d) {
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

bool repeats(const IndexCase& c) {
  return std::find(c.strides.begin(), c.strides.end(), 0) != c.strides.end();
}

TEST_P(Indexing, SelectAndAdd) {
  for (const IndexCase& c : index_cases()) {
    for (const DType dtype : kAllDTypes) {
      for (const std::int64_t k : {0, 1, 9, 70}) {
        SCOPED_TRACE(to_string(c.shape) + " dim " + std::to_string(c.dim) + " " + to_string(dtype));
        const std::vector<double> order = random_index(k, c.shape[c.dim], 5);
        Shape picked = c.shape;
        picked[c.dim] = k;
        const auto select = [&](const IndexingKernels& kernels, const Stream& on, const View& x,
                                const View& index,
                                const View& y) { kernels.index_select(on, x, c.dim, index, y); };
        for (const Strides& strides : {contiguous_strides(picked), reversed_strides(picked)}) {
          check(dtype, c.shape, c.strides, {k}, order, picked, strides, {}, select);
        }
        if (repeats(c)) continue;
        check(
            dtype, picked, contiguous_strides(picked), {k}, order, c.shape, c.strides,
            counted(dtype, c.shape),
            [&](const IndexingKernels& kernels, const Stream& on, const View& x, const View& index,
                const View& y) { index_add(kernels, on, x, c.dim, index, y); });
      }
    }
  }
}

TEST_P(Indexing, GatherAndScatter) {
  for (const IndexCase& c : index_cases()) {
    if (numel(c.shape) == 0) continue;
    for (const DType dtype : kAllDTypes) {
      for (const std::int64_t k : {0, 1, 11}) {
        // In the other dimensions the index may be shorter than x.
        Shape out = c.shape;
        for (std::int64_t& d : out) d = (d + 1) / 2;
        out[c.dim] = k;
        SCOPED_TRACE(to_string(c.shape) + " dim " + std::to_string(c.dim) + " " + to_string(dtype));
        const std::vector<double> picks = random_index(numel(out), c.shape[c.dim], 8);
        check(dtype, c.shape, c.strides, out, picks, out, contiguous_strides(out), {},
              [&](const IndexingKernels& kernels, const Stream& on, const View& x,
                  const View& index, const View& y) { kernels.gather(on, x, c.dim, index, y); });
        if (repeats(c)) continue;
        for (const Scatter entry : {&IndexingKernels::scatter_add, &IndexingKernels::scatter}) {
          check(dtype, out, contiguous_strides(out), out, picks, c.shape, c.strides,
                counted(dtype, c.shape),
                [&](const IndexingKernels& kernels, const Stream& on, const View& x,
                    const View& index,
                    const View& y) { scatter(entry, kernels, on, x, c.dim, index, y); });
        }
      }
    }
  }
}

// With this many lines CUDA uses one thread per line; with fewer, one per element of y.
TEST_P(Indexing, AddAlongManyLines) {
  const std::int64_t lines = 16500;
  const std::vector<double> order{1, 0, 1, 1, 0};
  const Buffer index(device(), DType::i64, {5}, order);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32}) {
    const std::vector<double> added = rounded(DType::i32, random_values(5 * lines, -9, 9));
    std::vector<double> every, want(static_cast<std::size_t>(2 * lines), 1);
    for (std::int64_t i = 0; i < 5 * lines; ++i) {
      every.push_back(order[static_cast<std::size_t>(i / lines)]);
      want[static_cast<std::size_t>(static_cast<std::int64_t>(every.back()) * lines + i % lines)] +=
          added[static_cast<std::size_t>(i)];
    }
    const Buffer x(device(), dtype, {5, lines}, added);
    Buffer y(device(), dtype, {2, lines}, std::vector<double>(want.size(), 1));
    index_add(kernels().indexing, stream, x.view(), 0, index.view(), y.view());
    expect_equal(y.values(), want);
    const Buffer full(device(), DType::i64, {5, lines}, every);
    Buffer z(device(), dtype, {2, lines}, std::vector<double>(want.size(), 1));
    scatter(&IndexingKernels::scatter_add, kernels().indexing, stream, x.view(), 0, full.view(),
            z.view());
    expect_equal(z.values(), want);
  }
}

// Each addition is rounded, in the order of the indices, also where there are few lines: a sum does
// not depend on the shape or the device.
TEST_P(Indexing, SumsOfEqualIndicesHaveTheBitsOfAPlainLoop) {
  const std::int64_t terms = 40, places = 3;
  for (const std::int64_t lines : {1, 7, 16500}) {
    const std::vector<double> order = random_index(terms, places, 11);
    std::vector<double> every;
    for (std::int64_t i = 0; i < terms * lines; ++i) {
      every.push_back(order[static_cast<std::size_t>(i / lines)]);
    }
    const Buffer index(device(), DType::i64, {terms}, order);
    const Buffer full(device(), DType::i64, {terms, lines}, every);
    for (const DType dtype : kFloating) {
      SCOPED_TRACE(std::to_string(lines) + " lines of " + to_string(dtype));
      const auto values = [&](std::int64_t n, std::uint64_t seed) {
        return rounded(dtype, random_values(n * lines, -9, 9, seed));
      };
      const std::vector<double> before = values(places, 12), added = values(terms, 13);
      std::vector<double> want = before;
      for (std::int64_t i = 0; i < terms * lines; ++i) {
        const auto from = static_cast<std::size_t>(i);
        // A sum of two numbers of 24 bits in f64, rounded to f32, is their sum in f32.
        double& sum = want[static_cast<std::size_t>(static_cast<std::int64_t>(every[from]) * lines +
                                                    i % lines)];
        sum = dtype == DType::bf16 ? rounded(DType::f32, sum + added[from]) : sum + added[from];
        sum = rounded(dtype, sum);
      }
      const Buffer x(device(), dtype, {terms, lines}, added);
      for (int run = 0; run < 2; ++run) {
        Buffer y(device(), dtype, {places, lines}, before);
        index_add(kernels().indexing, stream, x.view(), 0, index.view(), y.view());
        expect_equal(y.values(), want);
        Buffer z(device(), dtype, {places, lines}, before);
        scatter(&IndexingKernels::scatter_add, kernels().indexing, stream, x.view(), 0, full.view(),
                z.view());
        expect_equal(z.values(), want);
      }
    }
  }
}

// Lists so long that CUDA sorts them, for every layout of y: each sum still has the bits of the
// definition's, which goes through the list. Entries out of range are left out.
TEST_P(Indexing, LongListsAreAddedInTheirOrder) {
  for (const IndexCase& c : std::vector<IndexCase>{{{5}, {3}, 0},
                                                   {{8, 7}, {7, 1}, 0},
                                                   {{7, 8}, {8, 1}, 1},
                                                   {{8, 7}, {1, 8}, 0},
                                                   {{4, 5, 6}, {1, 24, 4}, 1},
                                                   {{2, 9, 3}, {60, 6, 2}, 1},
                                                   {{70000}, {1}, 0},
                                                   {{1, 3}, {3, 1}, 0}}) {
    const std::int64_t places = c.shape[c.dim];
    // CUB sorts more than some 2,000 in several passes.
    const std::int64_t terms = c.shape.size() == 1 ? 5000 : 300;
    Shape source = c.shape;
    source[c.dim] = terms;
    const std::vector<double> any = random_index(terms, places, 11);
    std::vector<double> falling = any, with_bad = any;
    std::ranges::sort(falling, std::greater());
    std::vector<std::vector<double>> lists{any, falling,
                                           std::vector<double>(any.size(), places - 1)};
    const double bad[] = {-1, static_cast<double>(places), 0x1p32, 0x1p62};
    for (std::size_t j = 0; j < with_bad.size(); j += 3) with_bad[j] = bad[j / 3 % 4];
    if (!device().is_cpu()) lists.push_back(with_bad);
    for (const DType dtype : kAllDTypes) {
      const auto values = [&](const Shape& shape, std::uint64_t seed) {
        return rounded(dtype, values_for(dtype, numel(shape), -9, 9, seed));
      };
      const std::vector<double> added = values(source, 13), before = values(c.shape, 14);
      const Buffer x(device(), dtype, source, reversed_strides(source), added);
      for (const std::vector<double>& list : lists) {
        SCOPED_TRACE(to_string(c.shape) + " dim " + std::to_string(c.dim) + " " + to_string(dtype));
        // The definition adds 0 where the list is out of range.
        std::vector<double> good = list, kept = added;
        const std::int64_t inner = contiguous_strides(source)[c.dim];
        for (std::int64_t i = 0; i < numel(source); ++i) {
          const double at = list[static_cast<std::size_t>(i / inner % terms)];
          if (at < 0 || at >= static_cast<double>(places)) kept[static_cast<std::size_t>(i)] = 0;
        }
        for (double& at : good) at = at < 0 || at >= static_cast<double>(places) ? 0 : at;
        Buffer want(Device(), dtype, c.shape, before);
        index_add(reference_kernels().indexing, current_stream(Device()),
                  Buffer(Device(), dtype, source, kept).view(), c.dim,
                  Buffer(Device(), DType::i64, {terms}, good).view(), want.view());
        const Buffer index(device(), DType::i64, {terms}, Strides{2}, list);
        Buffer y(device(), dtype, c.shape, c.strides, before);
        index_add(kernels().indexing, stream, x.view(), c.dim, index.view(), y.view());
        expect_equal(y.values(), want.values());
      }
    }
  }
}

TEST_P(Indexing, CudaSortsListsFrom256Entries) {
  const Buffer y(device(), DType::f32, {5}, std::vector<double>(5));
  for (const std::int64_t terms : {255, 256}) {
    const Buffer x(device(), DType::f32, {terms},
                   std::vector<double>(static_cast<std::size_t>(terms)));
    EXPECT_EQ(kernels().indexing.index_add_workspace_bytes(stream, x.view(), 0, y.view()) > 0,
              terms == 256 && !device().is_cpu());
  }
}

// Few fibres, just too short for CUDA to sort them and just long enough: each element has the bits
// of the definition's. Entries out of range write nothing, not even in memory that is y's
// neighbour.
TEST_P(Indexing, LongFibresAreWrittenInTheirOrder) {
  for (const auto& [shape, dim] : std::vector<std::pair<Shape, int>>{
           {{6}, 0}, {{9, 7}, 0}, {{7, 9}, 1}, {{4, 6, 6}, 1}, {{70000}, 0}}) {
    // y is all but the last place.
    const std::int64_t places = shape[dim] - 1, inner = contiguous_strides(shape)[dim];
    for (const std::int64_t terms : {255, 256, 5000}) {
      if (terms == 5000 && shape.size() > 1) continue;
      Shape source = shape;
      for (std::int64_t& d : source) d = (d + 1) / 2;
      source[dim] = terms;
      const std::vector<double> good = random_index(numel(source), places, 11);
      std::vector<std::vector<double>> lists{good};
      if (!device().is_cpu()) {
        const double bad[] = {-1, static_cast<double>(places), 0x1p32, 0x1p62};
        std::vector<double>& with_bad = lists.emplace_back(good);
        for (std::size_t j = 0; j < with_bad.size(); j += 3) with_bad[j] = bad[j / 3 % 4];
      }
      for (const DType dtype : kAllDTypes) {
        SCOPED_TRACE(to_string(shape) + " dim " + std::to_string(dim) + " " + to_string(dtype));
        const auto values = [&](const Shape& of, std::uint64_t seed) {
          return rounded(dtype, values_for(dtype, numel(of), -9, 9, seed));
        };
        const std::vector<double> added = values(source, 13), before = values(shape, 14);
        const Buffer x(device(), dtype, source, reversed_strides(source), added);
        const Buffer dense(Device(), dtype, source, added);
        for (const std::vector<double>& list : lists) {
          std::vector<double> to_last = list;
          for (double& at : to_last) {
            if (at < 0 || at > static_cast<double>(places)) at = static_cast<double>(places);
          }
          const Buffer index(device(), DType::i64, source, reversed_strides(source), list);
          const Buffer all_good(Device(), DType::i64, source, to_last);
          for (const Scatter entry : {&IndexingKernels::scatter_add, &IndexingKernels::scatter}) {
            Buffer want(Device(), dtype, shape, before);
            scatter(entry, reference_kernels().indexing, current_stream(Device()), dense.view(),
                    dim, all_good.view(), want.view());
            std::vector<double> wanted = want.values();
            for (std::int64_t i = 0; i < numel(shape); ++i) {
              if (i / inner % shape[dim] < places) continue;
              wanted[static_cast<std::size_t>(i)] = before[static_cast<std::size_t>(i)];
            }
            for (const Strides& strides : {contiguous_strides(shape), reversed_strides(shape)}) {
              Buffer y(device(), dtype, shape, strides, before);
              View part = y.view();
              part.shape[dim] = places;
              scatter(entry, kernels().indexing, stream, x.view(), dim, index.view(), part);
              expect_equal(y.values(), wanted);
            }
          }
        }
      }
    }
  }
}

// Whatever the length of y, on both sides of 2^20, too.
TEST_P(Indexing, CudaSortsLongFibresIfTheyAreFew) {
  const auto bytes = [&](const Shape& x, const Shape& y) {
    const auto view = [](const Shape& shape) {
      return View{nullptr, DType::f32, shape, contiguous_strides(shape)};
    };
    return kernels().indexing.scatter_workspace_bytes(stream, view(x), 0, view(y));
  };
  const auto sorts = [&](const Shape& x, const Shape& y) { return bytes(x, y) > 0; };
  const bool can = !device().is_cpu();
  constexpr std::int64_t k2To20 = 1 << 20, k2To30 = 1 << 30;
  EXPECT_FALSE(sorts({255}, {5}));
  EXPECT_FALSE(sorts({255}, {k2To20}));
  for (const std::int64_t length : {std::int64_t{5}, k2To20, k2To20 + 1, 4 * k2To30 - 1}) {
    EXPECT_EQ(sorts({256}, {length}), can) << length;
    EXPECT_EQ(sorts({k2To20 + 1}, {length}), can) << length;
  }
  EXPECT_EQ(sorts({256, 4096}, {5, 4096}), can);
  EXPECT_FALSE(sorts({256, 4097}, {5, 4097}));
  // Keys are numbers of 32 bits, and one is left for what is out of range.
  EXPECT_FALSE(sorts({256}, {4 * k2To30}));
  EXPECT_EQ(sorts({256, 4}, {4 * k2To30 - 1, 4}), can) << "one fibre after the other";
  // At most 2^22 entries at a time, or a fibre.
  EXPECT_EQ(bytes({k2To20, 4096}, {5, 4096}), bytes({k2To20, 4}, {5, 4}));
  EXPECT_EQ(bytes({5 * k2To20, 3}, {5, 3}), bytes({5 * k2To20}, {5}));
}

TEST_P(Indexing, LongFibresAreWrittenInGroups) {
  constexpr std::int64_t kFibres = 3, kLength = 3 << 19, kPlaces = 10;  // together above 2^22
  const std::vector<double> list = random_index(kFibres * kLength, kPlaces, 15);
  std::vector<double> added, sums(kFibres * kPlaces, 0), last(kFibres * kPlaces, 0);
  for (std::int64_t i = 0; i < kFibres * kLength; ++i) {
    added.push_back(static_cast<double>(i % 7));
    const auto at = static_cast<std::size_t>(i / kLength * kPlaces) +
                    static_cast<std::size_t>(list[static_cast<std::size_t>(i)]);
    sums[at] += added.back();
    last[at] = added.back();
  }
  const Buffer x(device(), DType::i32, {kFibres, kLength}, added);
  const Buffer index(device(), DType::i64, {kFibres, kLength}, list);
  for (const Scatter entry : {&IndexingKernels::scatter_add, &IndexingKernels::scatter}) {
    Buffer y(device(), DType::i32, {kFibres, kPlaces}, std::vector<double>(sums.size(), 0));
    scatter(entry, kernels().indexing, stream, x.view(), 1, index.view(), y.view());
    expect_equal(y.values(), entry == &IndexingKernels::scatter ? last : sums);
  }
}

// With many lines and with few, as above.
TEST_P(Indexing, OfEqualIndicesTheLastIsWritten) {
  for (const std::int64_t lines : {1, 16500}) {
    std::vector<double> added, every, want;
    for (std::int64_t i = 0; i < 5 * lines; ++i) {
      added.push_back(static_cast<double>(i % 100));
      every.push_back(i / lines == 3 ? 1 : 0);
    }
    for (std::int64_t i = 0; i < 3 * lines; ++i) {
      const std::int64_t from = i < lines ? 4 * lines + i : 3 * lines + i - lines;
      want.push_back(i < 2 * lines ? added[static_cast<std::size_t>(from)] : 7);
    }
    const Buffer index(device(), DType::i64, {5, lines}, every);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
      const Buffer x(device(), dtype, {5, lines}, added);
      Buffer y(device(), dtype, {3, lines}, std::vector<double>(want.size(), 7));
      scatter(&IndexingKernels::scatter, kernels().indexing, stream, x.view(), 0, index.view(),
              y.view());
      expect_equal(y.values(), want);
    }
  }
}

TEST_P(Indexing, CountsAndFindsWhatIsTrue) {
  for (const std::int64_t n : {1, 15, 4095, 4096, 4097, 3 * 4096, 100000}) {
    for (const double share : {0.0, 0.01, 0.5, 1.0}) {
      SCOPED_TRACE(std::to_string(n) + " " + std::to_string(share));
      std::vector<double> holds = random_values(n, 0, 1, 9), ends, want;
      for (std::int64_t i = 0; i < n; ++i) {
        double& it = holds[static_cast<std::size_t>(i)];
        it = it < share;
        if (it) want.push_back(static_cast<double>(i));
        if (i % kTruePiece == 0) ends.push_back(0);
        ends.back() = static_cast<double>(want.size());
      }
      const Buffer mask(device(), DType::boolean, {n}, holds);
      Buffer counts(device(), DType::i64, {true_pieces(n)});
      kernels().indexing.count_true(stream, mask.view(), counts.view());
      std::vector<double> got = counts.values();
      for (std::size_t p = 1; p < got.size(); ++p) got[p] += got[p - 1];
      EXPECT_EQ(got, ends);
      if (want.empty()) continue;
      Buffer y(device(), DType::i64, {static_cast<std::int64_t>(want.size())});
      const Buffer running(device(), DType::i64, {true_pieces(n)}, ends);
      kernels().indexing.find_true(stream, mask.view(), running.view(), y.view());
      EXPECT_EQ(y.values(), want);
    }
  }
}

TEST_P(Indexing, OneHot) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{5}, Shape{3, 4}}) {
      const std::int64_t classes = 7;
      const std::vector<double> hits = random_index(numel(shape), classes, 3);
      const Buffer index(device(), DType::i64, shape, hits);
      Shape out = shape;
      out.push_back(classes);
      std::vector<double> want(static_cast<std::size_t>(numel(out)), 0);
      for (std::size_t i = 0; i < hits.size(); ++i) {
        want[i * 7 + static_cast<std::size_t>(hits[i])] = 1;
      }
      Buffer y(device(), dtype, out);
      kernels().indexing.one_hot(stream, index.view(), y.view());
      expect_equal(y.values(), want);
      Strides apart = contiguous_strides(out);
      for (std::int64_t& s : apart) s *= 3;
      Buffer holes(device(), dtype, out, apart);
      kernels().indexing.one_hot(stream, index.view(), holes.view());
      expect_equal(holes.values(), want);
    }
  }
}

TEST_P(Indexing, CheckBoundsNamesTheFirstBadIndex) {
  const auto message = [&](const Buffer& index, std::int64_t bound) -> std::string {
    try {
      kernels().indexing.check_bounds(stream, {.op = "gather", .bound = bound}, index.view());
      runtime(device()).synchronize(stream);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::InvalidArgument);
      EXPECT_EQ(e.op(), "gather");
      return e.what();
    }
    return "";
  };
  const Buffer good(device(), DType::i64, {2, 3}, std::vector<double>{0, 1, 2, 3, 4, 5});
  EXPECT_EQ(message(good, 6), "");
  const Buffer empty(device(), DType::i64, {0});
  EXPECT_EQ(message(empty, 0), "");
  // In row-major order of the shape, independent of the memory: 9 at [0,2] comes before -1 at
  // [1,0].
  const Buffer bad(device(), DType::i64, {2, 3}, Strides{1, 2},
                   std::vector<double>{0, 1, 9, -1, 4, 5});
  const std::string text = message(bad, 6);
  EXPECT_NE(text.find("index 9 at position [0,2]"), std::string::npos) << text;
  EXPECT_NE(text.find("[0, 6)"), std::string::npos) << text;
  const Buffer negative(device(), DType::i64, {1}, std::vector<double>{-1});
  EXPECT_NE(message(negative, 6).find("index -1 at position [0]"), std::string::npos);
}

// Threads share the default stream; each one gets the error of its own bad index, or none.
TEST_P(Indexing, ThreadsOnOneStreamHearOfTheirOwnIndex) {
  std::atomic<int> wrong = 0;
  const auto work = [&](std::int64_t bound) {
    std::vector<double> values(3000, 0);
    values[2500] = 7;
    const Buffer index(device(), DType::i64, {3000}, values);
    for (int i = 0; i < 100; ++i) {
      bool found = false;
      try {
        kernels().indexing.check_bounds(stream, {.op = "gather", .bound = bound}, index.view());
        runtime(device()).synchronize(stream);
      } catch (const Error&) {
        found = true;
      }
      wrong += found != (bound <= 7);
    }
  };
  std::thread good(work, 8), bad(work, 7), none(work, 9);
  for (std::thread* t : {&good, &bad, &none}) t->join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace weft::testing
