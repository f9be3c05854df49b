"""Settings of a job that together lose or double records, unless that is meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from beam_lateness.pipelines.profiles import Profile
from beam_lateness.transforms.times import format_duration

CONFIRMABLE: Final = ("append_double_counts", "drops_too_late")
APPEND_DOUBLE_COUNTS, DROPS_TOO_LATE = CONFIRMABLE

REPLACES_OTHERS: Final = "replaces_other_input"
"""The word for what only the table shows: see `bookkeeping`."""


def check_contradictions(
    profile: Profile | None,
    mode: str,
    allowed_lateness_ms: int,
    emit_too_late: bool,
    audit: bool,
    output_is_database: bool,
    confirmed: Collection[str],
) -> list[str]:
    """Refuses settings that together give wrong results, unless they are confirmed.

    Args:
        profile: The profile of the job, if it has one.
        mode: How panes are written, upsert or append.
        allowed_lateness_ms: The allowed lateness, ms.
        emit_too_late: Whether too late records are kept; if not they are only counted.
        audit: Whether corrections leave a trail.
        output_is_database: Whether the output is a database, and no topic.
        confirmed: The words of `--confirm`.

    Returns:
        A warning for each contradiction that is confirmed.

    Raises:
        ValueError: For the first contradiction that is not, and for a word that confirms nothing.

    Example:
        >>> check_contradictions(None, "append", 0, False, False, True, set())
        []
    """
    where = "a database" if output_is_database else "a topic, files or BigQuery"
    if audit and (mode == "append" or not output_is_database):
        msg = (
            "--audit=true keeps what each correction replaces, in the database of --output: "
            f"--mode={mode} to {where} has none; "
            "give --mode=upsert and --output=sqlite:///FILE, or --audit=false"
        )
        raise ValueError(msg)
    of = "" if profile is None else f" (profile {profile.name})"
    found = {}
    if mode == "append" and allowed_lateness_ms > 0:
        found[APPEND_DOUBLE_COUNTS] = (
            f"--mode=append with --allowed_lateness={format_duration(allowed_lateness_ms)}{of} "
            "writes each corrected pane beside the one before, and a sum over the rows counts "
            "records twice",
            "give --mode=upsert or --allowed_lateness=0s",
        )
    if profile is not None and profile.must_balance and not emit_too_late:
        found[DROPS_TOO_LATE] = (
            f"--too_late=drop{of} only counts too late records, and a job of this profile must "
            "balance: they would be missing from all that it writes",
            "give --too_late=emit and --dead_letters",
        )
    for word, (what, remedy) in found.items():
        if word not in confirmed:
            msg = f"{what}; {remedy}, or say that you want it: --confirm={word}"
            raise ValueError(msg)
    for word in sorted(confirmed):
        if word not in found:
            msg = (
                f"--confirm={word} confirms nothing here: leave it out; known are "
                f"{', '.join((*CONFIRMABLE, REPLACES_OTHERS))}"
            )
            raise ValueError(msg)
    return [f"WARNING: {what} (--confirm={word})" for word, (what, _) in found.items()]
