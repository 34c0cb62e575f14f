"""Prints a change of offsets before it is executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.output.terminal import print_json, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.tools.offsets.editor import OffsetEditor
    from headrace.tools.offsets.targets import OffsetChange


def show_moves(moves: Sequence[OffsetChange], *, as_json: bool, executed: bool) -> None:
    if as_json:
        entries = [
            {
                "topic": move.at.topic,
                "partition": move.at.partition,
                "before": move.before,
                "after": move.after,
                "difference": move.difference,
                "outside": move.outside,
            }
            for move in moves
        ]
        print_json({"executed": executed, "moves": entries})
        return
    rows = [
        [
            move.at.topic,
            move.at.partition,
            "none" if move.before is None else f"{move.before:,}",
            f"{move.after:,}",
            "" if move.difference is None else f"{move.difference:+,}",
            f"OUTSIDE [{move.beginning:,}, {move.end:,}]" if move.outside else "",
        ]
        for move in moves
    ]
    table(["topic", "partition", "before", "after", "difference", ""], rows)


def dry_run(editor: OffsetEditor) -> None:
    if editor.missing:
        say(f"note: {editor.missing}; --execute creates it", err=True)
    say("nothing was changed; add --execute to do it", err=True)
