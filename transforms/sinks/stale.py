"""`RemoveStale`: rows that only a broken off run wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from beam_lateness.transforms.sinks.append import PaneTable
from beam_lateness.transforms.sinks.window_table import TABLE_NAME, WindowTable


@dataclass(frozen=True)
class RemoveStale:
    """Removes the rows that only an earlier, broken off run wrote of windows that this one settles.

    Such a row stands on records that were never acknowledged, and came again. Where they were
    accepted again the row has been replaced; where all of them came too late now, they are dead
    letters, and the row would count them twice.

    Args:
        url: The database of `UpsertPanes` or `AppendPanes`.
        table: The table's name.
        audit: Whether it has an audit trail.
        appended: Whether it is the table of `AppendPanes`.

    Example:
        >>> RemoveStale("sqlite:///windows.db").url
        'sqlite:///windows.db'
    """

    url: str = field(repr=False)  # may hold a password
    table: str = TABLE_NAME
    audit: bool = False
    appended: bool = False

    def __call__(self, runs: Sequence[str], low_ms: int, high_ms: int) -> bool:
        """Removes them.

        Args:
            runs: The earlier runs that read this source; rows of other runs are left alone.
            low_ms: Of windows that end after this, in ms,
            high_ms: and not after this.

        Returns:
            Whether no later window has rows of an earlier run: then there is nothing to do again.
        """
        table: WindowTable | PaneTable
        if self.appended:
            table = PaneTable(self.url, self.table, None)
        else:
            table = WindowTable(self.url, self.table, None, audit=self.audit)
        try:
            return table.remove(runs, low_ms, high_ms)
        finally:
            table.close()
