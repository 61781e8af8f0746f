"""The published model that another program means by a name such as meta-llama/Llama-3.1-8B-Instruct."""

import re

from hybrid_des.workload.models.catalogue import names

_TUNED = re.compile(
    r"(-(instruct|chat|base|hf|it|pt|v0\.1|v1|2507|0324|unsloth|bf16|fp8|8k|17b-16e|17b-128e))+$"
)  # of the same sizes

_CLASS = re.compile(r"([A-Z]\w*?)(?:ModelProvider|Provider|Config)(\w*)")  # Llama31Config8B, Llama3ModelProvider70B

_MODULE = re.compile(r"([a-z]\w*\.){2,}")  # of Python: torchtune.models.llama3_1.llama3_1_70b


def model_called(name: str) -> str | None:
    """The model of the catalogue that a name means, but for publisher, tuning and punctuation; None if there is none.

    Args:
        name: of a repository of Hugging Face, of a folder, a file or a class, or as programs write it (llama3_8b).
    """
    name = _CLASS.sub(r"\1\2", name) if _CLASS.fullmatch(name) else name
    short = re.sub(r"\.ya?ml$", "", name.rstrip("/").lower()).rpartition("/")[2]
    wanted = _TUNED.sub("", _MODULE.sub("", short, count=1).replace("_", "-"))
    for other in ("[^a-z0-9.]", "[^a-z0-9]"):  # 3_1 may stand for 3.1, unless several models are meant then
        alike = [published for published in names() if _letters(published, other) == _letters(wanted, other)]
        if len(alike) == 1:
            return alike[0]
    return None


def _letters(name: str, other: str) -> str:
    """A name without the characters that match a pattern."""
    return re.sub(r"^(meta(?=llama)|nvidia(?=nemotron))", "", re.sub(other, "", name))
