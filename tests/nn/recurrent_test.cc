// nn::RNN, LSTM, GRU and their cells compared with PyTorch, and training them.
#include "weft/nn/recurrent.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/autograd/gradcheck.h"
#include "weft/autograd/ops.h"
#include "weft/core/runtime/capture.h"
#include "weft/core/runtime/rng.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/loss.h"
#include "weft/optim/sgd.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/device_param.h"
#include "weft/tests/goldens.h"
#include "weft/tests/tensor/ramp.h"
#include "weft/tests/tensor/tensor_util.h"

namespace weft {
namespace {

using testing::make;
using testing::near_values;
using testing::ramp;
using testing::values_of;

const testing::Goldens goldens("tests/nn/recurrent_goldens");

class Recurrent : public testing::DeviceParam {};
WEFT_FOR_EACH_DEVICE(Recurrent);

// Gives the parameters the values of write_recurrent_goldens.py.
template <class Layer>
Layer filled(Layer layer) {
  layer.to(DType::f64);
  double scale = 0.5;
  for (const Tensor& p : layer.parameters()) {
    raw::copy_(p, ramp(p.shape(), scale));
    scale += 0.05;
  }
  return layer;
}

std::vector<Tensor> inputs_of(const std::vector<Shape>& shapes) {
  std::vector<Tensor> in;
  for (const Shape& shape : shapes)
    in.push_back(ramp(shape, 1 + 0.3 * static_cast<double>(in.size())).set_requires_grad());
  return in;
}

template <class Results>
std::vector<Tensor> tensors_of(const Results& results) {
  std::vector<Tensor> list;
  for_each_tensor(results, [&](const Tensor& x) {
    if (x.defined()) list.push_back(x);
  });
  return list;
}

// Checks results and gradients in the order of write_recurrent_goldens.py. `shapes` are those of
// the input and of the states that are given.
template <class Layer>
void check(const std::string& name, Layer made, const std::vector<Shape>& shapes,
           const Tensor& lengths = {}) {
  SCOPED_TRACE(name);
  const Layer layer = filled(std::move(made));
  std::vector<Tensor> in = inputs_of(shapes);
  const Tensor h = in.size() > 1 ? in[1] : Tensor();
  std::vector<Tensor> results;
  if constexpr (std::is_same_v<Layer, nn::LSTM>) {
    results = tensors_of(layer(in[0], {h, in.size() > 2 ? in[2] : Tensor()}, lengths));
  } else if constexpr (std::is_same_v<Layer, nn::LSTMCell>) {
    results = tensors_of(layer(in[0], {h, in.size() > 2 ? in[2] : Tensor()}));
  } else if constexpr (requires { layer(in[0], h, lengths); }) {
    results = tensors_of(layer(in[0], h, lengths));
  } else {
    results = {layer(in[0], h)};
  }
  std::vector<Tensor> gradients;
  for (const Tensor& y : results) gradients.push_back(ramp(y.shape()));
  autograd::backward(results, gradients);
  for (const Tensor& x : in) results.push_back(x.grad());
  for (const Tensor& p : layer.parameters()) results.push_back(p.grad());
  const std::vector<std::vector<double>> want = goldens.list(name);
  ASSERT_EQ(results.size(), want.size());
  // f64: up to six steps in each of two layers, each with sums of ten products of values up to a
  // few tens, in another order than PyTorch's.
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(near_values(results[i], want[i], 1e-11)) << "result " << i;
}

TEST_P(Recurrent, LayersFollowPyTorch) {
  check("rnn", nn::RNN(3, 4), {{5, 2, 3}});
  check("rnn_relu",
        nn::RNN(3, 4,
                {.num_layers = 2,
                 .nonlinearity = "relu",
                 .bias = false,
                 .batch_first = true,
                 .bidirectional = true}),
        {{2, 5, 3}, {4, 2, 4}});
  check("rnn_unbatched", nn::RNN(3, 4), {{5, 3}, {1, 4}});
  check("gru", nn::GRU(3, 4, {.num_layers = 2}), {{5, 2, 3}, {2, 2, 4}});
  check("gru_both", nn::GRU(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true}),
        {{2, 5, 3}});
  check("gru_unbatched", nn::GRU(3, 4, {.bias = false, .batch_first = true}), {{5, 3}});
  check("lstm", nn::LSTM(3, 4, {.num_layers = 2}), {{5, 2, 3}, {2, 2, 4}, {2, 2, 4}});
  check("lstm_both", nn::LSTM(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true}),
        {{2, 5, 3}});
  check("lstm_projected", nn::LSTM(3, 4, {.num_layers = 2, .bidirectional = true, .proj_size = 2}),
        {{5, 2, 3}, {4, 2, 2}, {4, 2, 4}});
  check("lstm_unbatched", nn::LSTM(3, 4, {.bias = false, .proj_size = 2}),
        {{5, 3}, {1, 2}, {1, 4}});
}

