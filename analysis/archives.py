"""Zip files whose bytes depend on their content alone."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

_EPOCH = (1980, 1, 1, 0, 0, 0)


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """A zip of files by name. Same files, same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
