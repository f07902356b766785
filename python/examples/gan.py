"""A GAN: two networks, two optimisers, and two trainers in one budget."""
import memtrain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from networks import Pictures


def networks(width=64):
    """From 64 numbers to a picture of 32 pixels, and from that to a score."""
    def up(channels, to):
        return nn.Sequential(nn.ConvTranspose2d(channels, to, 4, 2, 1), nn.BatchNorm2d(to), nn.ReLU())

    def down(channels, to):
        return nn.Sequential(nn.Conv2d(channels, to, 4, 2, 1), nn.LeakyReLU(0.2))
    return nn.ModuleDict({
        "generator": nn.Sequential(nn.Linear(64, 8 * width * 16), nn.Unflatten(1, (8 * width, 4, 4)), up(8 * width, 4 * width),
                                   up(4 * width, 2 * width), up(2 * width, width), nn.Conv2d(width, 3, 3, 1, 1), nn.Tanh()),
        "critic": nn.Sequential(down(3, width), down(width, 2 * width), down(2 * width, 4 * width), nn.Flatten(),
                                nn.Linear(4 * width * 16, 1))})


def critic_loss(nets, pictures, noise):
    fakes = nets["generator"](noise).detach()
    return F.softplus(-nets["critic"](pictures)).mean() + F.softplus(nets["critic"](fakes)).mean()


def generator_loss(nets, noise):
    return F.softplus(-nets["critic"](nets["generator"](noise))).mean()


def trainers(nets, budget):
    """Both have both networks, so that a step that fails puts back whatever it has run, batch norms included."""
    def adam(net):
        return torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999))
    return (memtrain.Trainer(nets, critic_loss, adam(nets["critic"]), budget),
            memtrain.Trainer(nets, generator_loss, adam(nets["generator"])))


def main(epochs=2):
    torch.manual_seed(0)
    nets = networks()
    critic, generator = trainers(nets, "120MiB")
    loader = DataLoader(Pictures(128), batch_size=64, shuffle=True)
    for epoch in range(epochs):
        for pictures, _ in loader:
            noise = torch.randn(len(pictures), 64)
            pictures = F.avg_pool2d(pictures, 4).tanh()
            real = critic.step(pictures, noise)
            fake = generator.step(noise)
        print("epoch %d  critic %.4f in %s  generator %.4f in %s"
              % (epoch + 1, real.loss, real.chunks, fake.loss, fake.chunks))
    print(generator.report())


if __name__ == "__main__":
    main()
