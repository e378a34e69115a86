// Recurrent layers (RNN, LSTM, GRU) and their cells.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "weft/nn/module.h"

namespace weft::nn {

/// PyTorch's defaults, in PyTorch's order.
struct RNNOptions {
  std::int64_t num_layers = 1;        ///< each reads the output of the one below
  std::string nonlinearity = "tanh";  ///< or "relu"
  bool bias = true;                   ///< with bias_ih and bias_hh
  bool batch_first = false;           ///< [N,T,..] instead of [T,N,..], but for the states
  double dropout = 0;                 ///< of the output of each layer but the last, in training
  bool bidirectional = false;         ///< a second pass runs from the end
};
struct GRUOptions {
  std::int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;
  bool bidirectional = false;
};
struct LSTMOptions {
  std::int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;
  bool bidirectional = false;
  std::int64_t proj_size = 0;  ///< above 0: h' = weight_hr h has this size
};

/// The weights of one direction of one layer, with PyTorch's names: weight_ih_l0, weight_hh_l0,
/// bias_ih_l0, bias_hh_l0, weight_hr_l0, and weight_ih_l0_reverse .. for the pass from the end. The
/// gates stand one below the other: weight_ih [G H,in], weight_hh [G H,out], the biases [G H].
/// G: 1 in an RNN; 3 in a GRU (r, z, n); 4 in an LSTM (i, f, g, o). Undefined: the biases if bias
/// is false, weight_hr if proj_size is 0.
struct RecurrentWeights {
  Parameter weight_ih, weight_hh, bias_ih, bias_hh, weight_hr;
};

/// h_n [layers directions,N,H]: the state of each layer, and direction, after its last step.
struct RNNResult {
  Tensor output, h_n;
  auto tensors() { return std::tie(output, h_n); }
};
/// For a cell [N,H], for a layer [layers directions,N,H]; h has size proj_size if that is above 0.
/// As an argument, give both or neither.
struct LSTMState {
  Tensor h{}, c{};
  auto tensors() { return std::tie(h, c); }
};
struct LSTMResult {
  Tensor output;
  LSTMState state;
  auto tensors() { return std::tie(output, state); }
};

namespace detail {

enum class Recurrence { tanh, relu, gru, lstm };

struct RecurrentConfig {
  const char* op;
  Recurrence recurrence;
  std::int64_t input_size, hidden_size, num_layers;
  bool bias, batch_first;
  double dropout;
  bool bidirectional;
  std::int64_t proj_size = 0;

  std::int64_t output_size() const { return proj_size > 0 ? proj_size : hidden_size; }
  int directions() const { return bidirectional ? 2 : 1; }
};

/// Checks a layer's options, which the functions below rely on.
const RecurrentConfig& checked(const RecurrentConfig& config);
/// "tanh" or "relu", else InvalidArgument.
Recurrence recurrence_of(const char* op, const std::string& nonlinearity);
/// What to_string shows between the parentheses.
std::string describe(const RecurrentConfig& config);
/// A weight that is not registered yet.
struct NewWeight {
  Parameter RecurrentWeights::* member;
  std::string name;
  Tensor value;
};
/// The weights of one direction of one layer, in PyTorch's order; their names end with `suffix`.
/// `in`: the features of that layer's input.
std::vector<NewWeight> new_weights(const RecurrentConfig& config, std::int64_t in,
                                   const std::string& suffix);
/// U(+-1/sqrt(hidden_size)), as PyTorch's reset_parameters.
void initialise(const std::vector<Tensor>& parameters, std::int64_t hidden_size);
LSTMResult run_layers(const RecurrentConfig& config, const std::vector<RecurrentWeights>& weights,
                      const Tensor& x, const LSTMState& state, const Tensor& lengths,
                      bool training);
LSTMState run_cell(const RecurrentConfig& config, const RecurrentWeights& weights, const Tensor& x,
                   const LSTMState& state);

/// What RNN, GRU and LSTM have in common.
template <class Self>
class RecurrentLayers : public Module<Self> {
 public:
  /// Layer by layer, for each layer its directions: weights[3] of a bidirectional one is layer 1's
  /// pass from the end.
  std::vector<RecurrentWeights> weights;

 protected:
  explicit RecurrentLayers(const RecurrentConfig& config) : config_(checked(config)) {
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      const std::int64_t in =
          layer == 0 ? config.input_size : config.directions() * config.output_size();
      for (const char* direction : {"", "_reverse"}) {
        if (*direction && !config.bidirectional) break;
        RecurrentWeights& w = weights.emplace_back();
        for (auto& [member, name, value] :
             new_weights(config, in, "_l" + std::to_string(layer) + direction)) {
          w.*member = this->parameter(name, value);
        }
      }
    }
    initialise(this->parameters(), config.hidden_size);
    this->set_description(describe(config));
  }

  LSTMResult run(const Tensor& x, const LSTMState& state, const Tensor& lengths) const {
    return run_layers(config_, weights, x, state, lengths, this->is_training());
  }

 private:
  RecurrentConfig config_;
};

/// What the cells have in common. weight_hr stays undefined.
template <class Self>
class RecurrentCell : public Module<Self>, public RecurrentWeights {
 protected:
  explicit RecurrentCell(const RecurrentConfig& config) : config_(checked(config)) {
    for (auto& [member, name, value] : new_weights(config, config.input_size, ""))
      this->*member = this->parameter(name, value);
    initialise(this->parameters(), config.hidden_size);
    this->set_description(describe(config));
  }

