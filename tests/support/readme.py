"""What the README shows: its fenced texts, and the files of a user among them."""

from __future__ import annotations

import re

from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
FILES = {found[1]: text for _, text in FENCES if (found := re.match(r"# (\S+\.(?:py|yaml))", text))}
PLUGINS = {name: text for name, text in FILES.items() if re.fullmatch(r"my_\w+\.py", name)}
