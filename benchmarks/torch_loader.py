"""Items as a PyTorch data set gives them: cropped, mirrored and normalised where they are read, one by one."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

MARGIN = 4


class CroppedItems(Dataset):
    """As many 8-bit images of 32x32 pixels, the same in every process."""

    def __init__(self, count: int) -> None:
        images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
        self.images, self.labels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.arange(count) % 10

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index):
        wide = F.pad(self.images[index], (MARGIN,) * 4)
        top, left, mirrored = torch.randint(0, 2 * MARGIN + 1, (3,)).tolist()
        x = wide[:, top:top + 32, left:left + 32]
        return ((x.flip(2) if mirrored % 2 else x).float() / 255 - 0.5) / 0.25, int(self.labels[index])