TEST_P(Recurrent, LengthsAreThoseOfPackedSequences) {
  const Tensor lengths = make({3, 5, 1, 4}, {4}, DType::i64);
  check("rnn_lengths", nn::RNN(3, 4), {{6, 4, 3}}, lengths);
  check("gru_lengths", nn::GRU(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true}),
        {{4, 6, 3}, {4, 4, 4}}, lengths);
  check("lstm_lengths", nn::LSTM(3, 4, {.num_layers = 2, .bidirectional = true, .proj_size = 2}),
        {{6, 4, 3}, {4, 4, 2}, {4, 4, 4}}, lengths);
}

TEST_P(Recurrent, CellsFollowPyTorch) {
  check("rnn_cell", nn::RNNCell(3, 4, {.nonlinearity = "relu"}), {{2, 3}, {2, 4}});
  check("rnn_cell_alone", nn::RNNCell(3, 4, {.bias = false}), {{3}});
  check("gru_cell", nn::GRUCell(3, 4), {{2, 3}, {2, 4}});
  check("gru_cell_alone", nn::GRUCell(3, 4, {.bias = false}), {{3}});
  check("lstm_cell", nn::LSTMCell(3, 4), {{2, 3}, {2, 4}, {2, 4}});
  check("lstm_cell_alone", nn::LSTMCell(3, 4, {.bias = false}), {{3}});
}

TEST_P(Recurrent, StartsWithPyTorchsBits) {
  if (!on_cpu()) GTEST_SKIP() << "a GPU draws other numbers";
  for (const std::string seed : {"0", "7"}) {
    const auto expect_initial = [&](const std::string& name, const auto& make) {
      manual_seed(std::stoull(seed));
      std::vector<double> values;
      for (const Tensor& p : make().parameters()) {
        EXPECT_TRUE(p.requires_grad());
        const std::vector<double> more = values_of(p);
        values.insert(values.end(), more.begin(), more.end());
      }
      EXPECT_EQ(values, goldens[name + "_init_" + seed]) << name;
    };
    expect_initial("rnn", [] { return nn::RNN(3, 4, {.num_layers = 2, .bidirectional = true}); });
    expect_initial("gru", [] { return nn::GRU(3, 4, {.num_layers = 2}); });
    expect_initial("lstm", [] {
      return nn::LSTM(3, 4, {.num_layers = 2, .bidirectional = true, .proj_size = 2});
    });
    expect_initial("lstm_cell", [] { return nn::LSTMCell(3, 4); });
  }
}

TEST_P(Recurrent, StateHasPyTorchsNames) {
  const auto names_of = [](const nn::ModuleBase& module) {
    std::string names;
    for (const auto& [name, tensor] : module.state_dict())
      names += name + " " + to_string(tensor.shape()) + "\n";
    return names;
  };
  const nn::LSTM lstm(3, 4, {.num_layers = 2, .bidirectional = true, .proj_size = 2});
  EXPECT_EQ(names_of(lstm),
            "weight_ih_l0 [16,3]\nweight_hh_l0 [16,2]\nbias_ih_l0 [16]\nbias_hh_l0 [16]\n"
            "weight_hr_l0 [2,4]\n"
            "weight_ih_l0_reverse [16,3]\nweight_hh_l0_reverse [16,2]\nbias_ih_l0_reverse [16]\n"
            "bias_hh_l0_reverse [16]\nweight_hr_l0_reverse [2,4]\n"
            "weight_ih_l1 [16,4]\nweight_hh_l1 [16,2]\nbias_ih_l1 [16]\nbias_hh_l1 [16]\n"
            "weight_hr_l1 [2,4]\n"
            "weight_ih_l1_reverse [16,4]\nweight_hh_l1_reverse [16,2]\nbias_ih_l1_reverse [16]\n"
            "bias_hh_l1_reverse [16]\nweight_hr_l1_reverse [2,4]\n");
  EXPECT_TRUE(lstm.weights[3].weight_hr.same(lstm.parameters()[19]));
  EXPECT_EQ(names_of(nn::GRU(3, 4, {.bias = false})), "weight_ih_l0 [12,3]\nweight_hh_l0 [12,4]\n");
  EXPECT_EQ(names_of(nn::RNNCell(3, 4)),
            "weight_ih [4,3]\nweight_hh [4,4]\nbias_ih [4]\nbias_hh [4]\n");
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find("  #")); };
  EXPECT_EQ(first_line(nn::LSTM(3, 4,
                                {.num_layers = 2,
                                 .bias = false,
                                 .batch_first = true,
                                 .dropout = 0.5,
                                 .bidirectional = true,
                                 .proj_size = 2})
                           .to_string()),
            "LSTM(3, 4, proj_size=2, num_layers=2, bias=False, batch_first=True, dropout=0.5, "
            "bidirectional=True)");
  EXPECT_EQ(first_line(nn::GRU(3, 4).to_string()), "GRU(3, 4)");
  EXPECT_EQ(first_line(nn::RNNCell(3, 4, {.bias = false, .nonlinearity = "relu"}).to_string()),
            "RNNCell(3, 4, bias=False, nonlinearity=relu)");
}

