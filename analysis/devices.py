"""Which device a model goes to, whether it fits there (said before anything is loaded), and the processes that share work."""

from __future__ import annotations

import sys
from typing import Any

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

GIB = 2**30


def pick_device(device: str = "auto") -> torch.device:
    """cuda, then mps, then cpu for "auto"; otherwise the device named.

    Raises
    ------
    ValueError
        When that device is not on this machine.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.ones(1, device=device).item()  # `meta` is a device to torch, but holds no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split(". ")[0].splitlines()[0][:150]
        raise ValueError(f"the device {device!r} cannot be used on this machine ({reason}); try `auto` or `cpu`.") from error
    return torch.device(device)


def place(device: str, needed: int) -> str | dict[str, Any]:
    """A device map for `needed` bytes of weights: one device, or "auto" (Accelerate spreads a model larger than one GPU)."""
    chosen = pick_device(device)
    if chosen.type == "cuda" and device == "auto" and needed > torch.cuda.mem_get_info(chosen)[0]:
        return "auto"
    return {"": chosen}


def available_memory(placement: str | dict[str, Any]) -> int:
    """Free bytes where a model placed like this would lie; what Accelerate leaves on the disk needs none."""
    free = psutil.virtual_memory().available
    if isinstance(placement, dict) and "disk" in placement.values():
        return sys.maxsize
    if isinstance(placement, dict) and "" in placement:
        device = torch.device(placement[""])
        return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free
    return free + sum(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))


def check_memory(name: str, needed: int, placement: str | dict[str, Any], dtype: str) -> None:
    """Raise ValueError, with needed and available memory, when the weights alone do not fit."""
    available = available_memory(placement)
    if needed > available:
        remedy = "Use --dtype bfloat16, a smaller model" if dtype == "float32" else "Use a smaller model"
        raise ValueError(
            f"{name} needs about {needed / GIB:.1f} GiB for its weights in {dtype} and {available / GIB:.1f} GiB are free. "
            f"{remedy}, or a machine with more memory."
        )


def processes() -> PartialState:
    """This process among those that `accelerate launch` or `torchrun` started; alone when nobody launched several."""
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.cuda.is_available())
