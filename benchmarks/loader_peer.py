"""PyTorch's side of `./weft bench --loader`: the sets of benchmarks/loader_sets.h through torch's DataLoader.

Each case is loaded in several ways, and the fastest is kept: as torchvision's own sets and transforms do it, picture by
picture through Pillow, and with tensor operations written by hand, a batch at a time. Without torchvision there is
only the latter, and no way for the JPEG files."""
import itertools
import os
import time
from functools import partial

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import common  # in the folder of the twins

try:
    import PIL
    import torchvision
    from torchvision import transforms
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2
except ImportError:
    torchvision = None

VERSIONS = {"torchvision": torchvision.__version__, "pillow": PIL.__version__} if torchvision else {}
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pictures(Dataset):
    """Like torchvision's MNIST and CIFAR10: arrays [H,W] or [H,W,3], made Pillow's and then transformed."""

    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(PIL.Image.fromarray(self.images[i])), int(self.labels[i])


class Batches(Dataset):
    """A batch at a time: `make` gets bytes [B,C,H,W]."""

    def __init__(self, images, labels, make):
        self.images, self.labels, self.make = images, labels, make

    def __len__(self):
        return len(self.images)

    def __getitems__(self, indices):
        at = torch.tensor(indices)
        return self.make(self.images[at]), self.labels[at]


def crop_flip_normalize(x, mean, std):
    """RandomCrop(32, padding=4) and a flip of each image of its own."""
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    places = torch.randint(0, 9, (len(x), 2)).tolist()
    x = torch.stack([image[:, top:top + 32, left:left + 32] for image, (top, left) in zip(padded, places)])
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
    return x.float().div_(255).sub_(mean).div_(std)


def mnist(folder):
    images = common.read_idx(folder + "/train-images-idx3-ubyte")
    labels = common.read_idx(folder + "/train-labels-idx1-ubyte").long()
    if torchvision:
        yield "torchvision", Pictures(images.numpy(), labels, transforms.ToTensor())
    yield "tensors", Batches(images.unsqueeze(1), labels, lambda x: x.float().div_(255))


def cifar(folder):
    records = np.fromfile(folder + "/test_batch.bin", np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32), torch.from_numpy(records[:, 0]).long()
    if torchvision:
        yield "torchvision", Pictures(
            np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels,
            transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
                                transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)]))
    yield "tensors", Batches(torch.from_numpy(images.copy()), labels,
                             partial(crop_flip_normalize, mean=torch.tensor(CIFAR_MEAN).view(3, 1, 1),
                                     std=torch.tensor(CIFAR_STD).view(3, 1, 1)))


def picture_folder(folder):
    if not torchvision:
        return
    yield "torchvision", torchvision.datasets.ImageFolder(folder, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(MEAN, STD)]))
    yield "torchvision v2, decode_image", torchvision.datasets.ImageFolder(folder, v2.Compose([
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD)]), loader=partial(decode_image, mode=ImageReadMode.RGB))


WAYS = {"mnist": mnist, "cifar": cifar, "folder": picture_folder}
kept = None


def images_per_second(loader):
    images = 0
    begin = time.perf_counter()
    for x, _ in loader:
        images += len(x)
    return images / (time.perf_counter() - begin)


def prepare(case, folder, batch_size, workers):
    global kept
    best, tried, kept = None, {}, None
    # A worker has one thread. Without workers both sizes are tried: for small operations a team
    # costs more than it gains.
    teams = (1,) if workers else sorted({1, os.cpu_count()})
    for (name, dataset), threads in itertools.product(WAYS[case.split("-")[0]](folder), teams):
        torch.set_num_threads(threads)
        loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers,
                            persistent_workers=workers > 0,
                            collate_fn=(lambda batch: batch) if isinstance(dataset, Batches) else None)
        if workers:
            images_per_second(loader)  # starts the workers
        config = name if workers else f"{name} threads={threads}"
        tried[config] = images_per_second(loader)
        if best is None or tried[config] > tried[best]:
            best, kept = config, (loader, threads)
    if best is None:
        return {"error": "the peer has no torchvision"}
    return {"config": best, "tried": tried}


def epoch():
    loader, threads = kept
    torch.set_num_threads(threads)
    return images_per_second(loader)
