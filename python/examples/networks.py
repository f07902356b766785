"""The networks of the examples, and their data, which are drawn here: nothing is fetched."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset


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


class LabelledTexts(Dataset):
    """Sentences of 32 to 128 words of a class's own quarter of the vocabulary."""

    def __init__(self, count, words=8000, classes=4):
        self.count, self.words, self.classes = count, words, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length, label = int(torch.randint(32, 129, (), generator=generator)), index % self.classes
        quarter = self.words // self.classes
        return torch.randint(max(1, label * quarter), (label + 1) * quarter, (length,), generator=generator), label


def collate_labelled(samples):
    """Padded to the longest of the batch, with a mask of what is no padding."""
    tokens = nn.utils.rnn.pad_sequence([text for text, _ in samples], batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": torch.tensor([y for _, y in samples])}


class Masks(Dataset):
    """Noise of 128 pixels with a bright rectangle somewhere, and a mask of the rectangle."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture, mask = torch.randn(3, 128, 128, generator=generator), torch.zeros(1, 128, 128)
        top, left, height, width = (int(n) for n in torch.randint(24, 64, (4,), generator=generator))
        mask[:, top:top + height, left:left + width] = 1
        return picture + 2 * mask, mask


def two_convolutions(inside, outside):
    layers = []
    for channels in (inside, outside):
        layers += [nn.Conv2d(channels, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """7.8 M parameters. [n, 3, side, side] to logits of a mask, [n, 1, side, side]; side is a multiple of 32."""

    def __init__(self, widths=(16, 32, 64, 128, 256, 512)):
        super().__init__()
        self.down = nn.ModuleList(two_convolutions(a, b) for a, b in zip((3,) + widths, widths))
        pairs = list(zip(widths, widths[1:]))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, high, 2, 2) for high, deep in pairs)
        self.join = nn.ModuleList(two_convolutions(2 * high, high) for high, _ in pairs)
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class DecoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A language model of 5.8 M parameters. Tokens [n, length] to logits [n, length, words]."""

    def __init__(self, words=4000, width=256, layers=6, heads=4):
        super().__init__()
        self.embedding, self.place = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(128, width))
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*(DecoderBlock(width, heads) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.place[:tokens.shape[1]]
        return self.norm(self.blocks(x)) @ self.embedding.weight.T


class LoRA(nn.Module):
    """A linear layer that stays as it is, and a product of two thin matrices that trains beside it."""

    def __init__(self, layer, rank, dropout=0.1):
        super().__init__()
        self.layer, self.dropout = layer, nn.Dropout(dropout)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + F.linear(F.linear(self.dropout(x), self.down), self.up)


def add_lora(model, rank):
    """Freezes the model, and gives each attention's layers a LoRA."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = LoRA(block.qkv, rank), LoRA(block.out, rank)
    return model
