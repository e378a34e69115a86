"""Trains ResNet-18 or ResNet-50 on pictures in folders, or on made-up ones."""
import torch
from torch import nn
from torch.nn import functional as F

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


def resnet18(**options):
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


def resnet50(**options):
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)