TEST_P(Recurrent, ClonesHaveTheirOwnWeights) {
  const nn::LSTM lstm = filled(nn::LSTM(3, 4, {.bidirectional = true}));
  const nn::LSTMCell cell = filled(nn::LSTMCell(3, 4));
  const Tensor x = ramp({5, 2, 3});
  const std::vector<double> want = values_of(lstm(x).output), cell_want = values_of(cell(x[0]).c);
  const nn::LSTM copy = nn::clone(lstm);
  const nn::LSTMCell cell_copy = nn::clone(cell);
  for (const Tensor& p : lstm.parameters()) raw::zero_(p);
  for (const Tensor& p : cell.parameters()) raw::zero_(p);
  EXPECT_EQ(values_of(copy(x).output), want);
  EXPECT_EQ(values_of(cell_copy(x[0]).c), cell_want);
}

TEST_P(Recurrent, Gradients) {
  const auto expect_right = [](const char* name, auto layer) {
    layer.to(DType::f64);
    std::vector<Tensor> inputs{ramp({3, 2, 3}).set_requires_grad()};
    for (const Tensor& p : layer.parameters()) inputs.push_back(p);
    const Tensor lengths = make({2, 3}, {2}, DType::i64);
    EXPECT_NO_THROW(autograd::gradcheck(
        name, [&](std::span<const Tensor> x) { return tensors_of(layer(x[0], {}, lengths)); },
        inputs));
  };
  expect_right("RNN", nn::RNN(3, 2));
  expect_right("GRU", nn::GRU(3, 2, {.bidirectional = true}));
  expect_right("LSTM", nn::LSTM(3, 3, {.num_layers = 2, .proj_size = 2}));
}

// Padding may hold anything, even NaN.
TEST_P(Recurrent, DoesNotReadBehindTheLengths) {
  const nn::GRU gru = filled(nn::GRU(3, 4, {.bidirectional = true}));
  const Tensor lengths = make({2, 3}, {2}, DType::i64);
  const auto run = [&](double padding) {
    const Tensor x = ramp({4, 2, 3});
    raw::fill_(raw::select(raw::narrow(x, 0, 2, 2), 1, 0), padding);
    raw::fill_(raw::select(raw::narrow(x, 0, 3, 1), 1, 1), padding);
    x.set_requires_grad();
    const auto [y, h_n] = gru(x, {}, lengths);
    EXPECT_EQ(values_of(y[3]), std::vector<double>(16, 0));
    std::vector<std::vector<double>> all{values_of(y), values_of(h_n)};
    autograd::backward(std::vector{y, h_n}, std::vector{ramp(y.shape()), ramp(h_n.shape())});
    all.push_back(values_of(x.grad()));
    for (const Tensor& p : gru.parameters()) {
      all.push_back(values_of(p.grad()));
      autograd::zero_grad(p);
    }
    return all;
  };
  EXPECT_EQ(run(std::numeric_limits<double>::quiet_NaN()), run(0));
}

TEST_P(Recurrent, DropsOutputsBetweenLayersInTraining) {
  nn::LSTM lstm = filled(nn::LSTM(3, 4, {.num_layers = 2, .dropout = 0.5}));
  const Tensor x = ramp({5, 2, 3});
  const auto run = [&] {
    manual_seed(1);
    return values_of(lstm(x).output);
  };
  const std::vector<double> dropped = run();
  EXPECT_EQ(run(), dropped);
  lstm.eval();
  const std::vector<double> whole = values_of(filled(nn::LSTM(3, 4, {.num_layers = 2}))(x).output);
  EXPECT_NE(dropped, whole);
  EXPECT_EQ(run(), whole);
}

