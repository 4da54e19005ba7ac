"""models: the networks that come with alpha, `alpha.models.create("resnet18")`.

The package is the one that lies beside alpha as `models`, under a second name: import it from here
beside a models/ of your own. Both names are of the same modules and the same registry.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from alpha.start import companion

if TYPE_CHECKING:
    from models import check_option as check_option
    from models import create as create
    from models import description as description
    from models import list as list
    from models import register_model as register_model

_ROOT = Path(__file__).parent.parent.parent / "models"


def _package() -> ModuleType:
    """Returns the package beside alpha; it is `models` to Python where that name is of no other one."""
    known = sys.modules.get("models")
    if known is None:
        spec = importlib.util.find_spec("models")
        if spec is not None and spec.origin == str(_ROOT / "__init__.py"):
            return importlib.import_module("models")
    elif Path(getattr(known, "__file__", None) or "/").parent == _ROOT:
        return known
    return companion("models", __name__)


def _share(package: ModuleType) -> None:
    """Lets Python find the modules of the package by the names that begin with alpha."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(f"{package.__name__}."):
            sys.modules[__name__ + name.removeprefix(package.__name__)] = module
    sys.modules[__name__] = package


_share(_package())
