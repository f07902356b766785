"""LoRA: thin matrices beside the layers of a decoder that is frozen, a mean over the words that are no padding, AdamW."""
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from networks import Decoder, Texts, add_lora, collate


def loss_of(model, tokens):
    logits, words = model(tokens[:, :-1]), tokens[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0)


def main(epochs=2):
    torch.manual_seed(0)
    model = add_lora(Decoder(), rank=8)
    thin = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(thin, lr=1e-2)
    loader = DataLoader(Texts(64, words=50), batch_size=32, shuffle=True, collate_fn=collate)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch["tokens"])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("epoch %d  loss %.4f" % (epoch + 1, total / len(loader)))


if __name__ == "__main__":
    main()
