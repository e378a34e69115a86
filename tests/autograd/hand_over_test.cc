// A linear layer with a relu, whose mask the rule of the next layer may apply. Whatever looks at
// the gradient between the two layers, all gradients are those of a separate relu.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/checkpoint.h"
#include "weft/autograd/grad.h"
#include "weft/autograd/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using Values = std::vector<std::vector<double>>;

// -1, 0 and 1, so that each sum is exact in every dtype.
Tensor whole(const Shape& shape, std::int64_t step, DType dtype) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(static_cast<std::int64_t>(i) * step % 11 % 3 - 1);
  }
  return raw::to(from_vector(values, shape), dtype);
}

class HandOver : public testing::DeviceParam {
 protected:
  // x [8,16] -> y [8,24], the value after the relu -> z [8,8]
  struct Net {
    DType dtype;
    bool fused;
    Tensor x = leaf({8, 16}, 5), w = leaf({24, 16}, 7), b = leaf({24}, 3);
    Tensor w2 = leaf({8, 24}, 2), b2 = leaf({8}, 4);

    Tensor leaf(const Shape& shape, std::int64_t step) const {
      return whole(shape, step, dtype).set_requires_grad();
    }
    Tensor hidden() const {
      return fused ? linear(x, w, b, Activation::relu) : relu(linear(x, w, b));
    }
    Tensor last(const Tensor& y) const { return linear(y, w2, b2); }
    Tensor weighted(const Tensor& z) const { return (z * whole(z.shape(), 9, dtype)).sum(); }
    Values gradients() const {
      Values all;
      for (const Tensor& t : {x, w, b, w2, b2}) all.push_back(testing::values_of(t.grad()));
      return all;
    }
  };

  // `run` returns what it has seen besides the gradients of the leaves.
  void expect_same(const std::function<Values(const Net&)>& run) const {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      SCOPED_TRACE(to_string(dtype));
      const Net fused{.dtype = dtype, .fused = true}, separate{.dtype = dtype, .fused = false};
      EXPECT_EQ(run(fused), run(separate));
      const Values got = fused.gradients();
      EXPECT_EQ(got, separate.gradients());
      EXPECT_NE(got[0], std::vector<double>(got[0].size(), 0.0));
    }
  }
};

TEST_P(HandOver, HasTheGradientsOfASeparateRelu) {
  expect_same([](const Net& net) {
    net.weighted(net.last(net.hidden())).backward();
    return Values();
  });
}

TEST_P(HandOver, NotBesideAnotherUser) {
  expect_same([](const Net& net) {
    const Tensor y = net.hidden();
    const Tensor other = net.weighted(y);  // its gradient comes last
    (net.weighted(net.last(y)) + other).backward();
    return Values();
  });
  expect_same([](const Net& net) {
    const Tensor y = net.hidden();
    const Tensor z = net.last(y);
    (net.weighted(z) + net.weighted(y)).backward();  // and first
    return Values();
  });
  expect_same([](const Net& net) {
    const Tensor y = net.hidden(), z = net.last(y);
    const Tensor results[] = {net.weighted(z), y};
    const Tensor grads[] = {Tensor(), whole(y.shape(), 4, net.dtype)};
    autograd::backward(results, grads);
    return Values();
  });
}

// They get dL/dy.
TEST_P(HandOver, NotPastAHook) {
  expect_same([](const Net& net) {
    Values seen;
    const Tensor y = net.hidden();
    autograd::add_grad_hook(y, [&](const Tensor& grad) {
      seen.push_back(testing::values_of(grad));
      return grad * 2.0;
    });
    net.weighted(net.last(y)).backward();
    return seen;
  });
}

TEST_P(HandOver, NotWhereTheGradientIsAskedFor) {
  expect_same([](const Net& net) {
    const Tensor y = net.hidden();
    const Tensor loss = net.weighted(net.last(y));
    const auto got = autograd::grad(loss, {y, net.w}, {.retain_graph = true});
    loss.backward();
    return Values{testing::values_of(got[0]), testing::values_of(got[1])};
  });
}

TEST_P(HandOver, AgainInAGraphThatIsKept) {
  expect_same([](const Net& net) {
    const Tensor loss = net.weighted(net.last(net.hidden()));
    loss.backward({}, /*retain_graph=*/true);
    const Values once = net.gradients();
    loss.backward();
    return once;
  });
}

TEST_P(HandOver, NotInABackwardThatIsRecorded) {
  expect_same([](const Net& net) {
    const Tensor loss = net.weighted(net.last(net.hidden()));
    const Tensor of_w = autograd::grad(loss, net.w, {.create_graph = true});
    net.weighted(of_w).backward();
    net.weighted(net.last(net.hidden())).backward();
    return Values{testing::values_of(of_w)};
  });
}

TEST_P(HandOver, InsideOfACheckpoint) {
  expect_same([](const Net& net) {
    const auto block = [&](const Tensor& x) {
      Net inside = net;
      inside.x = x;
      return inside.last(inside.hidden());
    };
    net.weighted(autograd::checkpoint(block, net.x)).backward();
    return Values();
  });
}

TEST_P(HandOver, ForManyRowsAndForOne) {
  for (const Shape& shape : {Shape{2, 4, 16}, Shape{16}}) {
    expect_same([&](const Net& net) {
      Net other = net;
      other.x = net.x.slice(0, 0, shape.size() == 1 ? 1 : 8).reshape(shape);
      net.weighted(other.last(other.hidden())).backward();
      return Values();
    });
  }
}

TEST_P(HandOver, NoticesAResultThatWasChanged) {
  const Net net{.dtype = DType::f32, .fused = true};
  const Tensor y = net.hidden();
  const Tensor z = linear(y, net.w2.detach());  // it keeps no y
  {
    const NoGrad no_grad;
    y.mul_(2);
  }
  EXPECT_WEFT_ERROR(z.sum().backward(), InvalidArgument, "[linear");
}

WEFT_FOR_EACH_DEVICE(HandOver);

}  // namespace
}  // namespace weft
