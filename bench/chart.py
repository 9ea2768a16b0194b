# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of the README from a result of bench/run.py: speed as a multiple of the peers'.

usage: python -m bench.chart build/bench/<result>.json docs/img/speed.svg
"""

import json
import pathlib
import sys

ROWS = {
    "cnn_train_16": "Tutorial CNN, training, batch 16",
    "cnn_train_256": "Tutorial CNN, training, batch 256",
    "cnn_infer_16": "Tutorial CNN, inference, batch 16",
    "cnn_infer_256": "Tutorial CNN, inference, batch 256",
    "mlp_train_16": "MLP, training, batch 16",
    "mlp_train_64": "MLP, training, batch 64",
    "resnet18_train": "ResNet-18, training",
    "resnet18_infer": "ResNet-18, inference",
    "resnet50_train": "ResNet-50, training",
    "unet_train": "U-Net, training",
    "vit_train": "ViT-B/16 2 layers, training",
    "lstm_train": "LSTM, training",
    "bert_train": "BERT-base 2 layers, training",
    "gpt2_train": "GPT-2 2 layers, training",
    "bert_infer": "BERT-base 2 layers, inference",
    "pointwise_chain": "Pointwise chain, 4096 x 768",
}
PEERS = {"eager": "#8b9bb4", "torch.compile": "#e0813d"}
WIDTH, LEFT, TOP, ROW, BAR = 860, 270, 74, 40, 13


def ratios(result, name):
    """{peer: how many times faster ours is}, with the larger number of threads."""
    threads = result["cases"][name]["threads"]
    figures = threads[max(threads, key=int)]
    ours = figures["tessera"]["best"]
    return {p: figures[p]["best"] / ours for p in PEERS if p in figures}


def draw(result):
    rows = [
        (title, ratios(result, name)) for name, title in ROWS.items() if name in result["cases"]
    ]
    longest = max(value for _, values in rows for value in values.values())
    scale = (WIDTH - LEFT - 70) / longest
    height = TOP + ROW * len(rows) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        '<text x="24" y="32" font-size="18" font-weight="bold" fill="#1f2733">'
        "Speed of Tessera as a multiple of PyTorch on the same two cores</text>",
    ]
    x = 24
    for peer, colour in PEERS.items():
        out.append(f'<rect x="{x}" y="46" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="56" fill="#4a5566">against {peer}</text>')
        x += 150
    bottom = TOP + ROW * len(rows)
    out.append(
        f'<line x1="{LEFT + scale:.1f}" x2="{LEFT + scale:.1f}" y1="{TOP - 4}" y2="{bottom}" '
        'stroke="#1f2733" stroke-dasharray="3 3"/>'
        f'<text x="{LEFT + scale:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#4a5566">'
        "equal speed</text>"
    )
    for i, (title, values) in enumerate(rows):
        y = TOP + i * ROW
        out.append(
            f'<text x="{LEFT - 12}" y="{y + 20}" text-anchor="end" fill="#1f2733">{title}</text>'
        )
        for k, (peer, value) in enumerate(values.items()):
            top = y + 4 + k * (BAR + 2) + (0 if len(values) > 1 else BAR / 2)
            length = value * scale
            out.append(
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2" '
                f'fill="{PEERS[peer]}"/>'
                f'<text x="{LEFT + length + 6:.1f}" y="{top + 11}" fill="#1f2733">'
                f"{value:.1f} x</text>"
            )
    note = f"best of {result['rounds']} interleaved rounds, float32, commit {result['commit']}"
    out.append(f'<text x="24" y="{height - 12}" font-size="11" fill="#8b9bb4">{note}</text></svg>')
    return "\n".join(out) + "\n"


def main(source, target):
    target = pathlib.Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(json.loads(pathlib.Path(source).read_text())))
    print(f"wrote {target}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
