"""A classifier of pictures: ResNet-18 of torchvision's, a DataLoader, SGD with momentum and StepLR."""
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.models import resnet18

from networks import Pictures


def main(epochs=2):
    torch.manual_seed(0)
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loader = DataLoader(Pictures(96), batch_size=32, shuffle=True, num_workers=2)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        scheduler.step()
        print("epoch %d  loss %.4f" % (epoch + 1, total / len(loader.dataset)))


if __name__ == "__main__":
    main()
