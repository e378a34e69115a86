#include "weft/nn/recurrent.h"

#include <cmath>
#include <span>
#include <utility>

#include "weft/autograd/ops.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/log.h"
#include "weft/nn/init.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"

namespace weft::nn {

namespace detail {

namespace {

// A larger number would be a mistake, and each layer registers names of its own.
constexpr std::int64_t kMaxLayers = 1024;

std::int64_t gates_of(Recurrence recurrence) {
  if (recurrence == Recurrence::lstm) return 4;
  return recurrence == Recurrence::gru ? 3 : 1;
}

// The state after one step; input: W_ih x + b_ih.
LSTMState step(Recurrence recurrence, const Tensor& input, const LSTMState& state,
               const RecurrentWeights& w) {
  const Tensor from_state = linear(state.h, w.weight_hh, w.bias_hh);
  if (recurrence == Recurrence::tanh) return {tanh(input + from_state)};
  if (recurrence == Recurrence::relu) return {relu(input + from_state)};
  if (recurrence == Recurrence::gru) {
    const auto x = chunk(input, 3, -1), h = chunk(from_state, 3, -1);
    const Tensor r = sigmoid(x[0] + h[0]), z = sigmoid(x[1] + h[1]);
    const Tensor n = tanh(x[2] + r * h[2]);
    return {n + z * (state.h - n)};
  }
  const auto gates = chunk(input + from_state, 4, -1);
  const Tensor i = sigmoid(gates[0]), f = sigmoid(gates[1]), g = tanh(gates[2]);
  const Tensor o = sigmoid(gates[3]);
  const Tensor c = f * state.c + i * g, h = o * tanh(c);
  return {w.weight_hr.defined() ? linear(h, w.weight_hr) : h, c};
}

// `state` in `shape`, zeros where it is undefined. Only an LSTM has a c.
LSTMState checked_state(const RecurrentConfig& config, const LSTMState& state, Shape shape,
                        const Tensor& x) {
  const auto checked = [&](const char* name, const Tensor& t, std::int64_t size) {
    shape[shape.size() - 1] = size;
    if (!t.defined()) return zeros(shape, {x.dtype(), x.device()});
    WEFT_CHECK(t.shape() == shape, Shape, config.op, name, ": got ", t.shape(), ", expected ",
               shape);
    return t;
  };
  const bool lstm = config.recurrence == Recurrence::lstm;
  WEFT_CHECK(!lstm || state.h.defined() == state.c.defined(), InvalidArgument, config.op,
             "state: got only ", state.h.defined() ? "h" : "c", ", expected h and c, or neither");
  return {checked("h_0", state.h, config.output_size()),
          lstm ? checked("c_0", state.c, config.hidden_size) : Tensor()};
}

// Whether a row still runs at a step, boolean [T,N,1]; undefined without lengths.
Tensor running(const RecurrentConfig& config, const Tensor& lengths, const Tensor& x) {
  if (!lengths.defined()) return {};
  const std::int64_t steps = x.shape(0), batch = x.shape(1);
  WEFT_CHECK(lengths.dtype() == DType::i64, Dtype, config.op, "lengths: got ", lengths.dtype(),
             ", expected i64");
  WEFT_CHECK(lengths.shape() == Shape{batch}, Shape, config.op, "lengths: got ", lengths.shape(),
             ", expected ", Shape{batch});
  if (lengths.device().type == DeviceType::cpu) {
    // Read in place, as a kernel does: to_vector() would refuse to run in a captured step.
    const Tensor dense = raw::contiguous(lengths);
    for (const std::int64_t length :
         std::span(dense.data<std::int64_t>(), static_cast<std::size_t>(batch))) {
      WEFT_CHECK(length >= 1 && length <= steps, InvalidArgument, config.op, "lengths: got ",
                 length, ", expected 1 to ", steps);
    }
  }
  const Tensor step = arange(0, static_cast<double>(steps), 1, {DType::i64, x.device()});
  return lt(step.reshape({steps, 1, 1}), raw::to(lengths, x.device()).reshape({1, batch, 1}));
}

struct Pass {
  Tensor output;  // [T,N,out]
  LSTMState last;
};

// One direction of one layer. x [T,N,in]; the states are [1,N,..].
Pass run_direction(const RecurrentConfig& config, const RecurrentWeights& w, const Tensor& x,
                   LSTMState state, const Tensor& running, bool reverse) {
  const std::vector<Tensor> inputs = split(linear(x, w.weight_ih, w.bias_ih), 1, 0);
  const std::size_t steps = inputs.size();
  std::vector<Tensor> outputs(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    const std::size_t t = reverse ? steps - 1 - i : i;
    LSTMState next = step(config.recurrence, inputs[t], state, w);
    if (running.defined()) {
      const Tensor runs = running.narrow(0, static_cast<std::int64_t>(t), 1);
      next.h = where(runs, next.h, state.h);
      if (next.c.defined()) next.c = where(runs, next.c, state.c);
    }
    state = std::move(next);
    outputs[t] = state.h;
  }
  const Tensor output = cat(outputs, 0);
  return {running.defined() ? masked_fill(output, logical_not(running), 0) : output, state};
}

}  // namespace

const RecurrentConfig& checked(const RecurrentConfig& config) {
  const char* op = config.op;
  WEFT_CHECK(config.input_size > 0 && config.hidden_size > 0, InvalidArgument, op,
             "sizes must be positive, got input_size ", config.input_size, ", hidden_size ",
             config.hidden_size);
  WEFT_CHECK(config.num_layers > 0 && config.num_layers <= kMaxLayers, InvalidArgument, op,
             "num_layers: got ", config.num_layers, ", expected 1 to ", kMaxLayers);
  WEFT_CHECK(config.dropout >= 0 && config.dropout <= 1, InvalidArgument, op, "dropout: got ",
             config.dropout, ", expected 0 to 1");
  WEFT_CHECK(config.proj_size >= 0 && config.proj_size < config.hidden_size, InvalidArgument, op,
             "proj_size: got ", config.proj_size, ", expected less than hidden_size ",
             config.hidden_size);
  if (config.dropout > 0 && config.num_layers == 1) {
    log_warning(weft::detail::concat(
        op, ": dropout has no effect in one layer: it follows each layer but the last"));
  }
  return config;
}

Recurrence recurrence_of(const char* op, const std::string& nonlinearity) {
  WEFT_CHECK(nonlinearity == "tanh" || nonlinearity == "relu", InvalidArgument, op,
             "nonlinearity: got '", nonlinearity, "', expected 'tanh' or 'relu'");
  return nonlinearity == "tanh" ? Recurrence::tanh : Recurrence::relu;
}

std::string describe(const RecurrentConfig& config) {
  std::string text = weft::detail::concat(config.input_size, ", ", config.hidden_size);
  if (config.proj_size) text += weft::detail::concat(", proj_size=", config.proj_size);
  if (config.num_layers != 1) text += weft::detail::concat(", num_layers=", config.num_layers);
  if (!config.bias) text += ", bias=False";
  if (config.batch_first) text += ", batch_first=True";
  if (config.dropout != 0) text += ", dropout=" + repr(config.dropout);
  if (config.bidirectional) text += ", bidirectional=True";
  return text;
}

std::vector<NewWeight> new_weights(const RecurrentConfig& config, std::int64_t in,
                                   const std::string& suffix) {
  const std::int64_t out = config.output_size(), hidden = config.hidden_size;
  const std::int64_t rows = checked_mul(gates_of(config.recurrence), hidden, config.op);
  using W = RecurrentWeights;
  std::vector<NewWeight> all{{&W::weight_ih, "weight_ih" + suffix, empty({rows, in})},
                             {&W::weight_hh, "weight_hh" + suffix, empty({rows, out})}};
  if (config.bias) {
    all.push_back({&W::bias_ih, "bias_ih" + suffix, empty({rows})});
    all.push_back({&W::bias_hh, "bias_hh" + suffix, empty({rows})});
  }
  if (config.proj_size) all.push_back({&W::weight_hr, "weight_hr" + suffix, empty({out, hidden})});
  return all;
}

void initialise(const std::vector<Tensor>& parameters, std::int64_t hidden_size) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  for (const Tensor& p : parameters) init::uniform_(p, -bound, bound);
}

LSTMState run_cell(const RecurrentConfig& config, const RecurrentWeights& weights, const Tensor& x,
                   const LSTMState& state) {
  WEFT_CHECK((x.dim() == 1 || x.dim() == 2) && x.shape(-1) == config.input_size, Shape, config.op,
             "input: got ", x.shape(), ", expected [N,", config.input_size, "] or [",
             config.input_size, "]");
  return step(config.recurrence, linear(x, weights.weight_ih, weights.bias_ih),
              checked_state(config, state, x.shape(), x), weights);
}

LSTMResult run_layers(const RecurrentConfig& config, const std::vector<RecurrentWeights>& weights,
                      const Tensor& x, const LSTMState& state, const Tensor& lengths,
                      bool training) {
  WEFT_CHECK((x.dim() == 2 || x.dim() == 3) && x.shape(-1) == config.input_size, Shape, config.op,
             "input: got ", x.shape(),
             ", expected three dimensions, or two without a batch, the "
             "last of ",
             config.input_size);
  const std::int64_t steps = x.shape(x.dim() == 3 && config.batch_first ? 1 : 0);
  WEFT_CHECK(steps > 0, Shape, config.op, "input: got ", x.shape(), ", expected a step or more");
  const auto passes = static_cast<std::int64_t>(weights.size());
  if (x.dim() == 2) {
    WEFT_CHECK(!lengths.defined(), InvalidArgument, config.op,
               "lengths are of a batch, and the input ", x.shape(), " has none");
    const auto batch_of_one = [](const Tensor& t) { return t.defined() ? t.unsqueeze(1) : t; };
    const int batch_dim = config.batch_first ? 0 : 1;
    // Here, so that errors show the caller's shapes.
    const LSTMState first = checked_state(config, state, {passes, 0}, x);
    auto [output, last] = run_layers(config, weights, x.unsqueeze(batch_dim),
                                     {batch_of_one(first.h), batch_of_one(first.c)}, {}, training);
    if (last.c.defined()) last.c = last.c.squeeze(1);
    return {output.squeeze(batch_dim), {last.h.squeeze(1), last.c}};
  }
  Tensor y = config.batch_first ? x.transpose(0, 1) : x;
  const std::int64_t batch = y.shape(1);
  const Tensor runs = running(config, lengths, y);
  if (runs.defined()) y = masked_fill(y, logical_not(runs), 0);
  const LSTMState first = checked_state(config, state, {passes, batch, 0}, x);
  const auto first_h = split(first.h, 1, 0);
  const auto first_c =
      first.c.defined() ? split(first.c, 1, 0) : std::vector<Tensor>(first_h.size());
  std::vector<Tensor> last_h, last_c;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int reverse = 0; reverse < config.directions(); ++reverse) {
      const std::size_t pass = last_h.size();
      const auto [output, last] = run_direction(config, weights[pass], y,
                                                {first_h[pass], first_c[pass]}, runs, reverse == 1);
      outputs.push_back(output);
      last_h.push_back(last.h);
      last_c.push_back(last.c);
    }
    y = outputs.size() == 1 ? outputs[0] : cat(outputs, -1);
    if (layer + 1 < config.num_layers) y = dropout(y, config.dropout, training);
  }
  return {config.batch_first ? y.transpose(0, 1) : y,
          {cat(last_h, 0), first.c.defined() ? cat(last_c, 0) : Tensor()}};
}

}  // namespace detail

