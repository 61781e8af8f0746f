"""A discrete-event simulator of hybrid-parallel deep-learning training.

from hybrid_des import load, simulate
result = simulate(load("scenarios/a100_8x.yaml"))
result.summary["step_time_s"]

`__init__.pyi` says where each public name is defined; it is imported on first use, to keep start-up fast.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
