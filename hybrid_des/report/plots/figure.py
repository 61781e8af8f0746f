"""The figure around a picture: its size and style, text that stays text, other colours and labels.

    plots.gantt(run, ranks=[0, 2], window=("100 ms", "400 ms"), labels={"forward": "F"}, colours={"forward": "black"})
    plots.save_as(plots.gantt(run, size="page"), "gantt.pdf")

Without axes of their own, pictures are as wide as a column of a paper and drawn in the style `paper.mplstyle`, unless
the user has set `figure.figsize`, as `plt.style.use("hybrid_des.report.plots.notebook")` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from hybrid_des.errors import UsageError, one_line, unknown
from hybrid_des.options import plain
from hybrid_des.units import parse_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# inches: a column and a page of IEEE's journals (journals.ieeeauthorcenter.ieee.org, "Resolution and Size")
WIDTHS = {"column": 3.5, "page": 7.16, "notebook": 11.0}
NARROW = 5.0  # inches; narrower figures have no room for a title or a legend beside the data
PER_INCH = {"cm": 2.54, "mm": 25.4, "in": 1.0}
SMALLEST, LARGEST = 0.5, 100.0  # inches
STYLES = Path(__file__).parent
REAL_TEXT: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "hybrid_des"}
UNDATED: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None},
}  # fmt: skip
TIMES = " ×"  # between the name of a line and the number of identical ones
PLACES = ("title", "x", "y")  # keys of labels beside the texts themselves

Size = str | float | tuple[float, float]
"""The width of a figure in inches, as a text such as "8.5 cm", or by name (`column`, `page`, `notebook`); or its width
and height in inches."""

LEGENDS = ("above", "right", "below", "none")
LegendPlace = Literal["above", "right", "below", "none"]
"""Where the legend is."""

Window = tuple[float | str, float | str]
"""The begin and end of a stretch of time: seconds, or texts such as "120 ms"."""


class Style(TypedDict, total=False):
    """How a picture looks: the options of `Look`."""

    colours: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    size: Size | None
    legend: LegendPlace | None


class Shown(Style, total=False):
    """What a picture of a run shows, and how: the options of `gantt`, `link_use` and `memory_curve`."""

    steps: Iterable[int] | int | None
    ranks: Iterable[int] | None
    window: Window | None


def _style_and_size(size: Size | None, height: Callable[[float], float]) -> tuple[list[Path], tuple[float, float]]:
    """The style files of a figure, and its inches."""
    import matplotlib as mpl

    usual = list(mpl.rcParams["figure.figsize"])
    theirs = usual != list(mpl.rcParamsDefault["figure.figsize"])  # a style that the user has chosen
    if size is None:
        size = usual[0] if theirs else "column"
    named = STYLES / f"{'notebook' if size == 'notebook' else 'paper'}.mplstyle"
    style = [] if theirs and not isinstance(size, str) else [named]
    width = _inches(size) if isinstance(size, str) else size
    inches = width if isinstance(width, tuple) else (width, height(width))
    if len(inches) != 2 or not all(SMALLEST <= one <= LARGEST for one in inches):
        raise UsageError(f"size: {size}: expected {SMALLEST:g} to {LARGEST:g} inches, such as 3.5 or (3.5, 2)")
    return style, inches


def _inches(width: str) -> float:
    """A width by name, or as a text such as "8.5 cm"."""
    if width in WIDTHS:
        return WIDTHS[width]
    written = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?(cm|mm|in)", width.strip())
    if written is None:
        raise UsageError(f'size: {unknown(width, WIDTHS)}, inches, or a width such as "8.5 cm"')
    return float(written[1]) / PER_INCH[written[2]]


COLLAPSED = "constrained_layout not applied"  # how matplotlib's warning begins


@cache
def vector_figure() -> type[Figure]:
    """A figure whose SVG and PDF files hold text, which can be searched and edited, instead of its outlines."""
    import matplotlib as mpl
    from matplotlib import figure

    class Figure(figure.Figure):  # notebooks show this name
        captioned = False  # for a paper, whose caption says what a title would

        def savefig(self, fname: Any, **options: Any) -> None:
            with mpl.rc_context(REAL_TEXT):
                super().savefig(fname, **options)

    return Figure


def save_as(drawn: Axes | Figure, path: str | Path, **options: Any) -> None:
    """Write a figure in the format of its suffix, reproducible byte for byte: no dates or random identifiers.

    Args:
        drawn: the figure, or axes in it.
        path: of the file.
        options: of matplotlib's `savefig`, such as `dpi`.

    Raises:
        UsageError: matplotlib has no such format.
    """
    import warnings

    import matplotlib as mpl

    path, figure = Path(path), drawn.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none
    suffix = path.suffix.removeprefix(".")
    if suffix not in (known := figure.canvas.get_supported_filetypes()):
        raise UsageError(f"{path}: {unknown(suffix, known, 'format')}")
    with mpl.rc_context(REAL_TEXT), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a scenario's name may be in any script
        warnings.filterwarnings("ignore", COLLAPSED)  # with letters as large as the user's style has them
        figure.savefig(path, metadata=UNDATED.get(suffix), **options)


def too_small(figure: Figure) -> bool:
    """Whether the labels of a figure leave no room for what it shows."""
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("always", COLLAPSED)
        figure.draw_without_rendering()
    return any(COLLAPSED in str(one.message) for one in said)


def points(share: float) -> float:
    """A text's size in points, as a share of `font.size`."""
    import matplotlib as mpl

    return share * float(mpl.rcParams["font.size"])


