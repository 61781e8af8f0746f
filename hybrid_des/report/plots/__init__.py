"""Pictures on matplotlib axes: of a run, of what explains it, of a sweep, of a fabric.

    from hybrid_des import plots
    plots.gantt(result.run, ranks=[0, 2], window=("100 ms", "400 ms"), size="column")

`gantt`, `link_use` and `memory_curve` take `steps`, `ranks` and a `window` of time; they, `lines` and `what_if_curves`
take `colours`, `labels` and a `size` (`figure.py`). `paper.mplstyle` and `notebook.mplstyle` are styles for matplotlib.
"""
