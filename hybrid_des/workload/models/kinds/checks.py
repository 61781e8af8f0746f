"""What the options of a transformer's blocks must satisfy together."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.mixers import registration as mixers

SIZES = ("compressed", "conv", "delta", "kda", "latent", "lightning", "mamba")  # keys that are sizes of a mixer
LOCAL = ("window", "attention_chunk")
OF_ATTENTION = ("kv_heads", "head_size", "value_size", "keys_values", "sinks")


def check_blocks(options: Block, kinds: Mapping[str, Block], states: Mapping[str, Collection[str]]) -> None:
    """Check the options of a model and those of its kinds of blocks.

    Args:
        options: those of the model.
        kinds: those of its kinds, by name; "" where it has none.
        states: the keys that a kind states.

    Raises:
        ModelRefusal: they do not fit each other; the option is that of the kind where it states it.
    """
    for name, block in kinds.items():
        try:
            for option, message in _misfits(block):
                raise ModelRefusal(option, message)
        except ModelRefusal as refusal:
            if refusal.option.split(".")[0] not in states.get(name, ()):
                raise
            raise ModelRefusal(f"kinds.{name}.{refusal.option}", refusal.message) from None
    _check_sizes(options, [*kinds.values()])
    if not any(block.second for block in kinds.values()) and "ffn" not in options.model_fields_set:
        raise ModelRefusal("ffn", "is required by transformer")
    if options.experts is not None and options.experts.dense_layers and options.ffn is None:
        raise ModelRefusal("ffn", "is required by `experts.dense_layers`")


def _misfits(block: Block) -> Iterator[tuple[str, str]]:
    """Options of a block that do not fit the others, and why."""
    if "attention" in block.mixing:
        if block.head_size is None and block.hidden % block.heads:
            yield "heads", f"hidden size {block.hidden} is not divisible by {block.heads} heads"
        if block.kv_heads is not None and block.heads % block.kv_heads:
            yield "kv_heads", f"{block.heads} heads cannot share {block.kv_heads} heads of keys and values"
    if block.window is not None and block.attention_chunk is not None:
        yield "attention_chunk", "replaces `window`; give only one of the two"
    yield from _misfits_of_selection(block)
    if block.attention == "plain" and (block.window or block.attention_chunk or block.sinks):
        yield "attention", "plain: has no windows, chunks or sinks; expected flash"
    if block.beside and (block.experts is None or block.ffn is None):
        yield "beside", "needs `experts` and `ffn`, which are then side by side"
    if not block.mixing and not block.second:
        yield "mixer", "none: and no second half; a block has at least one"
    if block.experts is not None:
        block.experts.check()
    delta, mamba = block.delta, block.mamba
    if delta is not None and delta.value_heads % delta.key_heads:
        yield "delta.key_heads", f"{delta.value_heads} heads of values cannot share {delta.key_heads} heads of keys"
    if mamba is not None and mamba.heads % mamba.groups:
        yield "mamba.groups", f"{mamba.heads} heads cannot be divided into {mamba.groups} groups"


def _misfits_of_selection(block: Block) -> Iterator[tuple[str, str]]:
    """The same of indexers, and of attention to compressed keys."""
    sizes = block.compressed
    if block.indexer is not None and "latent" in block.mixing and not (block.latent and block.latent.query):
        yield "indexer", "needs `latent.query`, the vector that its queries are projected from"
    if sizes is not None:
        if block.heads % sizes.out_groups:
            yield "compressed.out_groups", f"{block.heads} heads cannot be divided into {sizes.out_groups} groups"
        if sizes.rope > sizes.size:
            yield "compressed.rope", f"{sizes.rope} of a key of only {sizes.size}"
        if sizes.ratio is None and (sizes.overlap or sizes.indexer):
            what = "overlap" if sizes.overlap else "indexer"
            yield f"compressed.{what}", "needs `ratio`: without it no key is compressed"
        if sizes.indexer is not None and sizes.indexer.reused:
            yield "compressed.indexer.reused", "is of latent attention only"
    what = "compressed keys" if "compressed" in block.mixing else ""
    what = "selected keys" if block.indexer is not None and "latent" in block.mixing else what
    if what and block.attention == "plain":
        yield "attention", f"plain: has no {what}; expected flash"
    if what and not block.causal:
        yield "causal", f"false: with {what}, a token attends to those before it; expected true"
    yield from ((key, f"has no meaning with {what}") for key in LOCAL if what and getattr(block, key) is not None)


def _check_sizes(options: Block, blocks: Sequence[Block]) -> None:
    """Check that mixers have their sizes, and that sizes have a mixer in some block."""
    used = sorted({name for block in blocks for name in block.mixing})
    sizes = {name: mixers.find(name).facts["sizes"] for name in used}
    if "latent" not in used and any(one.indexer is not None for one in (options, *blocks)):
        raise ModelRefusal("indexer", "no layer has mixer latent, whose keys it selects")
    for block in blocks:
        for name in block.mixing:
            if sizes[name] is not None and getattr(block, sizes[name]) is None:
                raise ModelRefusal(sizes[name], f"is required by mixer {name}")
    for key in SIZES:
        if key not in sizes.values() and any(getattr(one, key) is not None for one in (options, *blocks)):
            users = [name for name in mixers.names() if mixers.find(name).facts["sizes"] == key]
            raise ModelRefusal(key, f"no layer has mixer {' or '.join(users)}, whose sizes these are")
    if "attention" not in used:
        for key in (*OF_ATTENTION, *(() if "latent" in used else ("gate",))):
            if getattr(options, key):
                how = "latent attention" if "latent" in used else f"mixer {', '.join(used) or 'none'}"
                raise ModelRefusal(key, f"has no meaning with {how}")
    for name in options.mixers or ():
        if name not in used:
            raise ModelRefusal(f"mixers.{name}", "no layer has this mixer")


def sources_of(blocks: Sequence[Block]) -> Iterator[int | None]:
    """For every block, the last earlier one that has the keys and values which it shares; None: it has its own.

    Raises:
        ModelRefusal: there is none.
    """
    last: dict[tuple[object, ...], int] = {}
    for number, block in enumerate(blocks):
        shape = block.window, block.attention_chunk, block.kv_heads, block.head, block.value_size
        if block.keys_values == "shared":
            if shape not in last:
                message = f"shared: no block before block {number} has keys and values with this window and these sizes"
                raise ModelRefusal("keys_values", message)
            yield last[shape]
        else:
            if "attention" in block.mixing:
                last[shape] = number
            yield None
