"""The neighbours of a plan: what one change of its settings leads to; for advice, and for searches that start there.

position      a plan, and what its file states
moves         what can be changed, by sort: recompute, layout, micro-batch, …     layouts
framework     what starts it, and what changes in its launch line
"""