  LSTMState run(const Tensor& x, const LSTMState& state) const {
    return run_cell(config_, *this, x, state);
  }

 private:
  RecurrentConfig config_;
};

}  // namespace detail

// For all layers:
//
// x [T,N,in] -> output [T,N,directions out], the state h of the last layer at each step, followed
// by that of the pass from the end. T: steps; N: batch; H: hidden_size; out: H, or proj_size. With
// batch_first x is [N,T,in] and output [N,T,..]; without a batch there is no N, also in the states.
// The first states are zeros unless they are given.
//
// lengths takes the place of PyTorch's PackedSequence: i64 [N], from 1 to T, in any order; row n of
// x ends after lengths[n] steps. The results are those of pad_packed_sequence(
// layer(pack_padded_sequence(x, lengths, enforce_sorted=False)), total_length=T): h_n is the state
// after a row's own last step, the pass from the end begins there, and output is 0 behind it. What
// x holds behind it is not used, and gets the gradient 0. On the CPU a length outside throws
// InvalidArgument; on CUDA, where a check would have to wait for the device, a larger one counts as
// T, and one below 1 leaves the row's first state.
//
// Initial values are PyTorch's, bit for bit: U(+-1/sqrt(H)). The constructors throw InvalidArgument
// for sizes that are not positive, for more than 1024 layers, a dropout outside [0, 1] and a
// proj_size that is not below hidden_size; the calls throw Shape, and InvalidArgument for an
// LSTMState with only one of h and c.

/// h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu (Elman, 1990). As torch.nn.RNN.
///   auto [y, h_n] = rnn(x);
class RNN : public detail::RecurrentLayers<RNN> {
 public:
  RNN(std::int64_t input_size, std::int64_t hidden_size, const RNNOptions& options = {});
  RNNResult forward(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const;
  RNNResult operator()(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const {
    return Module::operator()(x, h_0, lengths);
  }
};

/// r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise, n = tanh(W_in x + b_in +
/// r (W_hn h + b_hn)), h' = (1 - z) n + z h (Cho et al., 2014). As torch.nn.GRU.
///   auto [y, h_n] = gru(x, {}, lengths);
class GRU : public detail::RecurrentLayers<GRU> {
 public:
  GRU(std::int64_t input_size, std::int64_t hidden_size, const GRUOptions& options = {});
  RNNResult forward(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const;
  RNNResult operator()(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const {
    return Module::operator()(x, h_0, lengths);
  }
};

/// i, f, o = sigmoid(W_i. x + b_i. + W_h. h + b_h.), g likewise with tanh, c' = f c + i g,
/// h' = o tanh(c'), and then W_hr h' with proj_size (Hochreiter and Schmidhuber, 1997; Sak et al.,
/// 2014). As torch.nn.LSTM.
///   auto [y, state] = lstm(x);
///   y = lstm(next, state).output;
class LSTM : public detail::RecurrentLayers<LSTM> {
 public:
  LSTM(std::int64_t input_size, std::int64_t hidden_size, const LSTMOptions& options = {});
  LSTMResult forward(const Tensor& x, const LSTMState& state = {},
                     const Tensor& lengths = {}) const {
    return run(x, state, lengths);
  }
  LSTMResult operator()(const Tensor& x, const LSTMState& state = {},
                        const Tensor& lengths = {}) const {
    return Module::operator()(x, state, lengths);
  }
};

struct RNNCellOptions {
  bool bias = true;
  std::string nonlinearity = "tanh";  ///< or "relu"
};
struct GRUCellOptions {
  bool bias = true;
};
struct LSTMCellOptions {
  bool bias = true;
};

// One step of one layer: x [N,in] and the state [N,H] -> the next state [N,H]; [in] and [H] without
// a batch. The state is zeros unless it is given. The weights have the names weight_ih, weight_hh,
// bias_ih and bias_hh; shapes, initial values and errors are those of the layers.

/// As torch.nn.RNNCell.
class RNNCell : public detail::RecurrentCell<RNNCell> {
 public:
  RNNCell(std::int64_t input_size, std::int64_t hidden_size, const RNNCellOptions& options = {});
  Tensor forward(const Tensor& x, const Tensor& h = {}) const { return run(x, {h}).h; }
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const {
    return Module::operator()(x, h);
  }
};

/// As torch.nn.GRUCell.
class GRUCell : public detail::RecurrentCell<GRUCell> {
 public:
  GRUCell(std::int64_t input_size, std::int64_t hidden_size, const GRUCellOptions& options = {});
  Tensor forward(const Tensor& x, const Tensor& h = {}) const { return run(x, {h}).h; }
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const {
    return Module::operator()(x, h);
  }
};

/// As torch.nn.LSTMCell: `state = cell(x, state)`.
class LSTMCell : public detail::RecurrentCell<LSTMCell> {
 public:
  LSTMCell(std::int64_t input_size, std::int64_t hidden_size, const LSTMCellOptions& options = {});
  LSTMState forward(const Tensor& x, const LSTMState& state = {}) const { return run(x, state); }
  LSTMState operator()(const Tensor& x, const LSTMState& state = {}) const {
    return Module::operator()(x, state);
  }
};

}  // namespace weft::nn
