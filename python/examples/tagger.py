"""A tagger of words: an encoder, padded batches, a mean over tokens, AdamW with clipping and a warm-up."""
import memtrain
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from networks import Tagger, Texts, collate


def loss_of(model, batch):
    logits = model(batch["tokens"], batch["padding"])
    loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
    return loss, (batch["labels"] != -100).sum()


def main(epochs=2):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    loader = DataLoader(Texts(96), batch_size=32, shuffle=True, collate_fn=collate)
    trainer = memtrain.Trainer(model, loss_of, optimizer, budget="240MiB", clip_norm=1.0)
    for epoch in range(epochs):
        model.train()
        for batch in loader:
            report = trainer.step(batch)
            scheduler.step()
        print("epoch %d  loss %.4f" % (epoch + 1, report.loss))
    print(trainer.report())


if __name__ == "__main__":
    main()
