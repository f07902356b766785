"""
The configurations of the five documents in plain loops of Python, each in a memory control group (Linux, root):

    documents.py NAME LIMIT [WEIGHTS]    one optimiser step of NAME in LIMIT; WEIGHTS: the language model's file, for prsmed
    documents.py --list

It prints whether the step went through or the kernel killed the process, and how far it came. One thread. Needs torchvision,
timm and transformers. Weights are random, and so is the data: neither decides about memory.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


def food101():
    """ResNet-50, 1024 pixels, batch 32."""
    from torchvision.models import resnet50

    net = resnet50(num_classes=101)
    return net, lambda: entropy(net(pictures(32, 1024)), 101)


def smartcash():
    """EfficientNet-B4, 640 pixels, batch 16; a mean of its last map in the place of a detector's heads."""
    from torchvision.models import efficientnet_b4

    net = efficientnet_b4(num_classes=7)
    return net, lambda: entropy(net(pictures(16, 640)), 7)


def prsmed(weights):
    """A language model of Mistral-7B's shape, frozen, and TinyViT-5M at 1024 pixels, batch 8 of 36 tokens each."""
    import timm
    import torch
    from transformers import AutoModelForCausalLM, MistralConfig

    with tempfile.TemporaryDirectory() as folder:
        config = MistralConfig(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                               num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump({**config.to_dict(), "architectures": ["MistralForCausalLM"]}, file)
        os.symlink(os.path.abspath(weights), os.path.join(folder, "model.safetensors"))
        text = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).requires_grad_(False)
    say("language model is there")
    net = torch.nn.ModuleList([timm.create_model("tiny_vit_5m_224", num_classes=0, global_pool=""), torch.nn.Linear(4096, 320)])

    def loss():
        with torch.no_grad():
            states = text.model(torch.randint(0, 256, (8, 36))).last_hidden_state.float()
        say("prompts are read")
        return (net[0](pictures(8, 1024)).mean((2, 3)) * net[1](states.mean(1))).square().mean()

    return net, loss


def car_clip():
    """ViT-B/32 and its text tower, 128 pairs."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    net = CLIPModel(CLIPConfig())
    return net, lambda: net(input_ids=torch.randint(0, 49405, (128, 77)), pixel_values=pictures(128, 224), return_loss=True).loss


def profoct():
    """ResNet34, two episodes of 105 pictures at 224 pixels, the covariance of 25,088 features as a matrix."""
    import torch
    from torchvision.models import resnet34

    net = resnet34()
    parts = list(net.children())[:-2]

    def loss():
        total = 0
        for _ in range(2):
            x = torch.nn.Sequential(*parts)(pictures(105, 224)).flatten(1)[:25]
            say("features are there")
            x = x - x.mean(0)
            covariance = x.T @ x / 24
            total = total + covariance.fill_diagonal_(0).square().sum() / x.shape[1]
        return total

    return net, loss


CONFIGURATIONS = (food101, smartcash, prsmed, car_clip, profoct)


def say(line):
    print(line, flush=True)


def pictures(count, side):
    import torch

    return torch.randn(count, 3, side, side)


def entropy(logits, classes):
    import torch

    return torch.nn.functional.cross_entropy(logits, torch.randint(0, classes, (len(logits),)))


def step(name, weights):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    make = {one.__name__: one for one in CONFIGURATIONS}[name]
    net, loss_of = make(*weights)
    optimizer = torch.optim.AdamW(net.parameters())
    say("network is there")
    loss = loss_of()
    say("forward pass is through")
    loss.backward()
    optimizer.step()
    say("step is through")


class Group:
    """A control group of either version."""

    def __init__(self, limit):
        first = os.path.exists("/sys/fs/cgroup/memory/cgroup.procs")
        self.path = ("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup") + f"/memtrain_documents.{os.getpid()}"
        os.mkdir(self.path)
        self.write("memory.limit_in_bytes" if first else "memory.max", limit)

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(text))

    def __exit__(self, *_):
        os.rmdir(self.path)

    def __enter__(self):
        return self


def size(text):
    for end, unit in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if text.endswith(end):
            return int(float(text[: -len(end)]) * unit)
    sys.exit(f"documents.py: '{text}' is no LIMIT; accepted: a number with MiB or GiB")


def main(arguments):
    if arguments == ["--list"]:
        for one in CONFIGURATIONS:
            print(f"{one.__name__:10} {one.__doc__}")
        return
    names = [one.__name__ for one in CONFIGURATIONS]
    if len(arguments) != 2 + (arguments[:1] == ["prsmed"]) or arguments[0] not in names:
        sys.exit(__doc__)
    name, limit, *weights = arguments
    with Group(size(limit)) as group:
        begin = time.monotonic()
        child = subprocess.Popen([sys.executable, __file__, "--child", name, *weights], stdout=subprocess.PIPE, text=True,
                                 preexec_fn=lambda: group.write("cgroup.procs", os.getpid()))
        lines = child.communicate()[0].splitlines()
        killed = child.returncode == -signal.SIGKILL
        end = "killed" if killed else "went through" if child.returncode == 0 else f"failed with status {child.returncode}"
        print(f"{name} in {limit}: {end} after {time.monotonic() - begin:.0f} s; last: {lines[-1] if lines else 'nothing'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        step(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:])
