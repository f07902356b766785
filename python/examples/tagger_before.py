"""A tagger of words: an encoder, padded batches, a mean over tokens, AdamW with clipping and a warm-up."""
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from networks import Tagger, Texts, collate


def loss_of(model, batch):
    logits = model(batch["tokens"], batch["padding"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def main(epochs=2):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    loader = DataLoader(Texts(96), batch_size=32, shuffle=True, collate_fn=collate)
    for epoch in range(epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        print("epoch %d  loss %.4f" % (epoch + 1, loss.item()))


if __name__ == "__main__":
    main()
