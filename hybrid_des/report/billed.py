"""The bill of a whole training as lines of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.report.fact import Fact
from hybrid_des.units import format_number


def bill_headline(facts: Mapping[str, Any]) -> list[Fact]:
    """Days, money and energy, each with what it is made of; without the length of the training, those of a day."""
    bill, per_day = facts.get("bill"), facts.get("bill_per_day")
    if bill is not None:
        tokens = f", {bill['tokens']:.4g} tokens" if "tokens" in bill else ""
        hours = f"{format_number(bill['gpu_hours'])} GPU-hours"
        first = Fact("training", f"{format_number(bill['days'])} days", f"{hours}: {bill['steps']:,} steps{tokens}")
        return [first, *_amounts(bill)]
    return [] if per_day is None else _amounts(per_day, " per day")


def _amounts(bill: Mapping[str, Any], per: str = "") -> list[Fact]:
    """Money and energy, if they are known; `per` follows their labels."""
    shown = []
    if "cost" in bill:
        each = ""
        if "cost_per_million_tokens" in bill:
            each = f"{format_number(bill['cost_per_million_tokens'])} {bill['currency']} per million tokens"
        shown.append(Fact(f"money{per}", f"{format_number(bill['cost'])} {bill['currency']}", each))
    if "energy_mwh" in bill:
        each = ""
        if "energy_mwh_per_million_tokens" in bill:
            each = f"{format_number(1e3 * bill['energy_mwh_per_million_tokens'])} kWh per million tokens"
        shown.append(Fact(f"energy{per}", f"{format_number(bill['energy_mwh'])} MWh", each))
    return shown


def bill_columns(bills: Sequence[Mapping[str, Any] | None]) -> dict[str, list[str]]:
    """Columns of a table with a row for each bill, empty where there is none; no columns without any."""
    known = [bill for bill in bills if bill is not None]
    currencies = dict.fromkeys(bill["currency"] for bill in known if "cost" in bill)
    money = f"money ({next(iter(currencies))})" if len(currencies) == 1 else "money"
    shown: dict[str, list[str]] = {}
    for head, key in {"days": "days", "GPU-hours": "gpu_hours", money: "cost", "MWh": "energy_mwh"}.items():
        if any(key in bill for bill in known):
            shown[head] = [format_number(bill[key]) if bill and key in bill else "" for bill in bills]
    if len(currencies) > 1:
        each = zip(shown[money], bills, strict=True)
        shown[money] = [f"{text} {bill['currency']}" if bill and "cost" in bill else "" for text, bill in each]
    return shown


def bill_assumptions(facts: Mapping[str, Any]) -> list[Fact]:
    """What the bill takes for granted."""
    said = (facts.get("bill") or facts.get("bill_per_day", {})).get("assumes", ())
    return [Fact("cost assumes" if i == 0 else "", text) for i, text in enumerate(said)]


def bill_changes(changes: Mapping[str, Mapping[str, float]], currency: str) -> list[str]:
    """What another run changes in days, GPU-hours, money and energy: "2051 days → 1980 (-71)"."""
    units = {"days": "days", "gpu_hours": "GPU-hours", "cost": currency, "energy_mwh": "MWh"}
    return [f"{format_number(row['a'])} {units[key]} → {_changed(row)}" for key, row in changes.items()]


def _changed(row: Mapping[str, float]) -> str:
    before, after = format_number(row["a"]), format_number(row["b"])
    if before == after:
        return "the same"
    return f"{after} ({'-' if row['change'] < 0 else '+'}{format_number(abs(row['change']))})"