def captioned(ax: Axes) -> bool:
    """Whether a figure has no title, as it was made for a paper, or no room for one."""
    return narrow(ax) or bool(getattr(ax.get_figure(root=True), "captioned", False))


def narrow(ax: Axes) -> bool:
    """Whether a figure is as narrow as a column of a paper."""
    figure = ax.get_figure(root=True)
    return figure is not None and bool(figure.get_figwidth() < NARROW)


@dataclass(kw_only=True)
class Look:
    """Other colours and labels of a picture than its usual ones, and its size.

    Args:
        colours: colours by the names in the legend, such as {"forward": "black"}.
        labels: texts by those that are usually drawn, such as {"rank 0": "GPU 0"}; `title`, `x` and `y` are those of
            the axes. An empty text is left out.
        size: that of a new figure; by default `figure.figsize` if it is set, else a column.
        legend: `above`, `right`, `below` or `none`; by default, where the picture usually has it.
    """

    colours: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    size: Size | None = None
    legend: LegendPlace | None = None

    def __post_init__(self) -> None:
        from matplotlib.colors import is_color_like

        if self.legend is not None and self.legend not in LEGENDS:
            raise UsageError(f"legend: {unknown(self.legend, LEGENDS)}")
        self._colours, self._labels = dict(self.colours or {}), dict(self.labels or {})
        self._asked = set[str]()
        for name, colour in self._colours.items():
            if not is_color_like(colour):
                expected = 'expected one such as "black" or "#0072B2"'
                raise UsageError(f"colours: {one_line(name)}: {one_line(str(colour))} is no colour; {expected}")

    @contextmanager
    def canvas(self, ax: Axes | None, height: Callable[[float], float]) -> Iterator[Axes]:
        """The given axes, or those of a new pyplot figure in the style of its size.

        Args:
            ax: axes to draw on.
            height: maps a width to the height of a figure, if only the width is given.

        Raises:
            UsageError: the size is wrong, or axes are given too.
        """
        if ax is not None:
            if self.size is not None:
                raise UsageError("size: the given axes have a size; expected one or the other")
            yield ax
            return
        import matplotlib as mpl
        import matplotlib.pyplot as plt

        style, inches = _style_and_size(self.size, height)
        with plt.style.context(style):
            figure: Any = plt.figure(figsize=inches, layout="constrained", FigureClass=vector_figure())
            figure.captioned = any(one.stem == "paper" for one in style)
            ax = cast("Axes", figure.add_subplot())
            # ticks that are made later would take their size from what is set then
            ax.tick_params(axis="x", labelsize=mpl.rcParams["xtick.labelsize"])
            ax.tick_params(axis="y", labelsize=mpl.rcParams["ytick.labelsize"])
            yield ax

    def colour(self, name: str, usual: Any) -> Any:
        """The colour of what has this name in the legend, as #RRGGBB where it is not the usual one."""
        from matplotlib.colors import to_hex

        self._asked.add(name)
        return to_hex(self._colours[name]).upper() if name in self._colours else usual

    def dress(self, ax: Axes) -> Axes:
        """Put the labels on a finished picture.

        Raises:
            UsageError: the picture has no such text, or nothing of a name that has a colour.
        """
        for name in self._colours.keys() - self._asked:
            raise UsageError(f"colours: {unknown(name, self._asked)}")
        drawn = set(PLACES)
        for axis in (ax.xaxis, ax.yaxis):
            drawn |= self._tick_labels(axis)
        legend = ax.get_legend()
        for text in [*ax.texts, *([] if legend is None else legend.get_texts())]:
            drawn.add(text.get_text())
            text.set_text(self._labels.get(text.get_text(), text.get_text()))
        for name in self._labels.keys() - drawn:
            raise UsageError(f"labels: {unknown(name, drawn)}")
        if "title" in self._labels or captioned(ax):
            ax.set_title(self._labels.get("title", ""), loc="left", fontsize=points(1))
        for name, put in (("x", ax.set_xlabel), ("y", ax.set_ylabel)):
            if name in self._labels:
                put(self._labels[name])
        return ax

    def _tick_labels(self, axis: Axis) -> set[str]:
        """Replace named ticks; returns their names, which are none where matplotlib writes numbers."""
        from matplotlib.ticker import FixedLocator, ScalarFormatter

        named = isinstance(axis.get_major_locator(), FixedLocator)
        if not named or isinstance(axis.get_major_formatter(), ScalarFormatter):
            return set()
        names = [text.get_text() for text in axis.get_majorticklabels()]
        bare = {name: name.partition(TIMES)[0] for name in names}  # "rank 0" of "rank 0 ×2"
        if self._labels.keys() & {*names, *bare.values()}:
            new = [self._labels.get(name, self._labels.get(bare[name], name)) for name in names]
            axis.set_ticks(axis.get_majorticklocs(), new)
        return {*names, *bare.values()}


