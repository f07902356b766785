"""A ViT of timm's with mixup, an exponential moving average of its weights, AdamW and a cosine schedule."""
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader

from networks import Pictures


def main(epochs=3):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=128, num_classes=10, drop_path_rate=0.1)
    ema = ModelEmaV3(model, decay=0.9)
    mixup, criterion = Mixup(mixup_alpha=0.2, num_classes=10), SoftTargetCrossEntropy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    loader = DataLoader(Pictures(64), batch_size=32, shuffle=True, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            x, y = mixup(x, y)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
            total += loss.item() * len(x)
        print("epoch %d  loss %.4f" % (epoch + 1, total / len(loader.dataset)))


if __name__ == "__main__":
    main()
