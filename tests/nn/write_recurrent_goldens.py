#!/usr/bin/env python3
"""Writes recurrent_goldens.safetensors: nn.RNN, LSTM, GRU and their cells of PyTorch 2.11, CPU.

usage: python3 tests/nn/write_recurrent_goldens.py   (needs torch and safetensors)
Each list has the results in f64, the gradients of the inputs and those of the parameters; NAME_init_SEED
has the initial values of all parameters, f32, one behind the other. Three features in, four in the state.
"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from golden_arrays import array, arrays, ramp, save


def flat(value):
    return [t for v in value for t in flat(v)] if isinstance(value, tuple) else [value]


def packed(layer, x, *state, lengths):
    sequence = pack_padded_sequence(x, torch.tensor(lengths), layer.batch_first, enforce_sorted=False)
    y, last = layer(sequence, *state)
    steps = x.shape[1 if layer.batch_first else 0]
    return pad_packed_sequence(y, layer.batch_first, total_length=steps)[0], last


def run(name, layer, *shapes, call=None):
    """shapes: those of x, h and c, or of x and h, or of x alone."""
    layer = layer.double()
    for i, p in enumerate(layer.parameters()):
        p.data = ramp(*p.shape) * (0.5 + 0.05 * i)
    inputs = [(ramp(*s) * (1 + 0.3 * i)).requires_grad_() for i, s in enumerate(shapes)]
    state = inputs[1:] if len(inputs) < 3 else [tuple(inputs[1:])]
    results = flat((call or layer)(inputs[0], *state))
    torch.autograd.backward(results, [ramp(*t.shape) for t in results])
    arrays(name, results + [t.grad for t in inputs + list(layer.parameters())])


def run_packed(name, layer, *shapes, lengths):
    run(name, layer, *shapes, call=lambda x, *state: packed(layer, x, *state, lengths=lengths))


run("rnn", nn.RNN(3, 4), (5, 2, 3))
run("rnn_relu", nn.RNN(3, 4, 2, nonlinearity="relu", bias=False, batch_first=True, bidirectional=True),
    (2, 5, 3), (4, 2, 4))
run("rnn_unbatched", nn.RNN(3, 4), (5, 3), (1, 4))
run("gru", nn.GRU(3, 4, 2), (5, 2, 3), (2, 2, 4))
run("gru_both", nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), (2, 5, 3))
run("gru_unbatched", nn.GRU(3, 4, batch_first=True, bias=False), (5, 3))
run("lstm", nn.LSTM(3, 4, 2), (5, 2, 3), (2, 2, 4), (2, 2, 4))
run("lstm_both", nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), (2, 5, 3))
run("lstm_projected", nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2), (5, 2, 3), (4, 2, 2), (4, 2, 4))
run("lstm_unbatched", nn.LSTM(3, 4, bias=False, proj_size=2), (5, 3), (1, 2), (1, 4))

lengths = [3, 5, 1, 4]
run_packed("rnn_lengths", nn.RNN(3, 4), (6, 4, 3), lengths=lengths)
run_packed("gru_lengths", nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), (4, 6, 3), (4, 4, 4),
           lengths=lengths)
run_packed("lstm_lengths", nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2), (6, 4, 3), (4, 4, 2), (4, 4, 4),
           lengths=lengths)

run("rnn_cell", nn.RNNCell(3, 4, nonlinearity="relu"), (2, 3), (2, 4))
run("rnn_cell_alone", nn.RNNCell(3, 4, bias=False), (3,))
run("gru_cell", nn.GRUCell(3, 4), (2, 3), (2, 4))
run("gru_cell_alone", nn.GRUCell(3, 4, bias=False), (3,))
run("lstm_cell", nn.LSTMCell(3, 4), (2, 3), (2, 4), (2, 4))
run("lstm_cell_alone", nn.LSTMCell(3, 4, bias=False), (3,))

makers = {
    "rnn": lambda: nn.RNN(3, 4, 2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, 2),
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    "lstm_cell": lambda: nn.LSTMCell(3, 4),
}
for name, make in makers.items():
    for seed in (0, 7):
        torch.manual_seed(seed)
        array(f"{name}_init_{seed}", torch.cat([p.flatten() for p in make().parameters()]))
save(__file__)
