"""Decoded samples as PNG pictures inside the page (ISO/IEC 15948: 8 bits, grey or RGB, no filter, zlib)."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["contact_sheet", "data_uri", "encode_png"]

_GREY, _RGB = 0, 2


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """PNG file of uint8 pixels, (H, W) grey or (H, W, 3) RGB. Raises ValueError for another shape."""
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(f"pixels must be (H, W) or (H, W, 3), not {pixels.shape}")
    height, width = pixels.shape[:2]
    colour = _GREY if pixels.ndim == 2 else _RGB
    rows = np.ascontiguousarray(pixels, dtype=np.uint8).reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # filter type 0 before each row
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def contact_sheet(images: npt.NDArray[Any], columns: int, gap: int = 1) -> npt.NDArray[np.uint8]:
    """Images (S, C, H, W) in [0, 1] side by side in rows of ``columns``, with ``gap`` mid-grey pixels between.

    Small images are enlarged by whole pixels to at least 28. One channel gives (h, w), three or more (h, w, 3);
    with two channels the first is shown. NaN is shown as black.
    """
    values = np.nan_to_num(np.asarray(images, dtype=np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    shown = values[:, :3] if values.shape[1] >= 3 else values[:, :1]
    scale = max(1, -(-28 // max(1, shown.shape[2])))
    pixels = np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8).repeat(scale, axis=2).repeat(scale, axis=3)
    count, channels, height, width = pixels.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, channels), 128, dtype=np.uint8)
    for index in range(count):
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        sheet[top : top + height, left : left + width] = pixels[index].transpose(1, 2, 0)
    return sheet[:, :, 0] if channels == 1 else sheet


def data_uri(png: bytes) -> str:
    """The file as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