TEST_P(Recurrent, GoesOnFromAState) {
  const nn::LSTM lstm = filled(nn::LSTM(3, 4, {.num_layers = 2}));
  const nn::LSTMCell cell = filled(nn::LSTMCell(3, 4));
  const Tensor x = ramp({5, 2, 3});
  const auto [first, state] = lstm(x.narrow(0, 0, 3));
  EXPECT_EQ(values_of(lstm(x.narrow(0, 3, 2), state).output),
            values_of(lstm(x).output.narrow(0, 3, 2)));
  nn::LSTMState by_cell = cell(x[0]);
  by_cell = cell(x[1], by_cell);
  nn::LSTM same = filled(nn::LSTM(3, 4));
  // One product for all steps, or one for each step.
  EXPECT_TRUE(near_values(by_cell.h, values_of(same(x.narrow(0, 0, 2)).state.h), 1e-14));
}

TEST_P(Recurrent, AnEmptyStateIsZeros) {
  const Tensor x = ramp({2, 3}), h = zeros({2, 4}, DType::f64);
  const nn::RNNCell rnn = filled(nn::RNNCell(3, 4));
  const nn::GRUCell gru = filled(nn::GRUCell(3, 4));
  const nn::LSTMCell lstm = filled(nn::LSTMCell(3, 4));
  EXPECT_EQ(values_of(rnn(x, {})), values_of(rnn(x, h)));
  EXPECT_EQ(values_of(gru(x, {})), values_of(gru(x, h)));
  EXPECT_EQ(values_of(lstm(x, {}).h), values_of(lstm(x, {h, h}).h));
}

TEST_P(Recurrent, OfNoRowsAndOneStep) {
  const nn::LSTM lstm(3, 4, {.bidirectional = true});
  const auto [y, state] = lstm(zeros({5, 0, 3}));
  EXPECT_EQ(y.shape(), (Shape{5, 0, 8}));
  EXPECT_EQ(state.c.shape(), (Shape{2, 0, 4}));
  EXPECT_EQ(lstm(zeros({5, 0, 3}), {}, zeros({0}, DType::i64)).output.shape(), (Shape{5, 0, 8}));
  const auto [one, last] = lstm(ones({1, 1, 3}));
  EXPECT_EQ(values_of(one[0][0]), values_of(last.h.flatten()));
  nn::GRU bf16(3, 4);
  bf16.to(DType::bf16);
  EXPECT_EQ(bf16(ones({2, 1, 3}, DType::bf16)).output.dtype(), DType::bf16);
}

