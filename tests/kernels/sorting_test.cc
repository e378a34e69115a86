// Sorting against its definition. tests/tensor holds it against PyTorch.
#include <cmath>

#include "weft/tests/kernels/targets.h"

namespace weft::testing {
namespace {

struct Order {
  std::vector<double> values, indices;
};

class Sorting : public TargetTest {
 protected:
  Order sorted(const SortingKernels& sorting, const Stream& on, bool descending, const Buffer& x,
               bool wants_values = true) {
    const Shape shape = x.view().shape;
    Buffer values(on.device, x.view().dtype, shape), indices(on.device, DType::i64, shape);
    const DeviceBytes workspace(on.device, sorting.workspace_bytes(on, x.view()));
    sorting.sort(on, descending, x.view(), wants_values ? values.view() : View{}, indices.view(),
                 workspace.data());
    return {wants_values ? values.values() : std::vector<double>{}, indices.values()};
  }
  Order sorted(DType dtype, const Shape& shape, const std::vector<double>& x, bool descending) {
    return sorted(kernels().sorting, stream, descending, Buffer(device(), dtype, shape, x));
  }

  void expect_as_defined(DType dtype, const Shape& shape, const std::vector<double>& x) {
    SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(shape));
    const Buffer in(device(), dtype, shape, x), defined(Device(), dtype, shape, x);
    for (const bool descending : {false, true}) {
      const Order want =
          sorted(reference_kernels().sorting, current_stream(Device()), descending, defined);
      const Order got = sorted(kernels().sorting, stream, descending, in);
      expect_equal(got.values, want.values);
      expect_equal(got.indices, want.indices);
      expect_equal(sorted(kernels().sorting, stream, descending, in, false).indices, want.indices);
    }
  }
};
WEFT_ON_EVERY_TARGET(Sorting);

TEST_P(Sorting, AsDefined) {
  // Few rows and many, below and above the length from which the CPU sorts by bytes, and enough for
  // several threads.
  const std::vector<Shape> shapes{{1, 1},  {1, 2},    {0, 5},    {3, 1},     {5, 7},    {2, 11},
                                  {2, 12}, {2, 23},   {2, 24},   {2, 47},    {2, 48},   {2, 95},
                                  {2, 96}, {3, 1031}, {300, 40}, {70000, 2}, {1, 40000}};
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : shapes) {
      expect_as_defined(dtype, shape, values_for(dtype, numel(shape), -9, 9, 5));
      // Nearly all different in f32 and f64.
      expect_as_defined(dtype, shape, values_for(dtype, numel(shape), -200, 200, 6));
    }
  }
}

TEST_P(Sorting, EveryNumberOfBf16) {
  std::vector<double> all;
  for (unsigned bits = 0; bits < 1u << 16; ++bits) {
    all.push_back(std::bit_cast<float>(bits << 16));
  }
  expect_as_defined(DType::bf16, {1, 1 << 16}, all);
}

TEST_P(Sorting, PutsNanAboveAllNumbersAndKeepsTheOrderOfEqualOnes) {
  const std::vector<double> x{kNaN, 1, -0.0, -kInf, 0.0, -kNaN, kInf, -0.0, 1, -2};
  for (const DType dtype : kFloating) {
    const Order up = sorted(dtype, {1, 10}, x, false), down = sorted(dtype, {1, 10}, x, true);
    EXPECT_EQ(up.indices, (std::vector<double>{3, 9, 2, 4, 7, 1, 8, 6, 0, 5}));
    EXPECT_EQ(down.indices, (std::vector<double>{0, 5, 6, 1, 8, 2, 4, 7, 9, 3}));
    for (std::size_t i = 0; i < x.size(); ++i) {  // with its sign, also that of a zero
      const double from = x[static_cast<std::size_t>(up.indices[i])];
      expect_equal({up.values[i]}, {from});
      EXPECT_EQ(std::signbit(up.values[i]), std::signbit(from));
    }
  }
}

TEST_P(Sorting, IntegersByAllTheirBits) {
  const std::vector<double> x{0, -0x1p31, 0x1p31 - 1, -1, 1, 256, -256, 65537, 65536};
  const std::vector<double> order{1, 6, 3, 0, 4, 5, 8, 7, 2};
  EXPECT_EQ(sorted(DType::i32, {1, 9}, x, false).indices, order);
  EXPECT_EQ(sorted(DType::i64, {1, 9}, x, false).indices, order);
  const std::vector<double> wide{0x1p62, -0x1p63, 0x1p53 - 1, 0x1p53 - 2, 0x1p32, -0x1p32};
  EXPECT_EQ(sorted(DType::i64, {1, 6}, wide, true).indices,
            (std::vector<double>{0, 2, 3, 4, 5, 1}));
  EXPECT_EQ(sorted(DType::u8, {1, 4}, {255, 0, 128, 127}, false).indices,
            (std::vector<double>{1, 3, 2, 0}));
}

TEST_P(Sorting, SearchAsDefined) {
  // The sequence, then the values; a row for each row of values, or one for all.
  const std::vector<std::pair<Shape, Shape>> shapes{{{1, 0}, {1, 3}},  {{1, 1}, {2, 3}},
                                                    {{1, 7}, {3, 0}},  {{1, 100}, {3, 50}},
                                                    {{3, 9}, {3, 20}}, {{2, 1000}, {2, 20000}}};
  for (const DType dtype : kAllDTypes) {
    for (const auto& [s_shape, v_shape] : shapes) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(s_shape));
      std::vector<double> sequence = values_for(dtype, numel(s_shape), -9, 9, 5);
      for (std::int64_t r = 0; r < s_shape[0]; ++r) {
        const auto begin = sequence.begin() + r * s_shape[1];
        std::sort(begin, begin + s_shape[1]);
      }
      std::vector<double> values = values_for(dtype, numel(v_shape), -10, 10, 6);
      // Some are in the sequence.
      for (std::size_t i = 0; i < std::min(values.size(), sequence.size()); i += 2) {
        values[i] = sequence[i];
      }
      for (const bool right : {false, true}) {
        const auto found = [&](const SortingKernels& sorting, const Stream& on) {
          const Buffer s(on.device, dtype, s_shape, sequence), v(on.device, dtype, v_shape, values);
          Buffer y(on.device, DType::i64, v_shape);
          sorting.search(on, right, s.view(), v.view(), y.view());
          return y.values();
        };
        expect_equal(found(kernels().sorting, stream),
                     found(reference_kernels().sorting, current_stream(Device())));
      }
    }
  }
}

TEST_P(Sorting, SearchOfSpecialNumbers) {
  for (const DType dtype : kFloating) {
    const Buffer sequence(device(), dtype, {1, 5}, std::vector<double>{-kInf, 0, 1, kInf, kNaN});
    const Buffer values(device(), dtype, {1, 5}, std::vector<double>{kNaN, kInf, -0.0, -kInf, 2});
    Buffer y(device(), DType::i64, {1, 5});
    kernels().sorting.search(stream, false, sequence.view(), values.view(), y.view());
    EXPECT_EQ(y.values(), (std::vector<double>{5, 3, 1, 0, 3}));
    kernels().sorting.search(stream, true, sequence.view(), values.view(), y.view());
    EXPECT_EQ(y.values(), (std::vector<double>{5, 4, 2, 1, 3}));
  }
}

}  // namespace
}  // namespace weft::testing
