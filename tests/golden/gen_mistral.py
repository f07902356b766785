"""Writes mistral.h: what a small decoder of Mistral's shape computes, in plain Python and float64.

    python3 tests/golden/gen_mistral.py

It follows the equations and nothing else: RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), rotary positions (Su et
al. 2021, arXiv 2104.09864) with dimension i beside i + d/2, queries in groups (Ainslie et al. 2023, arXiv 2305.13245),
SwiGLU (Shazeer 2020, arXiv 2002.05202). Weights and tokens are formulas, which the test has too. The tests never run this.
"""

import math
import pathlib

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, HIDDEN = 13, 16, 2, 4, 2, 24
BASE, EPSILON = 10000.0, 1e-5
TOKENS = [[1, 5, 2, 12, 7], [3, 3, 0, 9, 4]]
D = WIDTH // HEADS

number = 0


def weight(rows, columns):
    """The next matrix; rows 0: the next scale of a norm. In the order of the names in the file below."""
    global number
    number += 1
    count = columns * max(rows, 1)
    u = [((i * 7919 + number * 104729 + 12345) % 65521) / 65521 - 0.5 for i in range(count)]
    if not rows:
        return [1 + 0.4 * x for x in u]
    return [[0.8 * x for x in u[r * columns : (r + 1) * columns]] for r in range(rows)]


def times(x, matrix):
    return [sum(a * b for a, b in zip(x, row)) for row in matrix]


def norm(x, scale):
    mean = sum(a * a for a in x) / len(x)
    return [a / math.sqrt(mean + EPSILON) * s for a, s in zip(x, scale)]


def rotate(x, position):
    half = D // 2
    out = [0.0] * D
    for i in range(half):
        angle = position * BASE ** (-2 * i / D)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def heads(x, count):
    return [x[h * D : (h + 1) * D] for h in range(count)]


class Layer:
    def __init__(self):
        self.q, self.k = weight(HEADS * D, WIDTH), weight(KEY_HEADS * D, WIDTH)
        self.v, self.o = weight(KEY_HEADS * D, WIDTH), weight(WIDTH, HEADS * D)
        self.gate, self.up, self.down = weight(HIDDEN, WIDTH), weight(HIDDEN, WIDTH), weight(WIDTH, HIDDEN)
        self.norm1, self.norm2 = weight(0, WIDTH), weight(0, WIDTH)

    def attention(self, xs):
        q = [[rotate(h, t) for h in heads(times(x, self.q), HEADS)] for t, x in enumerate(xs)]
        k = [[rotate(h, t) for h in heads(times(x, self.k), KEY_HEADS)] for t, x in enumerate(xs)]
        v = [heads(times(x, self.v), KEY_HEADS) for x in xs]
        out = []
        for t in range(len(xs)):
            joined = []
            for h in range(HEADS):
                g = h // (HEADS // KEY_HEADS)
                scores = [sum(a * b for a, b in zip(q[t][h], k[s][g])) / math.sqrt(D) for s in range(t + 1)]
                e = [math.exp(s - max(scores)) for s in scores]
                joined += [sum(e[s] * v[s][g][i] for s in range(t + 1)) / sum(e) for i in range(D)]
            out.append(times(joined, self.o))
        return out

    def mlp(self, x):
        gate, up = times(x, self.gate), times(x, self.up)
        return times([g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)], self.down)

    def __call__(self, xs):
        added = self.attention([norm(x, self.norm1) for x in xs])
        xs = [[a + b for a, b in zip(x, y)] for x, y in zip(xs, added)]
        added = [self.mlp(norm(x, self.norm2)) for x in xs]
        return [[a + b for a, b in zip(x, y)] for x, y in zip(xs, added)]


def main():
    embedding = weight(VOCABULARY, WIDTH)
    layers = [Layer() for _ in range(LAYERS)]
    last, head = weight(0, WIDTH), weight(VOCABULARY, WIDTH)
    states, logits, losses = [], [], []
    for row in TOKENS:
        xs = [embedding[t] for t in row]
        for layer in layers:
            xs = layer(xs)
        xs = [norm(x, last) for x in xs]
        states += [a for x in xs for a in x]
        guesses = [times(x, head) for x in xs]
        logits += [a for x in guesses for a in x]
        for t in range(len(row) - 1):
            losses.append(math.log(sum(math.exp(a) for a in guesses[t])) - guesses[t][row[t + 1]])
    with open(pathlib.Path(__file__).parent / "mistral.h", "w") as file:
        file.write("/* mistral.h - written by gen_mistral.py. */\n#ifndef GOLDEN_MISTRAL_H\n#define GOLDEN_MISTRAL_H\n\n")
        file.write("/* clang-format off */\n")
        for name, values in (("states", states), ("logits", logits)):
            file.write(f"static const double mistral_{name}[{len(values)}] = {{\n")
            for i in range(0, len(values), 4):
                file.write("    " + " ".join(f"{x:.12g}," for x in values[i : i + 4]) + "\n")
            file.write("};\n")
        file.write(f"static const double mistral_loss = {sum(losses) / len(losses):.12g};\n")
        file.write("/* clang-format on */\n\n#endif\n")


main()
