"""Writes resnet18.bin, resnet34.bin and resnet50.bin: what torchvision's ResNets compute.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 torchvision==0.26.0 numpy
    venv/bin/python tests/golden/gen_resnet.py

Everything is computed in float64, so that the numbers do not depend on the machine to more than
about 1e-12; a test in float32 then sees its own rounding only. The tests never run this script.

Records:
    state                     lines "name sizes", in the order of torchvision's state_dict
    parameters                lines "name", in the order of torchvision's parameters
    init/NAME                 digest of the initial value after manual_seed(0), float32
    eval.logits, eval.loss    forward pass with the running statistics
    train.logits, train.loss  forward pass with those of the batch
    grad/NAME                 digest of the gradient of train.loss
    buffer/NAME               digest of the buffer after the training pass
"""

import pathlib

import torch
import torchvision

import golden

CLASSES = 101
SIZE = 64
BATCH = {18: 4, 34: 2, 50: 2}


def network(depth):
    return getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)


def add_description(out, net):
    state = net.state_dict().items()
    out.add("state", "".join(" ".join([n, *map(str, t.shape)]) + "\n" for n, t in state))
    out.add("parameters", "".join(n + "\n" for n, _ in net.named_parameters()))
    for name, parameter in net.named_parameters():
        out.add("init/" + name, golden.digest(name, parameter))


def add_passes(out, net, batch):
    images = golden.uniform("images", [batch, 3, SIZE, SIZE])
    targets = golden.classes("targets", batch, CLASSES)
    for mode in ("eval", "train"):
        logits = net.train(mode == "train")(images)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        out.add(mode + ".logits", logits)
        out.add(mode + ".loss", loss)
    loss.backward()
    for name, parameter in net.named_parameters():
        out.add("grad/" + name, golden.digest(name, parameter.grad))
    for name, buffer in net.named_buffers():
        out.add("buffer/" + name, golden.digest(name, buffer))


def main():
    torch.set_num_threads(1)
    for depth, batch in BATCH.items():
        torch.manual_seed(0)
        net = network(depth)
        out = golden.File()
        add_description(out, net)
        net.double()
        golden.fill(net)
        add_passes(out, net, batch)
        out.write(pathlib.Path(__file__).with_name(f"resnet{depth}.bin"))


if __name__ == "__main__":
    main()
