"""Rows of mlperf_5_1_lora.yaml from logs of MLPerf Training 5.1, as fine_tuning.py makes them.

python scenarios/validation/mlperf_5_1_lora.py RAW.csv > rows.csv
hybrid-des validate scenarios/validation/mlperf_5_1_lora.yaml --rows rows.csv
"""

from conversion import Raw, Row, main
from fine_tuning import COLUMNS, of_run


def converted(raw: Raw) -> Row | None:
    """One row of MLPerf as keys of a scenario; None if it is another source's, or an AMD GPU's."""
    return of_run(raw) if raw["id"].startswith("mlperf") else None


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
