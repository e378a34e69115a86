// Running out of memory changes nothing; in a steady state nothing is allocated.
#include <functional>

#include "weft/core/runtime/allocator.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/core/heap_count.h"
#include "weft/tests/device_param.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::heap_count;
using testing::make;
using testing::some;
using testing::values_of;
using testing::with_gaps;

struct Operands {
  Tensor x = some({4, 6}, DType::f32, 0.5, 2, 1);
  Tensor y = some({4, 6}, DType::f32, 0.5, 2, 2);
  Tensor row = some({6}, DType::f64, 0.5, 2, 3);
  Tensor half = raw::to(some({4, 6}, DType::f32, 0.5, 2, 4), DType::bf16);
  Tensor image = some({2, 3, 6, 6}, DType::f32, -1, 1, 5);
  Tensor weight = some({4, 3, 3, 3}, DType::f32, -1, 1, 6);
  Tensor gaps = with_gaps(some({4, 6}, DType::f32, 0.5, 2, 7));
  Tensor index = make({1, 0, 3, 3}, {4}, DType::i64);
  Tensor rows = make({1, 0, 3, 3}, {4}, DType::i64);

  Tensor mean = zeros({3}), var = ones({3}), batches = zeros({}, DType::i64);

  std::vector<Tensor> all() const {
    return {x, y, row, half, image, weight, gaps, index, rows, mean, var, batches};
  }
};

struct Op {
  const char* name;
  std::function<void(const Operands&)> run;
};

const Op kOps[] = {
    {"add", [](auto& o) { raw::add(o.x, o.y); }},
    {"add broadcast promoted", [](auto& o) { raw::add(o.x, o.row); }},
    {"exp", [](auto& o) { raw::exp(o.gaps); }},
    {"where", [](auto& o) { raw::where(raw::gt(o.x, 1), o.x, o.row); }},
    {"add_ promoted", [](auto& o) { raw::binary_(BinaryOp::add, o.half, o.row); }},
    {"add_ converted", [](auto& o) { raw::add_scaled_(o.x, 2, o.half); }},
    {"add_ overlapping",
     [](auto& o) {
       raw::binary_(BinaryOp::add, raw::slice(o.x, 1, 0, 5), raw::slice(o.x, 1, 1, 6));
     }},
    {"copy_ overlapping",
     [](auto& o) { raw::copy_(raw::slice(o.x, 0, 1, 4), raw::slice(o.x, 0, 0, 3)); }},
    {"uniform_ bf16", [](auto& o) { raw::uniform_(o.half); }},
    {"normal_ strided", [](auto& o) { raw::normal_(o.gaps); }},
    {"contiguous", [](auto& o) { raw::contiguous(o.gaps); }},
    {"cat",
     [](auto& o) {
       const Tensor parts[] = {o.x, o.gaps, o.half};
       raw::cat(parts, 1);
     }},
    {"sum", [](auto& o) { raw::sum(o.x, {0}); }},
    {"var", [](auto& o) { raw::var(o.half, {1}); }},
    {"argmax", [](auto& o) { raw::argmax(o.x, 1); }},
    {"index_select", [](auto& o) { raw::index_select(o.x, 0, o.index); }},
    {"index_add_", [](auto& o) { raw::index_add_(o.x, 0, o.index, o.x); }},
    {"one_hot", [](auto& o) { raw::one_hot(o.index); }},
    {"matmul", [](auto& o) { raw::matmul(o.gaps, raw::transpose(o.x, 0, 1)); }},
    {"conv2d", [](auto& o) { raw::conv2d(raw::permute(o.image, {0, 1, 3, 2}), o.weight, {}, {}); }},
    {"conv2d_backward_weights",
     [](auto& o) {
       raw::conv2d_backward_weights(o.image, raw::slice(o.image, 1, 0, 3), {3, 3, 1, 1}, true, {});
     }},
    {"max_pool2d",
     [](auto& o) { raw::max_pool2d(raw::slice(o.image, 3, 0, 5), {.kernel = {2, 2}}); }},
    {"avg_pool2d",
     [](auto& o) { raw::avg_pool2d(raw::slice(o.image, 3, 0, 5), {.kernel = {2, 2}}); }},
    {"batch_norm",
     [](auto& o) {
       const Tensor weight = raw::slice(o.row, 0, 0, 6, 2);
       raw::batch_norm(raw::to(raw::slice(o.image, 3, 0, 5), DType::f64), weight, {}, {}, {});
       raw::batch_norm(o.image, {}, {}, {o.mean, o.var, o.batches}, {});
     }},
    {"layer_norm_backward",
     [](auto& o) {
       const auto r = raw::layer_norm(o.gaps, {6}, {}, {}, 1e-5);
       raw::layer_norm_backward(o.x, o.gaps, {6}, {}, r.mean, r.invstd);
     }},
    {"group_norm_backward",
     [](auto& o) {
       const Tensor weight = raw::slice(o.row, 0, 0, 6, 2);
       const Tensor x = raw::to(raw::slice(o.image, 3, 0, 5), DType::f64);
       const auto r = raw::group_norm(x, 3, weight, {}, 1e-5);
       raw::group_norm_backward(x, x, 3, weight, r.mean, r.invstd);
     }},
    {"cross_entropy", [](auto& o) { raw::cross_entropy(o.gaps, o.rows, {}); }},
    {"mse_loss", [](auto& o) { raw::mse_loss(o.x, o.gaps, Reduction::mean); }},
};

