"""Trains ResNet-18 or ResNet-50 on pictures in folders, or on made-up ones."""
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

import common


def conv3x3(in_planes, planes, stride=1):
    return nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)


def conv1x1(in_planes, planes, stride=1):
    return nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """x [N,in,H,W] -> [N,planes,H/stride,W/stride]"""
    expansion = 1

    def __init__(self, in_planes, planes, stride):
        super().__init__()
        self.conv1 = conv3x3(in_planes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.last_norm = "bn2"
        self.downsample = None
        if stride != 1 or in_planes != planes:
            self.downsample = nn.Sequential(conv1x1(in_planes, planes, stride), nn.BatchNorm2d(planes))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class Bottleneck(nn.Module):
    """x [N,in,H,W] -> [N,4*planes,H/stride,W/stride]"""
    expansion = 4

    def __init__(self, in_planes, planes, stride):
        super().__init__()
        self.conv1 = conv1x1(in_planes, planes)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = conv1x1(planes, 4 * planes)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.last_norm = "bn3"
        self.downsample = None
        if stride != 1 or in_planes != 4 * planes:
            self.downsample = nn.Sequential(conv1x1(in_planes, 4 * planes, stride), nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """x [N,3,H,W] -> logits [N,num_classes]"""

    def __init__(self, block, blocks, num_classes=1000, zero_init_residual=False):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._make_layer(block, 64, 64, blocks[0], 1)
        self.layer2 = self._make_layer(block, 64 * block.expansion, 128, blocks[1], 2)
        self.layer3 = self._make_layer(block, 128 * block.expansion, 256, blocks[2], 2)
        self.layer4 = self._make_layer(block, 256 * block.expansion, 512, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if zero_init_residual and isinstance(module, block):
                nn.init.zeros_(getattr(module, module.last_norm).weight)

    def _make_layer(self, block, in_planes, planes, count, stride):
        layer = [block(in_planes, planes, stride)]
        layer += [block(planes * block.expansion, planes, 1) for _ in range(1, count)]
        return nn.Sequential(*layer)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet(depth, **options):
    block, blocks = {
        18: (BasicBlock, (2, 2, 2, 2)),
        34: (BasicBlock, (3, 4, 6, 3)),
        50: (Bottleneck, (3, 4, 6, 3)),
        101: (Bottleneck, (3, 4, 23, 3)),
    }[depth]
    return ResNet(block, blocks, **options)


def images(options):
    """Training set, test set, number of classes."""
    size = options.image_size
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)

    def normalize(x):
        return ((x - mean) / std).to(options.dtype)

    if options.data == "fake":
        if common.ranks()[0] == 0:
            print("made-up images of 10 classes; --data names a folder of real ones")
        return (common.FakeData(1024, (3, size, size), 10, transform=normalize),
                common.FakeData(256, (3, size, size), 10, first=1024, transform=normalize), 10)
    if not os.path.isdir(f"{options.data}/train"):
        raise FileNotFoundError(f"no folder {options.data}/train; name one with train/CLASS/*.jpg and val/CLASS/*.jpg "
                                "(--data DIR), or train on made-up images (--data fake)")
    from torchvision import datasets, transforms as T
    augment = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToTensor(), normalize])
    middle = T.Compose([T.Resize(size * 256 // 224), T.CenterCrop(size), T.ToTensor(), normalize])
    train = datasets.ImageFolder(f"{options.data}/train", augment)
    test = datasets.ImageFolder(f"{options.data}/val", middle)
    assert train.classes == test.classes, "train and val have other classes"
    return train, test, len(train.classes)


def load_weights(model, path):
    """Weights of a file; fc keeps its first values when the file's tells other classes apart."""
    from safetensors.torch import load_file
    weights = load_file(path)
    for name, own in model.fc.named_parameters():
        if weights[f"fc.{name}"].shape != own.shape:
            weights[f"fc.{name}"] = own.detach()
    model.load_state_dict(weights)


def make_schedule(name, sgd, epochs):
    if name == "cosine":
        return lr_scheduler.CosineAnnealingLR(sgd, epochs)
    return lr_scheduler.StepLR(sgd, 30, 0.1 if name == "step" else 1)


def test(model, loader, device, divided=True):
    """Shares of the labels that are the highest logit, and one of the five highest; `divided`: ranks share batches."""
    training = model.training
    model.eval()
    top1 = top5 = 0
    with torch.no_grad():
        for x, label in common.own_batches(loader) if divided else loader:
            logits = model(x.to(device))
            top = logits.topk(min(5, logits.shape[1])).indices == label.to(device).unsqueeze(1)
            top1 += top[:, 0].sum().item()
            top5 += top.sum().item()
    model.train(training)
    size = len(loader.dataset) * (1 if divided else common.ranks()[1])
    return {name: common.total(count, device) / size for name, count in (("top1", top1), ("top5", top5))}


OPTIONS = {
    "--depth": {"type": int, "choices": (18, 34, 50, 101), "default": 18, "help": "layers"},
    "--image-size": {"type": common.whole_number(1), "default": 224, "help": "height and width of what the net sees"},
    "--zero-init-residual": {"action": "store_true", "help": "each block starts as the identity"},
    "--weights": {"help": "start from this model.safetensors"},
    "--freeze": {"choices": ("none", "all-but-fc"), "default": "none", "help": "what is not trained"},
    "--schedule": {"choices": ("none", "step", "cosine"), "default": "none",
                   "help": "learning rate per epoch: a tenth every 30, or down to 0 along a cosine"},
}


def main(options):
    train_set, test_set, classes = images(options)
    model = resnet(options.depth, num_classes=classes, zero_init_residual=options.zero_init_residual)
    model.to(options.device, options.dtype)  # before the weights are loaded, which f32 would round
    if options.weights:
        load_weights(model, options.weights)
    if options.freeze == "all-but-fc":
        model.requires_grad_(False)
        model.fc.requires_grad_(True)
        model.eval()  # the running statistics do not change either
    print(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(trainable, lr=options.lr, momentum=0.9, weight_decay=1e-4)
    schedule = make_schedule(options.schedule, sgd, options.epochs)
    loader = DataLoader(train_set,
                        batch_size=options.batch_size,
                        shuffle=options.shuffle,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    test_loader = DataLoader(common.test_part(test_set, options, options.batch_size),
                             batch_size=options.batch_size, num_workers=options.workers)

    recorder = common.Recorder(options)
    recorder.resume(model, sgd, schedule)
    for epoch in recorder.epochs():
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            label = label.to(options.device, non_blocking=True)
            sgd.zero_grad()
            loss = F.cross_entropy(model(x), label)
            loss.backward()
            sgd.step()
            recorder.step(loss)
        if recorder.position() == 0:  # the epoch is complete
            schedule.step()
            for name, value in test(model, test_loader, options.device).items():
                recorder.test(name, value)
        recorder.save(model, sgd, schedule)
    if recorder.interrupted:
        raise SystemExit(130)
    if recorder.position() > 0:
        for name, value in test(model, test_loader, options.device).items():
            recorder.test(name, value)
    recorder.finish(model)


if __name__ == "__main__":
    common.run(main, "resnet", __doc__, lr=0.0125, data="fake", options=OPTIONS)  # 0.1 for 256 images
