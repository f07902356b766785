"""Writes efficientnet_b4.bin: what the features of torchvision's EfficientNet-B4 compute.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 torchvision==0.26.0 numpy
    venv/bin/python tests/golden/gen_efficientnet.py

In float64, as gen_resnet.py has it; without stochastic depth, which is random. The tests never run this script.

Records:
    state                 lines "name sizes", in the order of torchvision's state_dict
    parameters            lines "name", in the order of torchvision's parameters
    MODE.fine, MODE.coarse  digests of the maps of features.5 and features.8; MODE is eval (running
                          statistics) or train (those of the batch)
    MODE.loss             mean of the products of both maps with made-up numbers
    grad/NAME             digest of the gradient of train.loss
    buffer/NAME           digest of the buffer after the training pass
"""

import pathlib

import torch
import torchvision

import golden

SIZE = 96
BATCH = 2
FINE = 5


def passes(features, images):
    x = images
    for i, stage in enumerate(features):
        x = stage(x)
        if i == FINE:
            fine = x
    return fine, x


def loss_of(fine, coarse):
    return sum(
        (maps * golden.uniform(name, maps.shape)).mean()
        for name, maps in (("fine", fine), ("coarse", coarse))
    )


def main():
    torch.set_num_threads(1)
    net = torchvision.models.efficientnet_b4(stochastic_depth_prob=0.0)
    del net.classifier
    out = golden.File()
    state = net.state_dict().items()
    out.add("state", "".join(" ".join([n, *map(str, t.shape)]) + "\n" for n, t in state))
    out.add("parameters", "".join(n + "\n" for n, _ in net.named_parameters()))
    net.double()
    golden.fill(net)
    images = golden.uniform("images", [BATCH, 3, SIZE, SIZE])
    for mode in ("eval", "train"):
        fine, coarse = passes(net.train(mode == "train").features, images)
        loss = loss_of(fine, coarse)
        out.add(mode + ".fine", golden.digest("fine", fine))
        out.add(mode + ".coarse", golden.digest("coarse", coarse))
        out.add(mode + ".loss", loss)
    loss.backward()
    for name, parameter in net.named_parameters():
        out.add("grad/" + name, golden.digest(name, parameter.grad))
    for name, buffer in net.named_buffers():
        out.add("buffer/" + name, golden.digest(name, buffer))
    out.write(pathlib.Path(__file__).with_name("efficientnet_b4.bin"))


if __name__ == "__main__":
    main()