class MemoryTest : public testing::DeviceParam {
 protected:
  void SetUp() override {
    DeviceParam::SetUp();
    thread_state().deterministic = true;  // otherwise timing allocates buffers of its own
  }
  void TearDown() override {
    if (!IsSkipped()) set_memory_limit(device(), 0);
    DeviceParam::TearDown();
  }
};
WEFT_FOR_EACH_DEVICE(MemoryTest);

TEST_P(MemoryTest, OutOfMemoryLeavesOperandsAsTheyWere) {
  for (const Op& op : kOps) {
    SCOPED_TRACE(op.name);
    op.run(Operands());  // plans are made and cached now
    const Operands operands;
    std::vector<std::vector<double>> before;
    std::vector<std::uint32_t> versions;
    for (const Tensor& t : operands.all()) {
      before.push_back(values_of(t));
      versions.push_back(t.storage()->version());
    }
    const std::int64_t in_use = memory_stats(device()).in_use_bytes;
    int refused = 0;
    for (std::int64_t room = 0;; room += 512) {
      ASSERT_LT(room, 1 << 24);
      set_memory_limit(device(), in_use + room);
      bool done = true;
      try {
        op.run(operands);
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::OutOfMemory) << e.what();
        done = false;
      }
      set_memory_limit(device(), 0);
      ASSERT_EQ(memory_stats(device()).in_use_bytes, in_use) << "nothing stays behind";
      if (done) break;
      ++refused;
      const std::vector<Tensor> after = operands.all();
      for (std::size_t i = 0; i < after.size(); ++i) {
        ASSERT_EQ(values_of(after[i]), before[i]);
        ASSERT_EQ(after[i].storage()->version(), versions[i]);
      }
    }
    EXPECT_GT(refused, 0);
  }
}

TEST_P(MemoryTest, TheErrorNamesDeviceAskedInUseAndLimit) {
  const Tensor x = zeros({1024, 1024});
  set_memory_limit(device(), memory_stats(device()).in_use_bytes + (1 << 20));
  try {
    raw::add(x, x);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::OutOfMemory);
    const std::string text = e.what();
    EXPECT_NE(text.find(to_string(device())), std::string::npos) << text;
    EXPECT_NE(text.find("limit"), std::string::npos) << text;
  }
}

TEST_P(MemoryTest, SteadyStateMakesNoHeapAllocation) {
  const Tensor x = some({8, 16}), y = some({8, 16}, DType::f32, 0.5, 2, 2), row = some({16});
  const Tensor nhwc = raw::contiguous(some({2, 3, 4, 5}), MemoryFormat::nhwc);
  const Tensor target = zeros({8}, DType::i64);
  // f64, for which weft has its own kernels; oneDNN's allocations are not weft's.
  const Tensor wide = some({8, 16}, DType::f64), w = some({4, 16}, DType::f64);
  const Tensor bias = some({4}, DType::f64);
  const Tensor grad = scalar(1);
  const auto ce = raw::cross_entropy(x, target, {});
  const Tensor parts[] = {x, y};
  const std::pair<const char*, std::function<void()>> ops[] = {
      {"add", [&] { raw::add(x, y); }},
      {"mul, broadcast", [&] { raw::mul(x, row); }},
      {"add, number", [&] { raw::add(x, 1); }},
      {"div, number", [&] { raw::div(x, 3); }},
      {"relu", [&] { raw::relu(nhwc); }},
      {"relu backward", [&] { raw::unary_backward(UnaryOp::relu, nhwc, nhwc); }},
      {"mul backward", [&] { raw::binary_backward(BinaryOp::mul, true, x, y, row); }},
      {"where", [&] { raw::where(raw::gt(x, y), x, y); }},
      {"add_scaled_", [&] { raw::add_scaled_(y, 0.1, x); }},
      {"mul_", [&] { raw::binary_(BinaryOp::mul, y, row); }},
      {"zero_", [&] { raw::zero_(y); }},
      {"copy_", [&] { raw::copy_(y, raw::transpose(raw::reshape(x, {16, 8}), 0, 1)); }},
      {"views", [&] { raw::flatten(raw::unsqueeze(raw::slice(x, 0, 1, 3), 0), 1); }},
      {"contiguous", [&] { raw::contiguous(nhwc); }},
      {"to", [&] { raw::to(x, DType::bf16); }},
      {"sum", [&] { raw::sum(x); }},
      {"mean", [&] { raw::mean(x, {0}); }},
      {"sum_to", [&] { raw::sum_to(x, {16}); }},
      {"var", [&] { raw::var(x, {1}); }},
      {"argmax", [&] { raw::argmax(x, 1); }},
      {"mse_loss", [&] { raw::mse_loss(x, y, Reduction::mean); }},
      {"mse_loss backward", [&] { raw::mse_loss_backward(grad, x, y, Reduction::mean); }},
      {"cross_entropy", [&] { raw::cross_entropy(x, target, {}); }},
      {"cross_entropy backward",
       [&] { raw::cross_entropy_backward(grad, ce.log_probs, target, ce.count, {}); }},
      {"cat", [&] { raw::cat(parts, 1); }},
      {"linear", [&] { raw::linear(wide, w, bias); }},
      {"index_select", [&] { raw::index_select(x, 0, target); }},
  };
  for (const auto& [name, run] : ops) {
    for (int i = 0; i < 3; ++i) run();
    const std::int64_t heap = heap_count();
    const std::int64_t driver = memory_stats(device()).driver_allocations;
    for (int i = 0; i < 10; ++i) run();
    EXPECT_EQ(heap_count() - heap, 0) << name;
    EXPECT_EQ(memory_stats(device()).driver_allocations - driver, 0) << name;
  }
}

}  // namespace
}  // namespace weft