RNN::RNN(std::int64_t input_size, std::int64_t hidden_size, const RNNOptions& options)
    : RecurrentLayers({"RNN", detail::recurrence_of("RNN", options.nonlinearity), input_size,
                       hidden_size, options.num_layers, options.bias, options.batch_first,
                       options.dropout, options.bidirectional}) {}

RNNResult RNN::forward(const Tensor& x, const Tensor& h_0, const Tensor& lengths) const {
  const LSTMResult result = run(x, {h_0}, lengths);
  return {result.output, result.state.h};
}

GRU::GRU(std::int64_t input_size, std::int64_t hidden_size, const GRUOptions& options)
    : RecurrentLayers({"GRU", detail::Recurrence::gru, input_size, hidden_size, options.num_layers,
                       options.bias, options.batch_first, options.dropout, options.bidirectional}) {
}

RNNResult GRU::forward(const Tensor& x, const Tensor& h_0, const Tensor& lengths) const {
  const LSTMResult result = run(x, {h_0}, lengths);
  return {result.output, result.state.h};
}

LSTM::LSTM(std::int64_t input_size, std::int64_t hidden_size, const LSTMOptions& options)
    : RecurrentLayers({"LSTM", detail::Recurrence::lstm, input_size, hidden_size,
                       options.num_layers, options.bias, options.batch_first, options.dropout,
                       options.bidirectional, options.proj_size}) {}

