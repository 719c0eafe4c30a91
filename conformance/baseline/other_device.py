"""Compare an implementation on one device with a baseline that was recorded on another."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from goldformer.conformance.baseline.model import Baseline, BaselineError, Recording
from goldformer.spec import Spec

#: The name of the device in the environment of a recording.
_DEVICE: Final = "device"


def read_as_device(old: Baseline, device: str, spec: Spec) -> Baseline:
    """Return a baseline of one other device as if this one had recorded it; BaselineError if it has several.

    Random outputs are left out: each device draws from a generator of its own.
    """
    if len(old.request.devices) != 1:
        devices = ", ".join(old.request.devices)
        raise BaselineError(f"--device {device}: the baseline has {devices}, which it could be compared with: name one")
    [recorded] = old.request.devices
    entries = {
        key._replace(device=device): entry
        for key, entry in old.entries.items()
        if key.case not in spec.cases or not spec.cases[key.case].random
    }
    return replace(
        old,
        request=old.request.model_copy(update={"devices": (device,)}),
        recordings=tuple(_name_device(recording, recorded) for recording in old.recordings),
        entries=entries,
    )


def keep_shared(new: Baseline, old: Baseline) -> Baseline:
    """Return a recording with the calls of a baseline of another device only: a device may run more of them."""
    [device] = new.request.devices
    return replace(
        new,
        recordings=tuple(_name_device(recording, device) for recording in new.recordings),
        entries={key: entry for key, entry in new.entries.items() if key in old.entries},
    )


def is_of_other_device(old: Baseline) -> bool:
    """Return True if a baseline was read as that of another device."""
    return any(_DEVICE in recording.environment for recording in old.recordings)


def _name_device(recording: Recording, device: str) -> Recording:
    return recording.model_copy(update={"environment": {_DEVICE: device, **recording.environment}})
