"""Trains a small transformer to write on a text, character by character."""
import math
import os
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import common


def table(rows, width):
    table = nn.Embedding(rows, width)
    nn.init.uniform_(table.weight, -0.1, 0.1)
    return table


class TransformerBlock(nn.Module):
    """x [N,L,width] -> [N,L,width]"""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        normed = self.norm1(x)
        later = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        x = x + self.attention(normed, normed, normed, attn_mask=later, need_weights=False, is_causal=True)[0]
        return x + self.mlp(self.norm2(x))


class CharTransformer(nn.Module):
    """Numbers of characters [N,L] -> logits of the next one [N,L,characters]"""

    def __init__(self, characters, context=64, width=64, heads=4, layers=2):
        super().__init__()
        self.characters = table(characters, width)
        self.positions = table(context, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))

    def forward(self, text):
        x = self.characters(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text(path):
    """The bytes of a file, or of all *.md and *.txt of a folder in the order of their names."""
    files = [path]
    if os.path.isdir(path):
        files = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith((".md", ".txt")))
    text = b""
    for file in files:
        with open(file, "rb") as opened:
            text += opened.read()
    return np.frombuffer(text, np.uint8)


class Windows(torch.utils.data.Dataset):
    """Pieces of `context` characters that begin every half context, and what comes behind each."""

    def __init__(self, text, context):
        self.text, self.context, self.step = torch.from_numpy(text), context, max(context // 2, 1)

    def __len__(self):
        return (len(self.text) - self.context - 1) // self.step + 1

    def __getitem__(self, i):
        begin = i * self.step
        return self.text[begin:begin + self.context], self.text[begin + 1:begin + self.context + 1]


def next_character_loss(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def write_on(model, alphabet, start, count, temperature, context, device):
    numbers = [int(np.flatnonzero(alphabet == byte)[0]) for byte in start.encode()]
    for _ in range(count):
        logits = model(torch.tensor([numbers[-context:]], device=device))[0, -1]
        numbers.append(torch.multinomial(F.softmax(logits.double() / temperature, 0), 1).item())
    return bytes(alphabet[numbers]).decode(errors="replace")


def read_parts(options):
    """The bytes that occur, and windows of their numbers for training and test."""
    alphabet, numbers = np.unique(read_text(options.data), return_inverse=True)
    numbers = numbers.astype(np.int64)
    tested = len(numbers) // 10
    train, test = Windows(numbers[:-tested], options.context), Windows(numbers[-tested:], options.context)
    return alphabet, train, test


def make_model(alphabet, options):
    model = CharTransformer(len(alphabet), options.context, options.width, options.heads, options.layers)
    return model.to(options.device, options.dtype)


def bits_per_character(loss_of, test, batch_size, device):
    nats = 0.0
    with torch.no_grad():
        for x, y in DataLoader(test, batch_size=batch_size):
            nats += loss_of(x.to(device), y.to(device)).item() * len(x)
    return nats / len(test) / math.log(2)


def train_on_ranks(options, model, loss_of, sampler, train, test, packed=lambda state: state):
    """Trains a model of which each rank has parts. packed(state) has the names of CharTransformer."""
    if dist.get_rank() == 0:
        print(model)
    adam = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
    saved = common.whole(model, adam)
    loader = DataLoader(train,
                        batch_size=options.batch_size,
                        sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

    recorder = common.Recorder(options)
    recorder.resume(*saved)
    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
        for x, y in recorder.batches(loader):
            adam.zero_grad()
            loss = loss_of(x.to(options.device, non_blocking=True), y.to(options.device, non_blocking=True))
            loss.backward()
            adam.step()
            recorder.step(loss)
        recorder.save(*saved)
    if recorder.interrupted:
        raise SystemExit(130)

    model.eval()  # all ranks take all batches: each has a part of every call
    test = common.test_part(test, options, options.batch_size, divided=False)
    bits = bits_per_character(loss_of, test, options.batch_size, options.device)
    recorder.finish(SimpleNamespace(state_dict=lambda: packed(saved[0].state_dict())), "bits_per_character", bits)
    dist.destroy_process_group()


def main(options):
    alphabet, train, test = read_parts(options)
    model = make_model(alphabet, options)
    print(model)
    adam = torch.optim.AdamW(model.parameters(), lr=options.lr)
    loader = DataLoader(train,
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

    def loss_of(x, y):
        return next_character_loss(model, x, y)

    recorder = common.Recorder(options)
    recorder.resume(model, adam)
    for epoch in recorder.epochs():
        for x, y in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            y = y.to(options.device, non_blocking=True)
            adam.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            adam.step()
            recorder.step(loss)
        recorder.save(model, adam)
    if recorder.interrupted:
        raise SystemExit(130)

    model.eval()
    bits = bits_per_character(loss_of, common.test_part(test, options, 100), 100, options.device)
    with torch.no_grad():
        start = options.start or chr(alphabet[train.text[0]])
        print(write_on(model, alphabet, start, options.sample, options.temperature, options.context, options.device))
    recorder.finish(model, "bits_per_character", bits)


number = common.whole_number(1)
DEFAULTS = {"epochs": 10, "lr": 3e-3, "data": os.path.join(os.path.dirname(__file__), "../../docs")}
OPTIONS = {"--context": {"type": number, "default": 64, "help": "characters it looks back at"},
           "--width": {"type": number, "default": 64, "help": "numbers for each character"},
           "--heads": {"type": number, "default": 4, "help": "of each layer's attention"},
           "--layers": {"type": number, "default": 2, "help": "blocks of attention and a perceptron"}}

if __name__ == "__main__":
    start = {"default": "", "help": "what the sample begins with; empty: the text's first character"}
    sample = {"type": number, "default": 300, "help": "characters that it writes at the end"}
    temperature = {"type": common.positive, "default": 0.8, "help": "of the sample"}
    common.run(main, "char_transformer", __doc__, **DEFAULTS,
               options=OPTIONS | {"--start": start, "--sample": sample, "--temperature": temperature})
