"""Manifests of Kubernetes that start a training: nodes, GPUs, environment, and the command of their containers.

A pod counts as a node. Kinds: PyTorchJob and MPIJob (kubeflow.org/docs/components/trainer/legacy-v1), TrainJob (its
v2), JobSet (jobset.sigs.k8s.io), Job (kubernetes.io/docs/concepts/workloads/controllers/job) and Volcano's Job
(volcano.sh). The operator of PyTorchJob sets WORLD_SIZE to replicas × nprocPerNode, where that is a number, and
PET_NNODES (pkg/controller.v1/pytorch/envvar.go of kubeflow/training-operator).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interchange.frameworks.batch_job import BatchJob

_GPU = re.compile(r"(nvidia|amd)\.com/gpu|(nvidia\.com/mig-.*)")
_SHELLS = ("bash", "sh", "zsh")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")  # of a variable in a manifest


class Pods(NamedTuple):
    """Pods of one kind in a job: how many, and one of their containers."""

    role: str
    replicas: int
    container: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of a pod."""
        resources = _section(self.container, "resources")
        held = {**_section(resources, "requests"), **_section(resources, "limits")}
        return next((_whole(size) for name, size in held.items() if _GPU.fullmatch(str(name))), 0)


def kubernetes_job(text: str, name: str) -> BatchJob | None:
    """The job of a manifest; None if a text is none.

    Raises:
        UsageError: no container of it has a command.
    """
    kind, spec = next(_manifests(text), ("", {}))
    if not kind:
        return None
    pods = [*_pods(kind, spec)]
    held = [one for one in pods if one.gpus] or [one for one in pods if one.role != "Launcher"]
    nodes, sizes = sum(one.replicas for one in held), {one.gpus for one in held if one.gpus}
    machine = f"{kind} of {nodes} pods{f' with {max(sizes)} GPUs each' if sizes else ''}"
    script = next((words for one in reversed(pods) if (words := _script(one.container))), "")
    if not script:
        raise UsageError(f"{name}: {machine}, without a command; give its launch line, and cluster.nodes with --set")
    stated = (_section(spec, "trainer").get("numProcPerNode"), spec.get("nprocPerNode"), spec.get("slotsPerWorker"))
    each = str(next(filter(None, stated), ""))
    options = {"replicas": str(nodes)} | ({"gpus-per-pod": str(max(sizes))} if sizes else {})
    variables = {"WORLD_SIZE": str(nodes * (int(each) if each.isdecimal() else 1)), "PET_NNODES": str(nodes)}
    if each:
        options["nproc-per-pod"] = variables["PET_NPROC_PER_NODE"] = each
    own = {str(one.get("name")): str(one["value"]) for pod in pods for one in _environment(pod) if "value" in one}
    notes = [f"{kind}: pods of {' and '.join(map(str, sorted(sizes)))} GPUs: the most count"] if len(sizes) > 1 else []
    return BatchJob(script, options, variables | own, (f"{machine}, each a node", *notes))


def _manifests(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kinds of a text's manifests with pods, and what each specifies."""
    if not re.search(r"(?m)^kind:", text) or not re.search(r"(?m)^apiVersion:", text):
        return
    try:
        documents = [*yaml.safe_load_all(text)]
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    for document in documents:
        kind = str(document.get("kind")) if isinstance(document, dict) else ""
        spec = _section(document, "spec")
        if spec and [*_pods(kind, spec)]:
            yield one_line(kind, LONGEST_SHOWN), spec


def _pods(kind: str, spec: Mapping[str, Any]) -> Iterator[Pods]:
    """The pods that a manifest asks for."""
    roles = next((_section(spec, key) for key in spec if str(key).endswith("ReplicaSpecs")), {})
    for role, each in roles.items():
        yield from _of_template(str(role), _whole(_section(roles, role).get("replicas", 1)), each)
    for each in [*_list(spec.get("replicatedJobs")), *_list(spec.get("tasks"))]:
        inner = _section(_section(each, "template"), "spec")
        jobs = _whole(each.get("replicas", 1))
        if "template" in inner:
            yield from _of_template(str(each.get("name")), jobs * _whole(inner.get("parallelism", 1)), inner)
        else:
            yield from _of_template(str(each.get("name")), jobs, each)
    if trainer := _section(spec, "trainer"):
        resources = _section(trainer, "resourcesPerNode")
        yield Pods("Trainer", _whole(trainer.get("numNodes", 1)), {**trainer, "resources": resources})
    elif not roles and kind == "Job":
        yield from _of_template("", _whole(spec.get("parallelism", 1)), spec)


def _of_template(role: str, replicas: int, around: object) -> Iterator[Pods]:
    containers = _list(_section(_section(around, "template"), "spec").get("containers"))
    with_gpus = [one for one in containers if Pods(role, replicas, one).gpus]
    yield from (Pods(role, replicas, one) for one in (with_gpus or containers)[:1])


def _script(container: Mapping[str, Any]) -> str:
    """What a container starts, as shell."""
    words = [str(word) for key in ("command", "args") for word in _words(container.get(key))]
    if not words:
        return ""
    if words[0].rpartition("/")[2] in _SHELLS:
        at = next((number for number, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), None)
        if at is not None and len(words) > at + 1:
            return words[at + 1]
    text = " ".join(shlex.quote(word) if re.search(r"\s", word) else word for word in words)
    return _REFERENCE.sub(r"${\1}", text)


def _environment(pods: Pods) -> list[dict[str, Any]]:
    return _list(pods.container.get("env"))


def _words(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if value else []


def _section(around: object, key: str) -> dict[str, Any]:
    value = around.get(key) if isinstance(around, Mapping) else None
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return int(str(value)) if re.fullmatch(r"[0-9]{1,6}", str(value)) else 1
