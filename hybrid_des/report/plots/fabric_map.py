"""A picture of a fabric: GPUs in their nodes, switches above and below, links coloured by bandwidth.

For large clusters, only the first and last nodes are drawn, with all switches on their routes. GPUs with many
direct links are drawn as a matrix of sender × receiver, in which a link is a cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, pairwise, permutations
from math import cos, pi, sin
from typing import TYPE_CHECKING

from hybrid_des.cluster.fabric import Bandwidth, Fabric, LinkSpec
from hybrid_des.report.plots.style import LINES, axes, legend, new_figure, verbatim
from hybrid_des.units import format_bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_GPUS = 32
MOST_LINES_PER_GPU = 1.5  # that are drawn as lines
BELOW = -1.0  # y of a node's own switch
STEP = 1.1  # distance between GPUs
HIGHLIGHT = "#000000"

Pair = tuple[str, str]


@dataclass
class Drawing:
    """The elements of a drawing and their positions.

    Attributes:
        gpus: points of the drawn GPUs → their nodes.
        lines: pairs of linked points → bandwidth.
        parallel: pairs of points with several links in each direction → their number.
        leads: pairs of points connected without a link, such as a GPU and its NIC.
        at: position of each point.
    """

    gpus: dict[str, int]
    lines: dict[Pair, Bandwidth] = field(default_factory=dict)
    parallel: dict[Pair, int] = field(default_factory=dict)
    leads: dict[Pair, None] = field(default_factory=dict)
    at: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_matrix(self) -> bool:
        """Whether all links are between GPUs, and too many to tell apart as lines."""
        direct = all(point in self.gpus for pair in self.lines for point in pair)
        return direct and len(self.lines) > MOST_LINES_PER_GPU * len(self.gpus)

    @property
    def size(self) -> tuple[float, float]:
        """Size in inches."""
        if self.is_matrix:
            side = min(max(0.32 * len(self.gpus) + 1.2, 3.6), 9.0)
            return side + 1.4, side
        xs, ys = zip(*self.at.values(), strict=True)
        return min(max(0.45 * (max(xs) - min(xs)) + 1, 5.0), 14.0), min(max(1.1 * (max(ys) - min(ys)) + 1.4, 2.6), 9.0)


def fabric_map(fabric: Fabric, ax: Axes | None = None, ends: tuple[int, int] | None = None) -> Axes:
    """Draw a fabric.

    Args:
        fabric: a fabric whose links have source and target points.
        ax: axes to draw on; default: a new pyplot figure.
        ends: two GPUs; the route from the first to the second is drawn in black.
    """
    picture = _picture(fabric, ends or ())
    ax = axes(ax, picture.size)
    if picture.is_matrix:
        _draw_matrix(picture, ax, fabric, ends)
    else:
        _draw_graph(picture, ax, fabric, ends)
    drawn, count = len(set(picture.gpus.values())), len(set(fabric.node_of))
    part = "" if len(picture.gpus) == fabric.gpus else f" ({len(picture.gpus)} GPUs of {drawn} of {count} nodes drawn)"
    ax.set_title(f"{fabric.gpus} GPUs, {len(fabric.links)} links{part}", loc="left", fontsize=10)
    return ax


def _draw_graph(picture: Drawing, ax: Axes, fabric: Fabric, ends: tuple[int, int] | None) -> None:
    """Draw points and lines."""
    _draw_nodes(picture, ax)
    _draw_lines(picture, ax)
    if ends is not None:
        _draw_route(picture, ax, fabric, ends)
    _draw_points(picture, ax)
    ax.set_axis_off()
    ax.margins(0.03, 0.08)
    ax.set_ylim(bottom=min(y for _, y in picture.at.values()) - 0.85)


def _draw_matrix(picture: Drawing, ax: Axes, fabric: Fabric, ends: tuple[int, int] | None) -> None:
    """Draw a cell for each link from a GPU to another, and the cells of a route with a frame."""
    from matplotlib.patches import Patch, Rectangle

    index_of = {gpu: i for i, gpu in enumerate(picture.gpus)}
    links = [link for link in fabric.links.values() if link.source in index_of and link.target in index_of]
    colours = _colours(link.bandwidth for link in links)
    for link in links:
        corner = index_of[link.target] - 0.46, index_of[link.source] - 0.46
        ax.add_patch(Rectangle(corner, 0.92, 0.92, facecolor=colours[link.bandwidth]))
    _, stops = _route(fabric, *ends) if ends is not None else ([], [])
    for a, b in pairwise(dict.fromkeys(stop for stop in stops if stop in index_of)):
        corner = index_of[b] - 0.48, index_of[a] - 0.48
        ax.add_patch(Rectangle(corner, 0.96, 0.96, fill=False, edgecolor=HIGHLIGHT, linewidth=2.2, zorder=3))
    names = [_label(gpu) for gpu in index_of]
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_xlim(-0.6, len(names) - 0.4)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_aspect("equal")
    ax.set_xlabel("to GPU")
    ax.set_ylabel("from GPU")
    legend(ax, handles=[Patch(color=colour, label=format_bandwidth(kind)) for kind, colour in colours.items()])


def _colours(bandwidths: Iterable[Bandwidth]) -> dict[Bandwidth, str]:
    """A colour for each bandwidth, the highest first."""
    kinds = sorted(set(bandwidths), key=lambda bandwidth: (bandwidth is not None, -(bandwidth or 0)))
    return dict(zip(kinds, cycle(LINES[:-2])))


def draw_fabric(fabric: Fabric, ends: tuple[int, int] | None = None) -> Figure:
    """Draw a fabric on a new figure of suitable size, outside pyplot; see `fabric_map`."""
    figure = new_figure(_picture(fabric, ends or ()).size)
    fabric_map(fabric, figure.subplots(), ends)
    return figure


def _picture(fabric: Fabric, ends: Iterable[int]) -> Drawing:
    """Choose the GPUs to draw, and find the links and switches between them."""
    chosen = sorted({*_sample(fabric), *ends})
    picture = Drawing({fabric.point(gpu): fabric.node_of[gpu] for gpu in chosen})
    for sender, receiver in permutations(chosen, 2):
        path, stops = _route(fabric, sender, receiver)
        hidden = {stop for stop in stops if stop.startswith("gpu") and stop not in picture.gpus}
        for a, b in pairwise(stops):
            if a != b and not {a, b} & hidden:
                picture.leads[min(a, b), max(a, b)] = None
        for link in path:
            if not {link.source, link.target} & hidden:
                pair = min(link.source, link.target), max(link.source, link.target)
                picture.lines[pair] = link.bandwidth
    if len(chosen) == fabric.gpus:
        _add_unused(picture, fabric)
    picture.leads = {pair: None for pair in picture.leads if pair not in picture.lines}
    directed = Counter((link.source, link.target) for link in fabric.links.values())
    most = {pair: max(directed[pair], directed[pair[::-1]]) for pair in picture.lines}
    picture.parallel = {pair: count for pair, count in most.items() if count > 1}
    if all(point in picture.gpus for pair in picture.lines for point in pair):
        _place_in_a_circle(picture)
    else:
        _place_in_layers(picture)
    return picture


def _route(fabric: Fabric, sender: int, receiver: int) -> tuple[list[LinkSpec], list[str]]:
    """The links of a route, and the points along it."""
    path = [fabric.links[name] for name in fabric.route(sender, receiver).links]
    between = (point for link in path for point in (link.source, link.target))
    return path, [fabric.point(sender), *between, fabric.point(receiver)]


def _add_unused(picture: Drawing, fabric: Fabric) -> None:
    """Add links that no route uses, if they are connected to a drawn point."""
    points = {point for pair in picture.lines for point in pair} | picture.gpus.keys()
    left = {(min(link.source, link.target), max(link.source, link.target)): link for link in fabric.links.values()}
    while touching := {pair: link for pair, link in left.items() if points & set(pair)}:
        for pair, link in touching.items():
            picture.lines.setdefault(pair, link.bandwidth)
            points.update(pair)
            del left[pair]


def _sample(fabric: Fabric) -> list[int]:
    """The GPUs of the first nodes and of the last one, at most `MOST_GPUS`."""
    if fabric.gpus <= MOST_GPUS:
        return list(range(fabric.gpus))
    size = max(fabric.node_of.count(node) for node in {fabric.node_of[0], fabric.node_of[-1]})
    nodes = max(MOST_GPUS // size - 1, 1)
    here = {*list(dict.fromkeys(fabric.node_of))[:nodes]}
    first = [gpu for gpu in range(fabric.gpus) if fabric.node_of[gpu] in here][: MOST_GPUS - 1]
    last = [gpu for gpu in range(fabric.gpus) if fabric.node_of[gpu] == fabric.node_of[-1]]
    return first + last[-(MOST_GPUS - len(first)) :]


def _place_in_a_circle(picture: Drawing) -> None:
    n = len(picture.gpus)
    radius = max(n * 1.1 / (2 * pi), 1.5)
    for i, gpu in enumerate(picture.gpus):
        angle = pi / 2 - 2 * pi * i / n
        picture.at[gpu] = (2 * radius * cos(angle), radius * sin(angle) * 0.8)


def _place_in_layers(picture: Drawing) -> None:
    """Place GPUs in a row, a node's own switch below, and all else above by distance from the GPUs."""
    x, node = 0.0, None
    for gpu in picture.gpus:
        x += STEP if node in (None, picture.gpus[gpu]) else 2 * STEP
        node = picture.gpus[gpu]
        picture.at[gpu] = (x, 0.0)
    near: dict[str, dict[str, None]] = {}
    for a, b in [*picture.lines, *picture.leads]:
        near.setdefault(a, {})[b] = None
        near.setdefault(b, {})[a] = None
    layer, level = list(picture.gpus), 0
    while layer:
        level += 1
        reached = dict.fromkeys(point for below in layer for point in near.get(below, ()) if point not in picture.at)
        homes = {point: {picture.gpus.get(other, other) for other in near[point]} for point in reached}
        own = [point for point in reached if level == 1 and len(homes[point]) == 1]  # switches of a single node
        _spread(picture, own, near, BELOW)
        _spread(picture, [point for point in reached if point not in own], near, float(level))
        layer = list(reached)


