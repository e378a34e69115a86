// WEFT_EMULATED_COUNT: GPU work is counted and not done.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/autocast.h"
#include "weft/autograd/deferred.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/examples/cnn.h"
#include "weft/examples/resnet.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/elementwise.h"
#include "weft/tensor/ops.h"
#include "weft/tests/emulator/kernels.h"
#include "weft/weft.h"

extern "C" const char* weft_emulated_take_counts();
extern "C" long weft_emulated_barriers();

namespace weft::testing {
namespace {

const Device kDevice("cuda:0");

// Before the first use of a device.
const bool is_set = [] {
  setenv("WEFT_EMULATED_COUNT", "1", 1);
  setenv("WEFT_EMULATED_TRAFFIC", "1", 1);
  setenv("WEFT_EMULATED_MEMORY", "100000", 1);
  return true;
}();

class Counts : public ::testing::Test {
 protected:
  Counts() {
    thread_state().device = kDevice;
    thread_state().deterministic = true;
  }

  static nlohmann::json taken() {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  }
  static void expect(const nlohmann::json& count, long calls, long read, long written) {
    EXPECT_EQ(count["calls"], calls);
    EXPECT_EQ(count["read"], read);
    EXPECT_EQ(count["written"], written);
  }
  /// The only node that call() runs.
  template <class F>
  static nlohmann::json node_of(F&& call) {
    call();  // makes its plan
    taken();
    call();
    const nlohmann::json nodes = taken()["nodes"];
    EXPECT_EQ(nodes.size(), 1u);
    return nodes.at(0);
  }
  static void expect_node(const nlohmann::json& node, long read, long written, long operations) {
    EXPECT_EQ(node["read"], read) << node;
    EXPECT_EQ(node["written"], written) << node;
    EXPECT_EQ(node["operations"], operations) << node;
  }
};

TEST_F(Counts, KernelsReadAndWriteTheirBlocks) {
  const Tensor x = empty({100}), y = empty({50});
  float* const at = static_cast<float*>(x.raw_data()) + 10;
  float* const to = static_cast<float*>(y.raw_data());
  taken();
  const auto launch = [](const float* from, float* into) {
    void* arguments[] = {&from, &into};
    ASSERT_EQ(cudaLaunchKernel(increment(), 1, kThreads, arguments, 0, nullptr), cudaSuccess);
  };
  launch(at, to);
  launch(at, at + 20);  // one block, read before it is written
  const nlohmann::json counts = taken();
  expect(counts["kernels"], 2, 400 + 400, 200 + 400);
  ASSERT_EQ(counts["nodes"].size(), 2u);
  EXPECT_NE(counts["nodes"][0]["name"].get<std::string>().find("increment_kernel"),
            std::string::npos);
  expect_node(counts["nodes"][0], 400, 200, 0);
  expect_node(counts["nodes"][1], 400, 400, 0);
  expect(taken()["kernels"], 0, 0, 0);
}

TEST_F(Counts, AnAdditionReadsBothAndWritesOne) {
  // Less than a page; many pages; more memory than is ever real.
  for (const std::int64_t n : {1, 100, 300'000, 300'000'000}) {
    const Tensor x = empty({n}), y = empty({n});
    expect_node(node_of([&] { raw::add(x, y); }), 2 * 4 * n, 4 * n, 0);
    expect_node(node_of([&] { raw::mul(x, 2); }), 4 * n, 4 * n, 0);
  }
  const Tensor x = empty({2048, 1024}, DType::bf16);
  expect_node(node_of([&] { raw::relu(raw::transpose(x, 0, 1)); }), 2 * x.numel(), 2 * x.numel(),
              0);
}

// Of a block it reads the pages that it touches.
TEST_F(Counts, APartIsReadInPages) {
  const Tensor x = empty({1 << 18});
  expect_node(node_of([&] { raw::mul(raw::slice(x, 0, 0, 1 << 16), 2); }), 4 << 16, 4 << 16, 0);
  expect_node(node_of([&] { raw::mul(raw::slice(x, 0, 0, 1), 2); }), 4096, 4, 0);
}

// The same launch at other addresses is the same; with other sizes, also of a block alone, it is
// another one.
TEST_F(Counts, LaunchesThatDifferAreRunAgain) {
  const Tensor x = empty({1000}), y = empty({1000}), z = empty({500});
  for (int i = 0; i < 2; ++i) {
    expect_node(node_of([&] { raw::mul_(x, 2); }), 4000, 4000, 0);
    expect_node(node_of([&] { raw::mul_(y, 2); }), 4000, 4000, 0);
    expect_node(node_of([&] { raw::mul_(z, 2); }), 2000, 2000, 0);
    for (const Tensor& block : {x, z}) {
      const auto launch = [at = block.raw_data()] {
        void* arguments[] = {const_cast<void**>(&at), const_cast<void**>(&at)};
        cudaLaunchKernel(increment(), 1, kThreads, arguments, 0, nullptr);
      };
      expect_node(node_of(launch), 4 * block.numel(), 4 * block.numel(), 0);
    }
  }
}

TEST_F(Counts, CopiesAndFills) {
  const Tensor x = empty({100}), host = empty({100}, Device());
  taken();
  raw::copy_(x, host);
  raw::copy_(host, x);
  EXPECT_EQ(host.to_vector<float>(), std::vector<float>(100, 0)) << "nothing to read but zeros";
  runtime(kDevice).copy(x.raw_data(), kDevice, static_cast<char*>(x.raw_data()) + 200, kDevice, 100,
                        current_stream(kDevice));
  runtime(kDevice).fill_zero(x.raw_data(), 400, current_stream(kDevice));
  const nlohmann::json counts = taken();
  expect(counts["copies"], 3, 400 + 100, 400 + 100);
  expect(counts["fills"], 1, 0, 400);
}

TEST_F(Counts, ProductsNameTheirOperands) {
  const Tensor a = empty({30, 20}), b = empty({20, 10});
  const auto product = [&] { raw::matmul(a, b); };
  nlohmann::json node = node_of(product);
  expect_node(node, (30 * 20 + 20 * 10) * 4, 30 * 10 * 4, 2 * 30 * 20 * 10);
  EXPECT_EQ(node["type"], "f32");
  EXPECT_EQ(node["name"], "product 30x20x10");
  const Scoped tf32(&ThreadState::allow_tf32_matmul, true);
  EXPECT_EQ(node_of(product)["type"], "tf32");

  const Tensor many = empty({7, 30, 20}, DType::bf16), each = empty({7, 20, 10}, DType::bf16);
  node = node_of([&] { raw::matmul(many, each); });
  expect_node(node, 7 * (30 * 20 + 20 * 10) * 2, 7 * 30 * 10 * 2, 7 * 2 * 30 * 20 * 10);
  EXPECT_EQ(node["type"], "bf16");
}

TEST_F(Counts, ConvolutionsNameTheirOperands) {
  // Two groups of 4 channels, and strides of 2: 5x5 outputs.
  const Tensor x = empty({2, 8, 9, 9}), w = empty({6, 4, 3, 3}), y = empty({2, 6, 5, 5});
  const Conv2dParams params = {.stride = {2, 2}, .padding = {1, 1}, .groups = 2};
  const auto forward = [&] { raw::conv2d(x, w, {}, params); };
  const long bx = 2 * 8 * 9 * 9 * 4, bw = 6 * 4 * 3 * 3 * 4, by = 2 * 6 * 5 * 5 * 4;
  const long operations = 2 * (2 * 6 * 5 * 5) * (4 * 3 * 3);
  nlohmann::json node = node_of(forward);
  expect_node(node, bx + bw, by, operations);
  EXPECT_EQ(node["type"], "tf32");
  EXPECT_EQ(node["name"], "convolution 2x8x9x9 by 6x4x3x3 to 2x6x5x5");
  expect_node(node_of([&] { raw::conv2d_backward_data(y, w, x.shape(), params); }), by + bw, bx,
              operations);
  expect_node(node_of([&] { raw::conv2d_backward_weights(x, y, w.shape(), false, params); }),
              by + bx, bw, operations);
  const Scoped ieee(&ThreadState::allow_tf32_conv, false);
  EXPECT_EQ(node_of(forward)["type"], "f32");
}

// Heads between batch and time, as attention with the weights asked for has them.
TEST_F(Counts, ProductsOfHeadsAreOneCallWhateverTheBatch) {
  for (const std::int64_t batch : {2, 8}) {
    const Tensor heads = raw::transpose(empty({batch, 10, 4, 6}), 1, 2);
    const auto scores = [&] { return raw::matmul(heads, raw::transpose(heads, 2, 3)); };
    scores();
    taken();
    const Tensor weights = scores();
    EXPECT_EQ(taken()["cublaslt"]["calls"], 1);
    raw::matmul(weights, heads);
    EXPECT_EQ(taken()["cublaslt"]["calls"], 1);
  }
}

// The matrices of the batch's inner dimension are rows of one product: no copy.
TEST_F(Counts, MatricesThatShareTheirRightOneAreRows) {
  for (const long batch : {2, 5}) {
    const Tensor heads = empty({batch, 12, 8, 8}), each = empty({batch, 1, 8, 8});
    for (const Tensor& right : {each, raw::transpose(each, 2, 3)}) {
      const nlohmann::json node = node_of([&] { raw::matmul(heads, right); });
      expect_node(node, batch * (12 + 1) * 64 * 4, batch * 12 * 64 * 4, 2 * batch * 12 * 512);
      EXPECT_EQ(node["name"], "product 96x8x8, " + std::to_string(batch) + " times");
    }
  }
  // Copies of what is broadcast would be 3000 rows and 3000 columns.
  const Tensor rows = empty({50, 1, 1, 64}), columns = empty({1, 60, 64, 1});
  const nlohmann::json node = node_of([&] { raw::matmul(rows, columns); });
  expect_node(node, (50 + 60) * 64 * 4, 50 * 60 * 4, 2 * 50 * 64 * 60);
}

TEST_F(Counts, ProductsOfWhatIsBroadcastAreAsManyForEachBatch) {
  /// Of the second forward and backward; `even` if the gradient is one number everywhere.
  const auto calls = [](const Shape& left, const Shape& right, bool transposed, bool even) {
    const auto operand = [&](Shape shape) {
      const int rows = shape.size() - 2, columns = shape.size() - 1;
      if (transposed) std::swap(shape[rows], shape[columns]);
      const Tensor x = zeros(shape, kDevice);
      return (transposed ? raw::transpose(x, rows, columns) : x).set_requires_grad();
    };
    const Tensor a = operand(left), b = operand(right);
    std::pair<long, long> counted;
    for (int step = 0; step < 2; ++step) {
      taken();
      const Tensor y = matmul(a, b);
      counted.first = taken()["cublaslt"]["calls"];
      sum(even ? y : y * y).backward();
      counted.second = taken()["cublaslt"]["calls"];
    }
    return counted;
  };
  const std::pair<long, long> kWanted = {1, 2};
  for (const std::int64_t batch : {2, 5}) {
    for (const bool transposed : {false, true}) {
      for (const bool even : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "batch " << batch << ", transposed " << transposed << ", even " << even);
        EXPECT_EQ(calls({batch, 12, 4, 3}, {batch, 1, 3, 5}, transposed, even), kWanted);
        EXPECT_EQ(calls({batch, 1, 4, 3}, {batch, 12, 3, 5}, transposed, even), kWanted);
        EXPECT_EQ(calls({batch, 1, 4, 3}, {1, 7, 3, 5}, transposed, even), kWanted);
        EXPECT_EQ(calls({7, 1, 4, 3}, {batch, 3, 5}, transposed, even), kWanted);
        EXPECT_EQ(calls({3, 1, batch, 4, 3}, {1, 2, 1, 3, 5}, transposed, even), kWanted);
      }
    }
  }
}

// Of 8192 queries and keys the scores alone would be 268 MB, and each pass over them as much. No
// node reads or writes more than its operands, of half a megabyte each, and what is kept is one
// number a query. (A tile that is read again counts once: q, k and v stay in the GPU's cache.)
TEST_F(Counts, AttentionIsLinearInTheLength) {
  constexpr std::int64_t kSteps = 8192, kWidth = 16;
  constexpr long kRows = kSteps * kWidth * 4, kSums = kSteps * 4;
  const auto rows = [] { return empty({1, 1, kSteps, kWidth}); };
  const raw::AttentionInputs in{.q = rows(), .k = rows(), .v = rows(), .causal = true};
  const Tensor grad_y = rows();
  taken();
  reset_peak_memory(kDevice);
  const std::int64_t before = memory_stats(kDevice).in_use_bytes;
  const raw::AttentionOutputs out = raw::scaled_dot_product_attention(in);
  const raw::AttentionGradients grads =
      raw::scaled_dot_product_attention_backward(grad_y, in, out, {});
  // y, the gradients, and for each query log_sum and what its gradients have in common.
  EXPECT_EQ(memory_stats(kDevice).peak_in_use_bytes - before, 4 * kRows + 2 * kSums);
  const nlohmann::json nodes = taken()["nodes"];
  ASSERT_EQ(nodes.size(), 5u);
  expect_node(nodes[0], 3 * kRows, kRows + kSums, 0);      // y
  expect_node(nodes[1], 2 * kRows, kSums, 0);              // what they have in common
  expect_node(nodes[2], 4 * kRows + 2 * kSums, kRows, 0);  // the gradient of q
  expect_node(nodes[3], 4 * kRows + 2 * kSums, kRows, 0);  // of k
  expect_node(nodes[4], 3 * kRows + kSums, kRows, 0);      // of v
}

/// Of a training step: the products, and the copies just before those over batch and heads.
struct Products {
  long calls = 0, copies = 0;
  friend bool operator==(const Products&, const Products&) = default;
  friend void PrintTo(const Products& p, std::ostream* out) {
    *out << p.calls << " calls, " << p.copies << " copies";
  }
};

constexpr std::int64_t kLength = 10, kHeads = 4;

/// Of an attention that gives its weights, so that weft's own kernel does not do it.
Products products_of_attention(std::int64_t batch, bool batch_first,
                               const nn::AttentionCall& call) {
  constexpr std::int64_t kWidth = 24;
  nn::MultiheadAttention attention(kWidth, kHeads, {.batch_first = batch_first});
  attention.to(kDevice);
  const Shape shape = batch_first ? Shape{batch, kLength, kWidth} : Shape{kLength, batch, kWidth};
  const Tensor x = zeros(shape, kDevice).set_requires_grad();
  nlohmann::json counts;
  for (int step = 0; step < 2; ++step) {  // the first makes the plans
    runtime(kDevice).synchronize_device(0);
    static_cast<void>(weft_emulated_take_counts());
    const auto [y, weights] = attention(x, x, x, call);
    (sum(y) + sum(weights)).backward();
    runtime(kDevice).synchronize_device(0);
    counts = nlohmann::json::parse(weft_emulated_take_counts());
  }
  Products products{.calls = counts["cublaslt"]["calls"]};
  long copies = 0;
  for (const nlohmann::json& node : counts["nodes"]) {
    const auto name = node["name"].get<std::string>();
    if (name.ends_with(" times")) products.copies += copies;
    copies = name.find("Identity") != std::string::npos ? copies + 1 : 0;
  }
  return products;
}

TEST_F(Counts, ProductsOfAttentionAreAsManyForEachBatch) {
  for (const bool batch_first : {true, false}) {
    for (const std::int64_t batch : {8, 32}) {
      const auto zero = [](const Shape& shape, DType dtype) {
        return zeros(shape, {dtype, kDevice});
      };
      const nn::AttentionCall calls[] = {
          {},
          {.attn_mask = zero({kLength, kLength}, DType::f32)},
          {.attn_mask = zero({batch * kHeads, kLength, kLength}, DType::f32)},
          {.key_padding_mask = zero({batch, kLength}, DType::boolean)},
      };
      for (const nn::AttentionCall& call : calls) {
        // Two products of heads forward, four backward. Their gradient's heads lie between batch
        // and time where the batch comes first, and so do always those of keys and values.
        EXPECT_EQ(products_of_attention(batch, batch_first, call),
                  (Products{.calls = 12, .copies = batch_first ? 6 : 4}));
      }
    }
  }
}

// Forward reads x twice and writes y, backward reads grad_y and x twice and writes grad_x. With an
// addition before the activation forward also reads the addend; backward reads y and writes the
// gradient before the activation, which the second pass reads in place of grad_y.
TEST_F(Counts, BatchNormPassesOverItsImagesTwice) {
  const Shape shape{64, 64, 56, 56};
  const double elements = static_cast<double>(numel(shape));
  const auto image = [&] { return raw::contiguous(empty(shape, DType::bf16), MemoryFormat::nhwc); };
  const Tensor x = image(), addend = image(), grad_y = image(), weight = empty({64}),
               bias = empty({64});
  const RunningStats running{empty({64}), empty({64}), empty({}, DType::i64)};
  const auto bytes_of_an_element = [&](const Tensor& added) {
    taken();
    const BatchNormParams relu{.negative_slope = 0};
    const raw::NormResult r = raw::batch_norm(x, weight, bias, running, relu, added);
    raw::batch_norm_backward(
        grad_y, x, weight, r.mean, r.invstd, true, {.addend = added.defined()},
        {.negative_slope = 0, .bias = bias, .y = added.defined() ? r.y : Tensor()});
    const nlohmann::json counts = taken();
    EXPECT_EQ(counts["kernels"]["calls"], 4);
    const nlohmann::json& kernels = counts["kernels"];
    return (kernels["read"].get<double>() + kernels["written"].get<double>()) / elements;
  };
  // The blocks' sums are less than 5 % of the images.
  EXPECT_GE(bytes_of_an_element({}), 16);
  EXPECT_LE(bytes_of_an_element({}), 1.05 * 16);
  EXPECT_GE(bytes_of_an_element(addend), 22);
  EXPECT_LE(bytes_of_an_element(addend), 1.05 * 22);
}

// A check would read its result from the device, where all memory reads as zero.
TEST_F(Counts, IndicesAreInBounds) {
  const Tensor x = empty({4, 3}), index = empty({4, 1}, DType::i64);
  taken();
  raw::gather(x, 1, index);
  EXPECT_EQ(taken()["kernels"]["calls"], 2);
}

// No thread takes a whole fibre, and none searches a fibre's indices for its own: of a million
// entries the one would take half a second, the other as long or longer.
TEST_F(Counts, LongFibresOfScatterAreSorted) {
  for (const Shape& shape : {Shape{300}, Shape{1 << 20}, Shape{(1 << 20) + 1}, Shape{3, 500'000}}) {
    if (HasFailure()) return;  // the longer ones would take hours
    const Tensor x = empty(shape).set_requires_grad(), y = empty(shape), grad = empty(shape);
    const Tensor index = empty(shape, DType::i64);
    const auto expect_sorted = [&](const char* what, auto&& call) {
      if (HasFailure()) return;
      taken();
      call();
      const nlohmann::json counts = taken();
      std::string names;
      for (const nlohmann::json& node : counts["nodes"]) {
        names += node["name"].get<std::string>() + '\n';
      }
      EXPECT_EQ(names.find("put_by_"), std::string::npos) << what << shape << names;
      EXPECT_NE(names.find("put_sorted_kernel"), std::string::npos) << what << shape << names;
    };
    expect_sorted("scatter_add_", [&] { raw::scatter_add_(y, -1, index, grad, false); });
    expect_sorted("scatter_", [&] { raw::scatter_(y, -1, index, grad, false); });
    expect_sorted("gather", [&] { gather(x, -1, index).backward(grad); });
    expect_sorted("sort", [&] { sort(x, -1).values.backward(grad); });
    const std::int64_t most = shape.back() - 1;
    expect_sorted("topk",
                  [&] { topk(x, most, -1).values.backward(raw::narrow(grad, -1, 0, most)); });
  }
}

// The last block adds up what the others have found: one launch, one pass.
TEST_F(Counts, ReductionsAndLossesAreOneLaunch) {
  const Tensor x = empty({64, 64, 64, 64}), y = empty({64, 64, 64, 64});
  const long bytes = 4 * x.numel();
  const auto expect_pass = [&](const nlohmann::json& node, long images) {
    EXPECT_GE(node["read"], images * bytes);
    EXPECT_LT(node["read"], images * bytes * 1.01);  // what the blocks have found, too
    EXPECT_LT(node["written"], bytes / 100);
  };
  expect_pass(node_of([&] { raw::sum(x); }), 1);
  expect_pass(node_of([&] { raw::sum(x, {0, 2, 3}); }), 1);
  expect_pass(node_of([&] { raw::argmax(raw::reshape(x, {1, -1}), 1); }), 1);
  expect_pass(node_of([&] { raw::mse_loss(x, y, Reduction::mean); }), 2);
  // With the logarithms of the probabilities and the check of the targets.
  const Tensor logits = empty({5000, 1000}), target = empty({5000}, DType::i64);
  const nlohmann::json node = node_of([&] { raw::cross_entropy(logits, target, {}); });
  EXPECT_NEAR(node["read"].get<double>(), 4 * logits.numel(), 100'000);
  EXPECT_NEAR(node["written"].get<double>(), 4 * logits.numel(), 100'000);
}

// Once before the warps' results are read and once after, whether the threads of a sum are
// neighbours or not.
TEST_F(Counts, ABlockThatFoldsWaitsTwice) {
  const Tensor row = empty({1, 2048}), columns = empty({64, 32});
  const auto waits = [](auto&& call) {
    taken();
    call();
    runtime(kDevice).synchronize_device(0);
    return weft_emulated_barriers();
  };
  EXPECT_EQ(waits([&] { raw::softmax(row, 1); }), 2 * 2) << "the largest, and the sum";
  EXPECT_EQ(waits([&] { raw::sum(columns, {0}); }), 2);
}

// One for the gradient of x, one for those of weight and bias.
TEST_F(Counts, TheBackwardOfLayerNormIsTwoLaunches) {
  const Tensor x = empty({20000, 64}), weight = empty({64}), bias = empty({64});
  const raw::NormResult r = raw::layer_norm(x, {64}, weight, bias, 1e-5);
  taken();
  raw::layer_norm_backward(x, x, {64}, weight, r.mean, r.invstd);
  EXPECT_EQ(taken()["nodes"].size(), 2u);
}

// The kernel of the relu's gradient makes it, and the leaf takes it when its turn comes.
TEST_F(Counts, ADeferredGradientOfABiasIsNotCopied) {
  const Tensor x = empty({8, 4, 16, 16});
  const Tensor w = empty({8, 4, 3, 3}).set_requires_grad(), bias = empty({8}).set_requires_grad();
  const auto nodes_later = [&](const std::vector<Tensor>& deferred) {
    autograd::zero_grad(w);
    autograd::zero_grad(bias);
    const Tensor y = conv2d(x, w, bias, {}, Activation::relu);
    autograd::DeferredGradients later;
    const auto leaves = autograd::DeferredGradients::leaves(deferred);
    {
      const autograd::DeferredGradients::Scope putting_off(later, leaves);
      y.backward(empty(y.shape()));
    }
    EXPECT_GT(later.size(), 0u);
    taken();
    later.run();
    EXPECT_TRUE(bias.grad().defined());
    return taken()["nodes"].size();
  };
  const auto of_w = nodes_later({w});
  EXPECT_GT(of_w, 0u);
  EXPECT_EQ(nodes_later({w, bias}), of_w);
  EXPECT_EQ(nodes_later({bias}), 0u);
}

// Reads the gradient and the result, writes the gradient before the relu, whatever the layout is.
TEST_F(Counts, TheReluBeforeABiasIsOnePassBackward) {
  const Tensor rows = empty({32, 64, 24, 24}), more_rows = empty({32, 64, 24, 24});
  const Tensor pixels = raw::contiguous(rows, MemoryFormat::nhwc);
  const Tensor more_pixels = raw::contiguous(rows, MemoryFormat::nhwc);
  const long bytes = 4 * rows.numel();
  for (const auto& [grad, y] :
       {std::pair(rows, more_rows), {pixels, more_pixels}, {rows, pixels}}) {
    const nlohmann::json node =
        node_of([&, &g = grad, &of = y] { raw::conv2d_relu_backward(Tensor(g), of); });
    EXPECT_NEAR(node["read"].get<double>(), 2 * bytes, 0.05 * bytes);
    EXPECT_NEAR(node["written"].get<double>(), bytes, 0.05 * bytes);
  }
}

// The check of the index is a kernel, and no copy; an index that is no row gives NaN by the same
// kernel as the others.
TEST_F(Counts, AnEmbeddingIsACheckAndOneKernel) {
  const Tensor weight = empty({8, 1024}), index = empty({4}, DType::i64);
  taken();
  raw::embedding(index, weight);
  EXPECT_EQ(taken()["nodes"].size(), 2u);
}

// By tiles, without a byte that is read twice.
TEST_F(Counts, ACopyToChannelsLastReadsAndWritesOnce) {
  const Tensor x = empty({2, 32, 64, 64});
  const nlohmann::json node = node_of([&] { raw::contiguous(x, MemoryFormat::nhwc); });
  const long bytes = 4 * 2 * 32 * 64 * 64;
  expect_node(node, bytes, bytes, 0);
  EXPECT_NE(node["name"].get<std::string>().find("transpose_kernel"), std::string::npos) << node;
}

// Parts of one result: the three of bf16 are converted by one kernel.
TEST_F(Counts, ConversionsOfSeveralTensorsAreOneLaunch) {
  const Tensor a = empty({100}, DType::bf16), b = empty({50}, DType::bf16), c = empty({7});
  const std::vector<Tensor> parts{a, c, b, a};
  raw::cat(parts, 0);
  taken();
  raw::cat(parts, 0);
  const nlohmann::json nodes = taken()["nodes"];
  ASSERT_EQ(nodes.size(), 2u) << nodes;
  const auto together = [](const nlohmann::json& node) {
    return node["name"].get<std::string>().find("convert_all_kernel") != std::string::npos;
  };
  EXPECT_NE(together(nodes[0]), together(nodes[1]));
  EXPECT_EQ(node_of([&] { raw::to(a, DType::f32); })["name"].get<std::string>().find("convert_all"),
            std::string::npos);
}

// One launch writes the learning rate and the number of the step, one does the update.
TEST_F(Counts, AStepOfAnOptimiserIsTwoLaunches) {
  const Tensor w = ones({100}).set_requires_grad();
  optim::SGD sgd({w}, {.lr = 0.1});
  sum(w * 2.0).backward();
  for (int i = 0; i < 2; ++i) sgd.step();
  taken();
  sgd.step();
  const nlohmann::json counts = taken();
  EXPECT_EQ(counts["kernels"]["calls"], 2);
  EXPECT_EQ(counts["fills"]["calls"], 0);
}

// Of two layers, in a step as it is and in one that is captured. Before a scope's first step nobody
// knows which weights it will need.
TEST_F(Counts, AStepConvertsItsWeightsInOneLaunch) {
  nn::Sequential model{nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 4)};
  model.to(kDevice);
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  const Tensor x = empty({2, 8});
  const auto body = [&] {
    const autograd::Autocast autocast(DeviceType::cuda);
    sgd.zero_grad();
    sum(model(x)).backward();
    sgd.step();
  };
  // The third time: launches of several conversions, and copies alone.
  const auto launches = [](auto&& step) {
    for (int i = 0; i < 2; ++i) step();
    taken();
    step();
    std::pair<long, long> result;
    const nlohmann::json counts = taken();
    for (const nlohmann::json& node : counts["nodes"]) {
      const auto name = node["name"].get<std::string>();
      result.first += name.find("convert_all_kernel") != std::string::npos;
      result.second += name.find("Identity") != std::string::npos;
    }
    return result;
  };
  const auto [none, alone] = launches(body);
  EXPECT_EQ(none, 0);
  const std::pair together(1L, alone - 4);
  const autograd::Autocast around(DeviceType::cuda);
  EXPECT_EQ(launches(body), together);
  EXPECT_EQ(launches(graph::capture(body)), together);
}

TEST_F(Counts, ReplaysAreOneLaunch) {
  const Tensor x = empty({100});
  Tensor y;
  graph::Step step = graph::capture([&] { y = raw::add(raw::mul(x, 2), 1); });
  step();
  step();
  taken();
  step();
  const nlohmann::json counts = taken();
  EXPECT_EQ(counts["graph_launches"], 1);
  EXPECT_EQ(counts["replayed"], 2);
  expect(counts["kernels"], 2, 2 * 400, 2 * 400);
  EXPECT_EQ(counts["nodes"][1]["in_graph"], 1);
}

/// How many operands a steady step of training copies into another layout.
template <class Model>
long conversions(Model model, const Shape& images, bool channels_last) {
  model.to(kDevice);
  optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  TensorOptions layout(kDevice);
  layout.channels_last = channels_last;
  const Tensor x = zeros(images, layout), label = zeros({images[0]}, {DType::i64, kDevice});
  const auto step = [&] {
    sgd.zero_grad();
    nn::cross_entropy(model(x), label).backward();
    sgd.step();
  };
  const auto taken = [] {
    runtime(kDevice).synchronize_device(0);
    return nlohmann::json::parse(weft_emulated_take_counts());
  };
  for (int i = 0; i < 2; ++i) step();
  taken();
  step();
  long count = 0;
  const nlohmann::json counts = taken();
  for (const nlohmann::json& node : counts["nodes"]) {
    const auto name = node["name"].get<std::string>();
    count += name.find("transpose_kernel") != std::string::npos ||
             (name.find("strided_kernel") != std::string::npos &&
              name.find("Identity") != std::string::npos);
  }
  return count;
}

// The weights of convolutions have the format in which cuDNN takes them: else there were 17 copies
// more in the CNN and 50 in the ResNet. What is left: images that are not in channels last, once
// for the first layer and the gradient of its weight; in the CNN what flatten() makes a row of, and
// its gradient; in the ResNet the gradient of the pooling, whose one pixel has no format of its
// own.
TEST_F(Counts, ASteadyStepCopiesNoWeight) {
  EXPECT_EQ(conversions(examples::cnn({.width_scale = 1.0 / 16}), {8, 3, 32, 32}, true), 2);
  EXPECT_EQ(conversions(examples::cnn({.width_scale = 1.0 / 16}), {8, 3, 32, 32}, false), 3);
  EXPECT_EQ(conversions(examples::resnet50(), {8, 3, 224, 224}, true), 1);
  EXPECT_EQ(conversions(examples::resnet50(), {8, 3, 224, 224}, false), 2);
}

// More memory than this machine has.
TEST_F(Counts, MemoryIsNotTouched) {
  const std::int64_t before = memory_stats(kDevice).in_use_bytes;
  const Tensor x = zeros({8, 1 << 30}), y = zeros({8, 1 << 30});
  EXPECT_EQ(memory_stats(kDevice).in_use_bytes - before, std::int64_t{64} << 30);
  EXPECT_EQ(raw::slice(y, 1, 0, 1).to_vector<float>(), std::vector<float>(8, 0));
}

}  // namespace
}  // namespace weft::testing
