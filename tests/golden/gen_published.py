"""Writes published.bin: names and numbers of networks that are trained at their published size.

    python3 -m venv venv && venv/bin/pip install torch torchvision timm open_clip_torch numpy
    venv/bin/python tests/golden/gen_published.py

In float64, as gen_resnet.py has it. torch 2.15.0, torchvision 0.29.2, timm 1.0.31 and open_clip 3.3.0 wrote the file. The tests
never run this script.

Records, NET being tiny_vit (timm's, with the names and the last stride of TinySAM's encoder), cspdarknet (timm's), clip_vit
and clip_rn50 (open_clip's, in small):
    NET.state             lines "name sizes", sorted
    NET.MODE.OUTPUT       digest; MODE is eval or train
    NET.grad/NAME         digest of the gradient of the mean of the products of all outputs with made-up numbers
    efficientnet.timm, tiny_vit.timm (without its head), clip_vit_b32.state, clip_rn50_full.state: lines "name sizes", sorted
"""

import pathlib

import open_clip
import timm
import torch

import golden

GRADIENTS = 12


def lines(items):
    rows = (" ".join([name, *map(str, tensor.shape)]) + "\n" for name, tensor in items)
    return "".join(sorted(rows))


def fill(items):
    with torch.no_grad():
        for name, tensor in items:
            if tensor.is_floating_point():
                tensor.copy_(golden.state(name, tensor.shape))


def add(out, net, name, names, run):
    """Outputs in both modes, and some of the gradients. names: of the network's tensors, what they are called here."""
    net.double()
    state = {names(key): tensor for key, tensor in net.state_dict().items()}
    out.add(name + ".state", lines(state.items()))
    fill(state.items())
    for mode in ("eval", "train"):
        outputs = run(net.train(mode == "train"))
        for key, value in outputs.items():
            out.add(f"{name}.{mode}.{key}", golden.digest(key, value))
    sum((v * golden.uniform(k, v.shape)).mean() for k, v in outputs.items()).backward()
    parameters = sorted((names(key), p) for key, p in net.named_parameters() if p.grad is not None)
    for key, parameter in parameters[:: max(1, len(parameters) // GRADIENTS)]:
        out.add(f"{name}.grad/{key}", golden.digest(key, parameter.grad))


def tinysam_name(name):
    """timm has the step between two stages at the beginning of the second, TinySAM at the end of the first."""
    parts = name.replace(".conv.weight", ".c.weight").split(".")
    if parts[0] == "patch_embed":
        parts = ["patch_embed", "seq", {"conv1": "0", "conv2": "2"}[parts[1]], *parts[2:]]
    if parts[0] == "stages":
        stage = int(parts[1]) - (parts[2] == "downsample")
        parts = ["layers", str(stage), *parts[2:]]
    return ".".join(parts)


def tiny_vit(out):
    net = timm.create_model("tiny_vit_5m_224", num_classes=0, drop_path_rate=0.0)
    net.head = torch.nn.Identity()
    net.stages[3].downsample.conv2.conv.stride = (1, 1)
    images = golden.uniform("images", [2, 3, 192, 192])

    def run(net):
        x = net.patch_embed(images)
        return {"maps": net.stages(x)}

    add(out, net, "tiny_vit", tinysam_name, run)


def cspdarknet(out):
    net = timm.create_model("cspdarknet53", num_classes=0, drop_path_rate=0.0)
    images = golden.uniform("images", [2, 3, 64, 64])

    def run(net):
        x, maps = net.stem(images), []
        for stage in net.stages:
            x = stage(x)
            maps.append(x)
        return dict(zip(("finest", "fine", "coarse"), maps[2:]))

    add(out, net, "cspdarknet", str, run)


def clip(out, name, vision, text, embedding):
    net = open_clip.CLIP(embedding, vision, text, quick_gelu=True)
    side = vision["image_size"]
    images = golden.uniform("images", [3, 3, side, side])
    tokens = golden.classes("tokens", 3 * text["context_length"], text["vocab_size"] - 1)
    tokens = tokens.reshape(3, -1)
    for row, end in enumerate((3, 5, text["context_length"] - 1)):
        tokens[row, end] = text["vocab_size"] - 1

    def run(net):
        return {"pictures": net.encode_image(images), "texts": net.encode_text(tokens)}

    add(out, net, name, str, run)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    out = golden.File()
    tiny_vit(out)
    cspdarknet(out)
    text = dict(context_length=9, vocab_size=50, width=128, heads=2, layers=2)
    clip(out, "clip_vit", dict(image_size=64, layers=2, width=128, patch_size=32), text, 96)
    clip(out, "clip_rn50", dict(image_size=64, layers=[3, 4, 6, 3], width=16), text, 96)
    full = {"ViT-B-32-quickgelu": "clip_vit_b32", "RN50-quickgelu": "clip_rn50_full"}
    for model, name in full.items():
        out.add(name + ".state", lines(open_clip.create_model(model).state_dict().items()))
    b4 = timm.create_model("efficientnet_b4", num_classes=0)
    out.add("efficientnet.timm", lines(b4.state_dict().items()))
    vit = timm.create_model("tiny_vit_5m_224", num_classes=0).state_dict()
    out.add("tiny_vit.timm", lines(i for i in vit.items() if not i[0].startswith("head.")))
    out.write(pathlib.Path(__file__).with_name("published.bin"))


if __name__ == "__main__":
    main()