@dataclass(kw_only=True)
class View(Look):
    """What a picture of a run shows, some of its steps, ranks and time, and how."""

    steps: Iterable[int] | int | None = None
    ranks: Iterable[int] | None = None
    window: Window | None = None


def seconds_of(window: Window | None) -> tuple[float, float] | None:
    """The begin and end of a window in seconds.

    Raises:
        UsageError: they are no times, or not in this order.
    """
    if window is None:
        return None
    try:
        begin, end = (float(parse_quantity(time, "time")) for time in window)
    except ValueError as error:
        raise UsageError(f"window: {error}") from None
    if not 0 <= begin < end:
        raise UsageError(f"window: {one_line(str(window))}: expected a begin and a later end")
    return begin, end


def chosen(what: str, wanted: Iterable[int] | int | None, known: Iterable[int]) -> list[int] | None:
    """The wanted ranks or steps; None if all are.

    Raises:
        UsageError: there is no such rank or step.
    """
    if wanted is None:
        return None
    wanted, there = plain(wanted), set(known)
    asked = [wanted] if isinstance(wanted, int) else list(wanted)
    for choice in asked:
        if choice not in there:
            expected = f"{min(there)} to {max(there)}" if there else "none, as no rows were recorded"
            raise UsageError(f"{what}: no {choice}; expected {expected}")
    return asked
