"""`gantt.png` and `gantt.svg`: the schedule as a picture."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.report.files import Source, output


@output("gantt.png")
def gantt(source: Source, folder: Path) -> None:
    """Nothing in the files changes from run to run: no dates, no random identifiers."""
    import warnings

    import matplotlib as mpl

    from hybrid_des.report import plots

    figure = plots.draw(source.run, plots.gantt)
    with mpl.rc_context({"svg.hashsalt": "hybrid_des"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a scenario's name may be in any script
        figure.savefig(folder / "gantt.png", dpi=150, metadata={"Software": None})
        figure.savefig(folder / "gantt.svg", metadata={"Date": None, "Creator": None})
