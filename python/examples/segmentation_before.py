"""Segmentation: a U-Net, a loss of Dice and cross-entropy, Adam, and Dice as a metric."""
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from networks import Masks, UNet


def dice(logits, masks):
    """Of each picture, [n]."""
    inside = torch.sigmoid(logits)
    both = (inside * masks).sum((1, 2, 3))
    return (2 * both + 1) / (inside.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)


def loss_of(model, pictures, masks):
    logits = model(pictures)
    score = dice(logits, masks).mean()
    return {"loss": 1 - score + F.binary_cross_entropy_with_logits(logits, masks), "dice": score}


def main(epochs=2):
    torch.manual_seed(0)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Masks(64), batch_size=32, shuffle=True)
    for epoch in range(epochs):
        model.train()
        total = score = 0.0
        for pictures, masks in loader:
            optimizer.zero_grad()
            output = loss_of(model, pictures, masks)
            output["loss"].backward()
            optimizer.step()
            total += output["loss"].item() * len(pictures)
            score += output["dice"].item() * len(pictures)
        print("epoch %d  loss %.4f  Dice %.3f" % (epoch + 1, total / len(loader.dataset), score / len(loader.dataset)))


if __name__ == "__main__":
    main()
