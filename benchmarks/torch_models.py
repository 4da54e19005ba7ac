"""PyTorch twins of all shipped models, most in files beside this one: the same names, PyTorch's own layers, ReLU in
place.  No code of models/.
"""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.torch_coresnet import coresnet18, coresnet50
from benchmarks.torch_networks import TWINS as NETWORKS
from benchmarks.torch_zoo import TWINS as ZOO
from benchmarks.zoo.torch_shipped import TWINS as SHIPPED


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                          nn.BatchNorm2d(channels))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.linear = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(x.mean((2, 3)))


def convs(*sizes):
    """Conv, batch norm, ReLU for each (channels in, channels out, kernel size)."""
    return [layer for i, o, k in sizes
            for layer in (nn.Conv2d(i, o, k, padding=k // 2), nn.BatchNorm2d(o), nn.ReLU(inplace=True))]


class Inception(nn.Module):
    def __init__(self, i, n1, r3, n3, r5, n5, pool):
        super().__init__()
        self.b1 = nn.Sequential(*convs((i, n1, 1)))
        self.b2 = nn.Sequential(*convs((i, r3, 1), (r3, n3, 3)))
        self.b3 = nn.Sequential(*convs((i, r5, 1), (r5, n5, 3), (n5, n5, 3)))
        self.b4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), *convs((i, pool, 1)))

    def forward(self, x):
        return torch.cat([self.b1(x), self.b2(x), self.b3(x), self.b4(x)], 1)


class GoogLeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_layers = nn.Sequential(*convs((3, 192, 3)))
        self.a3, self.b3 = Inception(192, 64, 96, 128, 16, 32, 32), Inception(256, 128, 128, 192, 32, 96, 64)
        self.a4, self.b4 = Inception(480, 192, 96, 208, 16, 48, 64), Inception(512, 160, 112, 224, 24, 64, 64)
        self.c4, self.d4 = Inception(512, 128, 128, 256, 24, 64, 64), Inception(512, 112, 144, 288, 32, 64, 64)
        self.e4 = Inception(528, 256, 160, 320, 32, 128, 128)
        self.a5, self.b5 = Inception(832, 256, 160, 320, 32, 128, 128), Inception(832, 384, 192, 384, 48, 128, 128)
        self.linear = nn.Linear(1024, 10)

    def forward(self, x):
        x = F.max_pool2d(self.b3(self.a3(self.pre_layers(x))), 3, 2, 1)
        x = F.max_pool2d(self.e4(self.d4(self.c4(self.b4(self.a4(x))))), 3, 2, 1)
        return self.linear(self.b5(self.a5(x)).mean((2, 3)))


TWINS = {"lenet5": LeNet5, "resnet18": ResNet18, "googlenet": GoogLeNet,
         "coresnet18": coresnet18, "coresnet50": coresnet50, **NETWORKS, **ZOO, **SHIPPED}
