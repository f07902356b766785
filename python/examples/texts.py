"""A classifier of texts: an encoder of Hugging Face's, padded batches, means over the tokens of each text, AdamW."""
import memtrain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

from networks import LabelledTexts, collate_labelled


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        config = BertConfig(vocab_size=8000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                            intermediate_size=1024, max_position_embeddings=128)
        self.encoder, self.head = BertModel(config, add_pooling_layer=False), nn.Linear(256, classes)

    def forward(self, input_ids, attention_mask):
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        return self.head((states * mask).sum(1) / mask.sum(1))


def loss_of(model, batch):
    logits = model(batch["input_ids"], batch["attention_mask"])
    return F.cross_entropy(logits, batch["labels"])


def main(epochs=3):
    torch.manual_seed(0)
    model = Classifier(classes=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(LabelledTexts(64), batch_size=32, shuffle=True, collate_fn=collate_labelled)
    trainer = memtrain.Trainer(model, loss_of, optimizer, budget="200MiB", clip_norm=1.0)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for batch in loader:
            total += trainer.step(batch).loss * len(batch["labels"])
        print("epoch %d  loss %.4f" % (epoch + 1, total / len(loader.dataset)))
    print(trainer.report())


if __name__ == "__main__":
    main()
