"""The networks of the examples, and their data, which are drawn here: nothing is fetched."""
import torch
from torch import nn
from torch.utils.data import Dataset


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.skip = nn.Sequential()
        if stride > 1 or inside != outside:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet18(classes):
    """11.2 M parameters. [n, 3, side, side] to [n, classes]."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Pictures(Dataset):
    """Noise of 128 pixels in whose middle is a square, as bright as its class."""

    def __init__(self, count, classes=10):
        self.count, self.classes = count, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        picture = torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(index))
        label = index % self.classes
        picture[:, 32:96, 32:96] += label / 2 - self.classes / 4
        return picture, label


class Tagger(nn.Module):
    """A word for each token, by an encoder of 5.3 M parameters. [n, length] to [n, length, words]."""

    def __init__(self, words=4000, width=256, layers=4):
        super().__init__()
        self.embedding, self.place = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(128, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens, padding):
        x = self.embedding(tokens) + self.place[:tokens.shape[1]]
        return self.head(self.encoder(x, src_key_padding_mask=padding))


class Texts(Dataset):
    """Sentences of 32 to 128 words; the label of each is the word before it."""

    def __init__(self, count, words=4000):
        self.count, self.words = count, words

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(32, 129, (), generator=generator))
        return torch.randint(1, self.words, (length,), generator=generator)


def collate(texts):
    """Padded to the longest of the batch: 0 as a token, -100 as a label."""
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    labels = torch.cat([torch.full_like(tokens[:, :1], -100), tokens[:, :-1]], 1)
    return {"tokens": tokens, "padding": tokens == 0, "labels": labels.masked_fill(tokens == 0, -100)}