namespace {

detail::RecurrentConfig cell(const char* op, detail::Recurrence recurrence, std::int64_t input_size,
                             std::int64_t hidden_size, bool bias) {
  return {op, recurrence, input_size, hidden_size, 1, bias, false, 0, false};
}

}  // namespace

RNNCell::RNNCell(std::int64_t input_size, std::int64_t hidden_size, const RNNCellOptions& options)
    : RecurrentCell(cell("RNNCell", detail::recurrence_of("RNNCell", options.nonlinearity),
                         input_size, hidden_size, options.bias)) {
  if (options.nonlinearity == "tanh") return;
  set_description(weft::detail::concat(input_size, ", ", hidden_size,
                                       options.bias ? "" : ", bias=False",
                                       ", nonlinearity=", options.nonlinearity));
}

GRUCell::GRUCell(std::int64_t input_size, std::int64_t hidden_size, const GRUCellOptions& options)
    : RecurrentCell(
          cell("GRUCell", detail::Recurrence::gru, input_size, hidden_size, options.bias)) {}

LSTMCell::LSTMCell(std::int64_t input_size, std::int64_t hidden_size,
                   const LSTMCellOptions& options)
    : RecurrentCell(
          cell("LSTMCell", detail::Recurrence::lstm, input_size, hidden_size, options.bias)) {}

}  // namespace weft::nn
