"""Trains a convolutional autoencoder on 28x28 images."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import common


class Encoder(nn.Module):
    """x [N,1,28,28] -> code [N,32]"""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 64, 3)
        self.fc = nn.Linear(64 * 24 * 24, 32)

    def forward(self, x):
        return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))


class Decoder(nn.Module):
    """code [N,32] -> image [N,1,28,28] in (0,1)"""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 64 * 24 * 24)
        self.conv2 = nn.ConvTranspose2d(64, 8, 3)
        self.conv1 = nn.ConvTranspose2d(8, 1, 3)

    def forward(self, z):
        x = F.relu(self.fc(z).reshape(-1, 64, 24, 24))
        return torch.sigmoid(self.conv1(F.relu(self.conv2(x))))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z), z


def main(options):
    model = Autoencoder().to(options.device, options.dtype)
    print(model)
    adam = torch.optim.Adam(model.parameters(), lr=options.lr)
    loader = DataLoader(common.Mnist(options.data, dtype=options.dtype),
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")

    recorder = common.Recorder(options)
    recorder.resume(model, adam)
    for epoch in recorder.epochs():
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            adam.zero_grad()
            output, code = model(x)
            loss = F.mse_loss(output, x)
            loss.backward()
            adam.step()
            recorder.step(loss)
        recorder.save(model, adam)
    if recorder.interrupted:
        raise SystemExit(130)

    model.eval()
    test = DataLoader(common.test_part(common.Mnist(options.data, train=False, dtype=options.dtype), options, 500),
                      batch_size=500)
    squared_error = 0.0
    with torch.no_grad():
        for i, (x, label) in enumerate(test):
            x = x.to(options.device)
            output, code = model(x)
            if i == 0:
                common.compare_picture(recorder.path("compare.png"), x, code, output)
            squared_error += F.mse_loss(output, x).item() * len(x)
    recorder.finish(model, "mse", squared_error / len(test.dataset))


if __name__ == "__main__":
    common.run(main, "autoencoder", __doc__)
