"""Chains of causes walked one edge at a time, and their pieces added up one by one: slow, and simple."""

import numpy as np

from hybrid_des.analysis.critical_path.idle_pieces import ends_at
from hybrid_des.analysis.critical_path.paths import Piece, walks_on
from hybrid_des.planning.program_table import NONE

PARTS = "transfer", "latency", "queue", "others"  # of a message's edge


def chain_of(graph, point, until, image):
    """The pieces of a chain, in order, back to the first cause at or before `until`."""
    pieces, edges = [], graph.edges
    while graph.time[point] > until:
        (edge,), (image,) = graph.released_at(np.array([point]), np.array([image]))
        if edge == NONE:
            break
        some = np.array([edge])
        here, cause = int(graph.time[point]), int(edges.cause[edge])
        if lag := here - int(graph.time[cause]):
            activity, parts = int(edges.activity(some)[0]), edges.parts(some)
            took = [0, *(int(parts[name][0]) for name in PARTS)]
            if 0 <= activity < edges.ops:
                took = [lag, 0, 0, 0, 0]
            activity += int(image) * graph.activities if activity != NONE else 0
            if not pieces or pieces[-1].activity != activity:
                pieces.append(Piece(activity, here - lag, here, *took))
            else:
                _, start, end, *before = pieces[-1]
                summed = (this + other for this, other in zip(before, took, strict=True))
                pieces[-1] = Piece(activity, min(start, here - lag), max(end, here), *summed)
        point = cause
    return pieces[::-1]


def both_ways(idle, image, every):
    """Some chains of waits, as they are found, and walked edge by edge, back to the earliest wait of their points."""
    graph, waits, earliest = idle._graph, idle._waits, {}
    for point, start in zip(waits["point"].tolist(), waits["start"].tolist(), strict=True):
        earliest[point] = min(start, earliest.get(point, start))
    first = idle._firsts[::every]
    ends = zip(waits["point"][first].tolist(), waits["own"][first].tolist(), strict=True)
    walked = [chain_of(graph, point, earliest[point], image if own else 0) for point, own in ends]
    return list(walks_on(graph).chains(ends_at(waits, first, image))), walked
