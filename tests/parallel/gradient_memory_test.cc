#include "weft/parallel/gradient_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::parallel {
namespace {

TEST(GradientMemoryTest, GradientsLieSideBySideWithTheirParametersStrides) {
  for (const int n : {1, 2}) {
    comm::run_ranks(n, [](comm::ProcessGroup& group) {
      const std::vector<Tensor> parameters = {ones({2, 3}, DType::f64),
                                              raw::transpose(ones({4, 5}, DType::f64), 0, 1),
                                              raw::slice(ones({6}, DType::f64), 0, 0, 6, 2)};
      const GradientMemory memory(group, parameters, 2);
      EXPECT_EQ(memory.all.shape(), Shape({6 + 20 + 3 + 2}));
      EXPECT_EQ(memory.all.dtype(), DType::f64);
      raw::fill_(memory.all, 7);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(memory.places[i].shape(), parameters[i].shape());
        EXPECT_EQ(memory.places[i].storage().get(), memory.all.storage().get());
        raw::fill_(memory.places[i], static_cast<double>(i));
      }
      EXPECT_EQ(memory.places[1].strides(), parameters[1].strides());
      EXPECT_EQ(memory.places[2].strides(), (Strides{1}));  // one with gaps gets none
      std::vector<double> expected(6, 0);
      expected.insert(expected.end(), 20, 1);
      expected.insert(expected.end(), 3, 2);
      expected.insert(expected.end(), 2, 7);
      EXPECT_EQ(memory.all.to_vector<double>(), expected);
    });
  }
}

}  // namespace
}  // namespace weft::parallel