TEST_P(Recurrent, RefusesWhatDoesNotFit) {
  EXPECT_WEFT_ERROR(nn::LSTM(0, 4), InvalidArgument, "[LSTM] sizes must be positive");
  EXPECT_WEFT_ERROR(nn::GRU(3, -1), InvalidArgument, "[GRU] sizes must be positive");
  EXPECT_WEFT_ERROR(nn::GRU(3, 4, {.num_layers = 0}), InvalidArgument, "num_layers: got 0");
  EXPECT_WEFT_ERROR(nn::GRU(3, 4, {.num_layers = 1025}), InvalidArgument, "expected 1 to 1024");
  EXPECT_WEFT_ERROR(nn::LSTM(3, 4, {.dropout = 2}), InvalidArgument, "[LSTM] dropout: got 2");
  EXPECT_WEFT_ERROR(nn::LSTM(3, 4, {.proj_size = 4}), InvalidArgument,
                    "[LSTM] proj_size: got 4, expected less than hidden_size 4");
  EXPECT_WEFT_ERROR(nn::RNN(3, 4, {.nonlinearity = "elu"}), InvalidArgument,
                    "[RNN] nonlinearity: got 'elu', expected 'tanh' or 'relu'");
  EXPECT_WEFT_ERROR(nn::LSTM(3, std::int64_t{1} << 62), Shape, "[LSTM] 4 * 4611686018427387904");
  const nn::LSTM lstm(3, 4);
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 4})), Shape, "[LSTM] input: got [5,2,4], expected three");
  EXPECT_WEFT_ERROR(lstm(ones({3})), Shape, "input: got [3]");
  EXPECT_WEFT_ERROR(lstm(ones({0, 2, 3})), Shape, "expected a step or more");
  EXPECT_WEFT_ERROR(lstm(ones({0, 3})), Shape, "input: got [0,3], expected a step or more");
  EXPECT_WEFT_ERROR(nn::GRU(3, 4, {.batch_first = true})(ones({2, 0, 3})), Shape,
                    "input: got [2,0,3], expected a step or more");
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {ones({1, 3, 4}), ones({1, 2, 4})}), Shape,
                    "[LSTM] h_0: got [1,3,4], expected [1,2,4]");
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {ones({1, 2, 4}), ones({1, 2, 3})}), Shape,
                    "[LSTM] c_0: got [1,2,3], expected [1,2,4]");
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {ones({1, 2, 4}), {}}), InvalidArgument,
                    "[LSTM] state: got only h, expected h and c, or neither");
  EXPECT_WEFT_ERROR(nn::LSTMCell(3, 4)(ones({2, 3}), {{}, ones({2, 4})}), InvalidArgument,
                    "[LSTMCell] state: got only c, expected h and c, or neither");
  EXPECT_WEFT_ERROR(lstm(ones({5, 3}), {ones({1, 5}), ones({1, 4})}), Shape,
                    "[LSTM] h_0: got [1,5], expected [1,4]");
  EXPECT_WEFT_ERROR(nn::GRU(3, 4, {.batch_first = true})(ones({5, 3}), ones({1, 1, 4})), Shape,
                    "[GRU] h_0: got [1,1,4], expected [1,4]");
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {}, ones({3}, DType::i64)), Shape,
                    "lengths: got [3], expected [2]");
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {}, ones({2})), Dtype, "lengths: got f32, expected i64");
  const Tensor long_one = from_vector(std::vector<std::int64_t>{1, 6}, {2}, {Device("cpu")});
  EXPECT_WEFT_ERROR(lstm(ones({5, 2, 3}), {}, long_one), InvalidArgument,
                    "lengths: got 6, expected 1 to 5");
  EXPECT_WEFT_ERROR(lstm(ones({5, 3}), {}, ones({1}, DType::i64)), InvalidArgument,
                    "lengths are of a batch, and the input [5,3] has none");
  EXPECT_WEFT_ERROR(nn::GRUCell(3, 4)(ones({2, 4})), Shape,
                    "[GRUCell] input: got [2,4], expected [N,3] or [3]");
  EXPECT_WEFT_ERROR(nn::GRUCell(3, 4)(ones({2, 3}), ones({1, 4})), Shape,
                    "[GRUCell] h_0: got [1,4], expected [2,4]");
}

// A language model: the captured step must compute the same as the plain step, and learn.
TEST_P(Recurrent, TrainsInACapturedStep) {
  thread_state().deterministic = true;
  struct Model : nn::Module<Model> {
    nn::Embedding embedding = child("embedding", nn::Embedding(6, 8));
    nn::LSTM lstm = child("lstm", nn::LSTM(8, 8, {.batch_first = true}));
    nn::GRU gru = child("gru", nn::GRU(8, 8, {.batch_first = true}));
    nn::Linear head = child("head", nn::Linear(8, 6));
    Tensor forward(const Tensor& tokens, const Tensor& lengths) {
      return head(gru(lstm(embedding(tokens), {}, lengths).output).output);
    }
  };
  const Tensor tokens = make({0, 1, 2, 3, 4, 4, 3, 2, 1, 5}, {2, 5}, DType::i64);
  const Tensor lengths = make({4, 3}, {2}, DType::i64);
  const auto losses = [&](bool captured) {
    manual_seed(4);
    Model model;
    model.to(device());
    optim::SGD sgd(model.parameters(), {.lr = 2});
    Tensor loss;
    const auto body = [&] {
      sgd.zero_grad();
      const Tensor next = model(tokens.narrow(1, 0, 4), lengths).flatten(0, 1);
      loss = nn::cross_entropy(next, tokens.narrow(1, 1, 4).reshape({8}));
      loss.backward();
      sgd.step();
    };
    graph::Step step = graph::capture(body);
    std::vector<double> values;
    for (int i = 0; i < 40; ++i) {
      if (captured) {
        step();
      } else {
        body();
      }
      values.push_back(loss.item<double>());
    }
    return values;
  };
  const std::vector<double> plain = losses(false);
  EXPECT_EQ(losses(true), plain);
  EXPECT_LT(plain.back(), 0.8 * plain.front());
}

}  // namespace
}  // namespace weft
