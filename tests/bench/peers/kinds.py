"""The networks of python/examples with their losses, optimisers and data, for what is measured of them."""
import os
import sys
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python/examples"))

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

import networks  # noqa: E402

# loss_of(model, *batch) is one of memtrain's; batches come from collate(samples), as a tuple.
Kind = namedtuple("Kind", "model optimizer loss_of dataset collate clip")


def as_tuple(collate):
    def collate_to_tuple(samples):
        batch = collate(samples)
        return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    return collate_to_tuple


def classifier():
    from torchvision.models import resnet18
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    return Kind(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y), networks.Pictures,
                as_tuple(default_collate), None)


def vit():
    import timm
    model = timm.create_model("vit_tiny_patch16_224", img_size=128, num_classes=10, drop_path_rate=0.1)
    return Kind(model, torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05),
                lambda model, x, y: F.cross_entropy(model(x), y), networks.Pictures, as_tuple(default_collate), None)


def texts():
    import texts as program
    model = program.Classifier(classes=4)
    return Kind(model, torch.optim.AdamW(model.parameters(), lr=3e-4), program.loss_of, networks.LabelledTexts,
                as_tuple(networks.collate_labelled), 1.0)


def tagger():
    import tagger as program
    model = networks.Tagger()
    return Kind(model, torch.optim.AdamW(model.parameters(), lr=1e-3), program.loss_of, networks.Texts,
                as_tuple(networks.collate), 1.0)


def segmentation():
    import segmentation as program
    model = networks.UNet()
    return Kind(model, torch.optim.Adam(model.parameters(), lr=1e-3), program.loss_of, networks.Masks,
                as_tuple(default_collate), None)


def lora():
    import lora as program
    model = networks.add_lora(networks.Decoder(), rank=8)
    thin = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Kind(model, torch.optim.AdamW(thin, lr=1e-2), lambda model, batch: program.loss_of(model, batch["tokens"]),
                lambda count: networks.Texts(count, words=50), as_tuple(networks.collate), None)


KINDS = {kind.__name__: kind for kind in (classifier, vit, texts, tagger, segmentation, lora)}


def make(name):
    """The same numbers each time."""
    torch.manual_seed(0)
    kind = KINDS[name]()
    kind.model.train()
    return kind


def tensors_of(value, path=""):
    """(path, tensor), one by one."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_of(part, "%s[%r]" % (path, key))
    else:
        for index, part in enumerate(value):
            yield from tensors_of(part, "%s[%d]" % (path, index))


def cut(value, first, count):
    """These samples of a batch."""
    if isinstance(value, torch.Tensor):
        return value[first:first + count]
    if isinstance(value, dict):
        return {key: cut(part, first, count) for key, part in value.items()}
    return tuple(cut(part, first, count) for part in value)


def loss_and_units(output, samples):
    """What loss_of returned, for a loop by hand."""
    if isinstance(output, dict):
        return output["loss"], output.get("units", samples)
    return output if isinstance(output, tuple) else (output, samples)
