"""Pages that follow every change: `hybrid-des live`, and all schedules side by side.

    controls.py     what can be changed in a scenario, with its value, its range and its choices
    frames.py       the answer to one request of a page, the scenario with its changes, and its process
    schedules.py    every schedule on free links, as data for a page, and that page as one file
    schedule_formulas.py    a schedule's simulated bubble beside its published formula
    server.py       the pages on this machine (Tornado)

Pages draw with `report/page/timeline.js`, as `report.html` does.
"""
