"""Whether a run may go on with a checkpoint: not by other windows, nor under an older name."""

from __future__ import annotations

from beam_lateness.transforms.commits.checkpoints import Checkpoint, Checkpoints
from beam_lateness.transforms.lateness.windows import Windows
from beam_lateness.transforms.times import format_duration


def restore(checkpoints: Checkpoints, source: str, run: str, windows: Windows) -> Checkpoint | None:
    """Gives the checkpoint that a run goes on with; None if the source has none.

    Raises:
        ValueError: If the checkpoint was made with other windows or by a later run, or if part of
            the source has a checkpoint as part of another one.
    """
    found, shape = checkpoints.load(source), shape_of(windows)
    if found is None:
        _refuse_shared(checkpoints, source)
        return None
    if found.windows != shape:
        msg = (
            f"the checkpoint of {source} was made with windows {found.windows}, and cannot be "
            f"gone on with by {shape}: keep --window, --window_offset and --allowed_lateness, or "
            "name another --checkpoint and --output"
        )
        raise ValueError(msg)
    if run <= found.run:
        msg = (
            f"run {run!r} must sort after {found.run!r}, the last run that read {source}: its "
            "results would not replace that one's (is the clock behind?)"
        )
        raise ValueError(msg)
    return found


def _refuse_shared(checkpoints: Checkpoints, source: str) -> None:
    """Refuses subscriptions that stand in a checkpoint together with others, or without."""
    parts = set(source.split(","))
    for other in checkpoints.sources():
        if shared := sorted(parts & set(other.split(","))):
            msg = (
                f"{shared[0]} has a checkpoint as part of {other}: keep --input, or name another "
                "--checkpoint and --output, so that no settled window is opened again"
            )
            raise ValueError(msg)


def shape_of(windows: Windows) -> str:
    """Writes windows as a checkpoint names them."""
    parts = (windows.size_ms, windows.offset_ms, windows.allowed_lateness_ms)
    size, offset, lateness = map(format_duration, parts)
    return f"{size} (offset {offset}, allowed lateness {lateness})"
