"""Draw docs/views.png: a photograph, and the pixels that the network gets of each view of it.

    python docs/views.py

The "photograph" is drawn here, so that the repository carries no stranger's picture. The pixels are
those of `atta.Preprocess`.
"""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageFont

from atta import Preprocess
from atta.data.photographs import box_of

WIDTH, HEIGHT, FINE = 480, 320, 3
VIEWS = (("larger", 1), ("tight", 1), ("wide", 1), ("whole", 1), ("flip-corner", 2))
COLOURS = {"crop": "#1f2937", "tight": "#dc2626", "wide": "#2563eb", "corner": "#d97706"}
PREPROCESS = Preprocess(resize=128, crop=112, interpolation="bicubic", views=VIEWS)
GAP, TEXT = 16, 20


def photograph() -> Image.Image:
    """Draw a landscape with a boat, at three times its size, and reduce it."""
    picture = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE))
    draw = ImageDraw.Draw(picture)
    for y in range(HEIGHT * FINE):
        t = y / (HEIGHT * FINE)
        sky = (int(120 + 110 * t), int(175 + 50 * t), 235)
        sea = (int(70 - 30 * t), int(140 - 40 * t), int(175 - 50 * t))
        draw.line((0, y, WIDTH * FINE, y), fill=sky if t < 0.6 else sea)

    def shape(points: str, fill: str) -> None:
        numbers = [FINE * float(one) for one in points.split()]
        draw.polygon(list(zip(numbers[::2], numbers[1::2], strict=True)), fill=fill)

    draw.ellipse([FINE * one for one in (380, 30, 430, 80)], fill="#fde68a")
    shape("0 192 0 140 50 110 110 160 150 192", "#4d7c5a")
    shape("60 192 150 125 210 150 270 192", "#3f6b4c")
    shape("330 192 400 150 480 130 480 192", "#557f5f")
    shape("20 192 20 150 40 135 60 150 60 192", "#e7e5e4")
    shape("14 152 40 130 66 152", "#b45309")
    shape("175 215 325 215 300 250 200 250", "#7f1d1d")
    shape("180 215 320 215 316 222 184 222", "#f5f5f4")
    shape("246 210 246 70 252 70 252 210", "#44403c")
    shape("256 75 256 205 335 205", "#fafaf9")
    shape("242 95 242 205 185 205", "#fecaca")
    for x in range(20, 480, 46):
        shape(f"{x} {265 + x % 37} {x + 26} {268 + x % 37} {x + 8} {270 + x % 37}", "#9cc5d3")
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).filter(
        ImageFilter.UnsharpMask(1, 40)
    )


def framed(photo: Image.Image) -> Image.Image:
    """Return the photograph with the parts that its views show."""
    shown, side = photo.copy(), 112 * HEIGHT / 128
    draw, width = ImageDraw.Draw(shown), WIDTH * 128 / HEIGHT
    frame = (112 * WIDTH / int(width), side)
    boxes = {
        "crop": box_of("larger", photo.size, frame),
        "tight": box_of("tight", photo.size, frame),
        "wide": box_of("wide", photo.size, frame),
    }
    x, y = WIDTH - frame[0], HEIGHT - frame[1]
    corners = [(0, 0, frame[0], frame[1]), (x, y, WIDTH, HEIGHT)]
    for name, box in [*boxes.items(), *(("corner", box) for box in corners)]:
        left, top, right, bottom = (round(edge) for edge in box)
        inside = (max(left, 1), max(top, 1), min(right, WIDTH - 2), min(bottom, HEIGHT - 2))
        draw.rectangle(inside, outline=COLOURS[name], width=3)
    return shown


def main() -> None:
    """Draw the picture."""
    photo = photograph()
    sheet, font = PREPROCESS(photo), ImageFont.load_default(13)
    where = PREPROCESS.sheet
    assert where is not None
    tiles = [("crop", "crop", where.crop(sheet))]
    for name, repeats in VIEWS:
        for tile in where.views(sheet, name, repeats):
            colour = {"larger": "crop", "whole": ""}.get(name, name.removeprefix("flip-"))
            tiles.append((name, colour, tile))
    columns = 4
    cell = 128 + GAP
    size = (WIDTH + GAP + columns * cell + GAP, HEIGHT + GAP + TEXT)
    page = Image.new("RGB", size, "white")
    page.paste(framed(photo), (GAP // 2, TEXT))
    draw = ImageDraw.Draw(page)
    draw.text((GAP // 2, 2), "a photograph, and the parts that views show", fill="#111", font=font)
    for i, (name, colour, tile) in enumerate(tiles):
        x = WIDTH + 2 * GAP + (i % columns) * cell
        y = TEXT + (i // columns) * (cell + TEXT)
        height, width = tile.shape[1:]
        draw.text((x, y - TEXT + 2), f"{name}, {width} x {height}", fill="#111", font=font)
        page.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (x, y))
        if colour:
            draw.rectangle((x - 2, y - 2, x + width + 1, y + height + 1), outline=COLOURS[colour])
    page.quantize(128).save(Path(__file__).with_name("views.png"), optimize=True)


if __name__ == "__main__":
    main()
