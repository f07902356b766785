#!/usr/bin/env python3
"""Makes the pictures under examples/data/ from the Debian package openclipart-png.

    python3 tools/make_pictures.py tools/pictures_food.json examples/data/food

Only whoever changes the embedded pictures needs this script (and Pillow, 10.1 or newer); the
example programs read its results.  The list maps every folder ("." for the target itself) to
{source file: new name}.  A new name has the form GROUP or GROUP__VARIANT: ex_dataset never lets
two variants of one group fall on different sides of the training/validation split.

Each picture is cropped to what is drawn (--whole: it is not), shrunk to --side pixels on its long
side (never enlarged) and written either as an RGB JPEG on white or as a PNG with a palette that
carries alpha, so that the programs exercise both decoders.  Which of the two depends on the
source's name alone; with --png all are PNGs.
"""

import argparse
import json
import pathlib
import sys
import zlib

try:
    from PIL import Image
except ImportError:  # --help needs none
    Image = None

SOURCE = pathlib.Path("/usr/share/openclipart/png")
QUALITY = 85
MARGIN = 0.03           # of the long side, kept around what is drawn
MAX_PIXELS = 30_000_000  # a few files of the package are decompression bombs
MIN_COVERAGE = 0.02     # mean alpha below which a picture counts as empty


def read(path):
    with Image.open(path) as opened:
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError("too many pixels")
        return opened.convert("RGBA")


def crop(picture):
    """Cuts a picture to the box of its visible pixels."""
    alpha = picture.getchannel("A")
    if sum(alpha.histogram()[128:]) < MIN_COVERAGE * picture.width * picture.height / 4:
        raise ValueError("practically empty")
    left, top, right, bottom = alpha.point(lambda a: 255 if a > 8 else 0).getbbox()
    margin = round(MARGIN * max(right - left, bottom - top))
    return picture.crop((left - margin, top - margin, right + margin, bottom + margin))


def shrink(picture, side):
    """Resizes in premultiplied alpha (thumbnail() alone would bleed hidden colours)."""
    scale = min(1.0, side / max(picture.size))
    size = tuple(max(1, round(scale * side)) for side in picture.size)
    return picture.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")


def write_jpeg(picture, path):
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    flat = Image.alpha_composite(white, picture).convert("RGB")
    flat.save(path, "JPEG", quality=QUALITY, optimize=True)


def write_png(picture, path, colours):
    palette = picture.quantize(colours, method=Image.Quantize.FASTOCTREE)
    palette.save(path, "PNG", optimize=True)


def make(source, target_stem, how):
    """Writes one picture and returns the path it got."""
    picture = read(how.source / source)
    picture = shrink(picture if how.whole else crop(picture), how.side)
    if zlib.crc32(source.encode()) % 2 and not how.png:
        target = target_stem.with_name(target_stem.name + ".jpg")
        write_jpeg(picture, target)
    else:
        target = target_stem.with_name(target_stem.name + ".png")
        write_png(picture, target, how.colours)
    return target


def arguments_of():
    parser = argparse.ArgumentParser(description="Make the embedded pictures of the examples.")
    parser.add_argument("list", type=pathlib.Path, help="JSON: folder -> {source: name}")
    parser.add_argument("target", type=pathlib.Path, help="folder that gets those of the list")
    parser.add_argument("--source", type=pathlib.Path, default=SOURCE, help="the package's files")
    parser.add_argument("--side", type=int, default=128, help="pixels of the long side")
    parser.add_argument("--colours", type=int, default=64, help="of a PNG's palette")
    parser.add_argument("--png", action="store_true", help="no JPEGs")
    parser.add_argument("--whole", action="store_true", help="do not crop")
    return parser.parse_args()


def main():
    how = arguments_of()
    if Image is None:
        sys.exit("make_pictures.py needs Pillow, 10.1 or newer: python3 -m pip install pillow")
    folders = json.loads(how.list.read_text())
    total = 0
    for name, pictures in sorted(folders.items()):
        folder = how.target / name
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        for source, stem in sorted(pictures.items()):
            try:
                made.append(make(source, folder / stem, how))
            except (OSError, ValueError) as error:
                sys.exit(f"{source}: {error}")
        size = sum(path.stat().st_size for path in made)
        total += size
        jpegs = sum(path.suffix == ".jpg" for path in made)
        print(f"{name:18} {len(made):4} pictures {jpegs:4} JPEG {size:8} bytes")
    print(f"total {total} bytes")


if __name__ == "__main__":
    main()
