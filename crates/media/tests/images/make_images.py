#!/usr/bin/env python3
"""Makes the small images beside this file with Pillow, and what Pillow decodes them to.

usage: make_images.py (Pillow 13.0.0, NumPy)

NAME.EXT is an image, NAME.EXT.rgb its 8-bit RGB pixels: EXIF orientation applied, transparency
composited onto white as transformers 5.22.2 does. resize.bin holds resized pixels, see `resized`.
"""
import io, os
import numpy as np
from PIL import Image, ImageOps

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 24, 17
rng = np.random.default_rng(0)
y, x = np.mgrid[0:H, 0:W].astype(np.float64)
base = np.stack([255 * x / (W - 1), 255 * y / (H - 1), 127 + 120 * np.sin((x + 2 * y) / 5)], -1)
base = np.clip(np.rint(base + rng.normal(0, 6, base.shape)), 0, 255).astype(np.uint8)
alpha = np.clip(np.rint(255 * (x + y) / (W + H - 2)), 0, 255).astype(np.uint8)
rgb = Image.fromarray(base)
rgba = Image.fromarray(np.dstack([base, alpha]))


def reference(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255,) * 4), image)
    return image.convert("RGB")


def save(name, image, **options):
    buffer = io.BytesIO()
    image.save(buffer, {"jpg": "JPEG"}.get(name.split(".")[-1], name.split(".")[-1].upper()), **options)
    data = buffer.getvalue()
    open(os.path.join(HERE, name), "wb").write(data)
    open(os.path.join(HERE, name + ".rgb"), "wb").write(reference(data).tobytes())


palette = rgb.quantize(16)
save("rgb.png", rgb)
save("rgba.png", rgba)
save("gray.png", rgb.convert("L"))
save("gray_alpha.png", rgba.convert("LA"))
save("palette.png", palette)
save("palette_transparent.png", palette, transparency=3)
save("bilevel.png", rgb.convert("1"))
save("baseline.jpg", rgb, quality=90, subsampling=0)
save("subsampled.jpg", rgb, quality=90)
save("progressive.jpg", rgb, quality=90, progressive=True)
save("gray.jpg", rgb.convert("L"), quality=90)
save("cmyk.jpg", rgb.convert("CMYK"), quality=95, subsampling=0)
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(f"orientation{orientation}.jpg", rgb, quality=95, subsampling=0, exif=exif)
save("lossless.webp", rgb, lossless=True)
save("lossy.webp", rgb, quality=90)
save("alpha.webp", rgba, lossless=True, exact=True)
save("still.gif", palette)
save("transparent.gif", palette, transparency=5)
save("rgb.bmp", rgb)
save("palette.bmp", palette)
frames = [Image.fromarray(np.roll(base, 3 * n, axis=1)).quantize(32) for n in range(5)]
save("animated.gif", frames[0], save_all=True, append_images=frames[1:], duration=[100, 200, 100, 100, 500])
frames = [Image.fromarray(np.roll(base, 3 * n, axis=1)) for n in range(5)]
save("animated.webp", frames[0], save_all=True, append_images=frames[1:], duration=[100, 200, 100, 100, 500], lossless=True)


def resized():
    """For every (filter, width, height): torchvision's pixels, then Pillow's."""
    import torch
    from torchvision.transforms.v2 import functional as tvf
    from torchvision.transforms import InterpolationMode as mode
    tensor = torch.from_numpy(base.copy()).permute(2, 0, 1).contiguous()
    out = b""
    for filter, interpolation in ((2, mode.BILINEAR), (3, mode.BICUBIC), (1, mode.LANCZOS)):
        for width, height in ((7, 5), (24, 9), (50, 17), (61, 40), (2, 3)):
            torch_pixels = tvf.resize(tensor, [height, width], interpolation=interpolation, antialias=True)
            out += torch_pixels.permute(1, 2, 0).contiguous().numpy().tobytes()
            out += rgb.resize((width, height), filter).tobytes()
    open(os.path.join(HERE, "resize.bin"), "wb").write(out)


resized()