def _spread(picture: Drawing, points: Iterable[str], near: Mapping[str, Iterable[str]], y: float) -> None:
    """Place points above the mean of their neighbours, far enough apart for their labels, and centred."""
    means = {}
    for point in points:
        known = [picture.at[other][0] for other in near[point] if other in picture.at]
        means[point] = sum(known) / max(len(known), 1)
    points = sorted(means, key=means.__getitem__)
    wanted = [means[point] for point in points]
    widths = [0.3 + 0.2 * len(_label(point)) for point in points]
    placed = wanted[:1]
    for x, width, before in zip(wanted[1:], widths[1:], widths, strict=False):
        placed.append(max(x, placed[-1] + (width + before) / 2))
    shift = sum(a - b for a, b in zip(wanted, placed, strict=True)) / max(len(points), 1)
    picture.at |= {point: (x + shift, y) for point, x in zip(points, placed, strict=True)}


def _label(point: str) -> str:
    return point.rpartition("/")[2].removeprefix("gpu").replace("nvswitch", "NVSwitch")


def _draw_nodes(picture: Drawing, ax: Axes) -> None:
    """Draw a grey box behind each node's GPUs, if they are in a row."""
    from matplotlib.patches import FancyBboxPatch

    if len({y for x, y in (picture.at[gpu] for gpu in picture.gpus)}) > 1:
        return
    bottom = BELOW if any(y == BELOW for _, y in picture.at.values()) else 0.0
    for node in sorted(set(picture.gpus.values())):
        xs = [picture.at[gpu][0] for gpu, home in picture.gpus.items() if home == node]
        size = max(xs) - min(xs) + 0.6, 0.55 - bottom
        corner = min(xs) - 0.3, bottom - 0.28
        ax.add_patch(FancyBboxPatch(corner, *size, "round,pad=0.12", facecolor="0.94", edgecolor="none"))
        ax.text(sum(xs) / len(xs), bottom - 0.52, f"node {node}", ha="center", va="top", fontsize=8, color="0.35")


