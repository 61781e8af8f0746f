"""What the README and the documentation show: their fenced texts, and the files of a user among them."""

import re

from support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}


def fences(text: str) -> list[tuple[str, str]]:
    """Language and content of every fenced text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


FENCES = [fence for text in TEXTS.values() for fence in fences(text)]
LINES = dict.fromkeys(line for language, text in FENCES if language == "sh" for line in text.splitlines())
INSTALL, TEST, *COMMANDS = LINES
EXAMPLES = [text for language, text in FENCES if language == "python"]
FILES = {found[1]: text for _, text in FENCES if (found := re.match(r"# (\S+\.(?:py|yaml))", text))}
PLUGINS = {name: text for name, text in FILES.items() if re.fullmatch(r"my_\w+\.py", name)}
_PREFIXES = (["hybrid-des"], [".venv/bin/hybrid-des"], [".venv/bin/python", "-m", "hybrid_des"])


def arguments_of(words: list[str]) -> list[str]:
    """The words of a command after the program's name."""
    (prefix,) = (prefix for prefix in _PREFIXES if words[: len(prefix)] == prefix)
    return words[len(prefix) :]


def leading_to(command: str) -> list[str]:
    """The commands that must run first: those that write a folder of which this command reads a file."""
    read = [word for word in command.split() if "/" in word]
    return [
        other
        for other in COMMANDS[: COMMANDS.index(command)]
        if (out := re.search(r"--out (\S+)", other)) and any(word.startswith(f"{out[1]}/") for word in read)
    ]
