"""What people use: the command line, pictures on their own axes, and pages that follow every change."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["plots"])