def _draw_lines(picture: Drawing, ax: Axes) -> None:
    for a, b in sorted(picture.leads):
        ax.plot(*zip(picture.at[a], picture.at[b], strict=True), color="0.6", linewidth=0.8, linestyle=":", zorder=1)
    colours = _colours(picture.lines.values())
    for number, (kind, colour) in enumerate(colours.items()):
        width = max(2.6 - 0.5 * number, 0.9)
        label: str | None = f"{format_bandwidth(kind)} each way"
        for a, b in sorted(pair for pair, bandwidth in picture.lines.items() if bandwidth == kind):
            ax.plot(
                *_course(picture, a, b), color=colour, linewidth=width, label=label, zorder=1.5, solid_capstyle="round"
            )
            label = None
    for (a, b), count in picture.parallel.items():
        (x, low), (to_x, high) = sorted((picture.at[a], picture.at[b]), key=lambda point: point[1])
        middle = x + 0.7 * (to_x - x), low + 0.7 * (high - low)  # near the upper end, where fewer lines cross
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        ax.text(*middle, f"{count} ×", ha="center", va="center", fontsize=7, bbox=box, zorder=2.5)
    if colours:
        legend(ax, bbox_to_anchor=(0.0, 0.0), ncols=4)


def _course(picture: Drawing, a: str, b: str) -> tuple[list[float], list[float]]:
    """A straight line, or an arc over points in between at the same height."""
    (x, y), (to_x, to_y) = sorted((picture.at[a], picture.at[b]))
    between = any(y == other_y == to_y and x < other_x < to_x for other_x, other_y in picture.at.values())
    parts, height = ([i / 20 for i in range(21)], 1.4) if between else ([0.0, 1.0], 0.0)
    ys = [y + part * (to_y - y) + part * (1 - part) * height for part in parts]
    return [x + part * (to_x - x) for part in parts], ys


def _draw_route(picture: Drawing, ax: Axes, fabric: Fabric, ends: tuple[int, int]) -> None:
    _, stops = _route(fabric, *ends)
    for a, b in pairwise(stop for stop in stops if stop in picture.at):
        if a != b:
            arrow = {"arrowstyle": "-|>", "color": HIGHLIGHT, "linewidth": 2.2, "shrinkA": 6, "shrinkB": 8}
            ax.annotate("", picture.at[b], picture.at[a], arrowprops=arrow, zorder=2)


def _draw_points(picture: Drawing, ax: Axes) -> None:
    for point, (x, y) in picture.at.items():
        colour = "#DCEAF7" if point in picture.gpus else "white"
        box = {"boxstyle": "round,pad=0.28", "facecolor": colour, "edgecolor": "0.25", "linewidth": 0.8}
        ax.text(x, y, verbatim(_label(point)), ha="center", va="center", fontsize=8, bbox=box, zorder=3)
