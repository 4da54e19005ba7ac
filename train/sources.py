"""Where settings come from beside flags: a TOML file, the run that is continued, and files of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from alpha.data.named import is_folder
from alpha.errors import AlphaError, ConfigError, message
from alpha.training.parts import read_start
from alpha.training.runs import checkpoint_of
from train.stored import load


def import_all(names: Iterable[str]) -> None:
    """Imports files (`my_file.py`, by their path) and modules.  Raises ConfigError if one cannot be imported."""
    for name in names:
        try:
            if name.endswith(".py"):
                _import_file(Path(name))
            else:
                if "" not in sys.path and str(Path.cwd()) not in sys.path:  # the command alpha has its own folder there
                    sys.path.append(str(Path.cwd()))
                importlib.import_module(name)
        except AlphaError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(message("import", f"{name} cannot be imported: {type(error).__name__}: {error}"
                                      f"{_place(error)}", "correct the file, or its name")) from error


def _import_file(path: Path) -> None:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(message("import", f"there is no file {path}", "correct the path of --import"))
    known = sys.modules.get(path.stem)
    name = path.stem if known is None or getattr(known, "__file__", None) == str(path) else f"_import_{path.stem}"
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as worker processes and classes of data look for it there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""


def settings_of(resume: Any) -> dict[str, Any]:
    """Returns the settings of the run that --resume PATH continues, and its folder as `output`.

    Those of the place where it ran, and of a single start, are left out; "auto" has none, as a script that starts a run
    or continues it names them all.
    Nor are imports: a checkpoint names no code that is run without being asked for. Where there is no such run, none
    are returned: the start of the run says so.
    """
    if not isinstance(resume, str) or resume == "auto":
        return {}
    try:
        place = checkpoint_of("resume", resume)
        metadata = load(place)[1]
    except (OSError, ValueError):   # a name that the system refuses; CheckpointError is a ValueError
        return {}
    found, step = metadata["config"], metadata["progress"]["step"]
    once = ["resume", "evaluate", "runs", "profile", "tensorboard", "device", "output", "imports"]
    if (found.get("max_steps") or 0) <= step:   # a limit that was reached is passed
        once.append("max_steps")
    return {**{name: value for name, value in found.items() if name not in once and value is not None},
            "output": str(place.parent)}


def settings_of_start(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model and the size of pictures of the run that --finetune names, for where they are not given.

    Raises CheckpointError if there is no such run, or it does not say what it is of.
    """
    if not isinstance(given.get("finetune"), str):
        return {}
    use = read_start(given["finetune"]).use
    model, shape = use["model"], use["inputs"]["shape"]
    if model["name"] is None or given.get("model", model["name"]) != model["name"]:
        there = repr(model["name"]) if model["name"] else "no model that has a name"
        raise ConfigError(message("finetune", f"{given['finetune']} is of {there}, and --model is "
                                  f"{given.get('model', 'not given')}", f"leave --model out, or choose {there}"
                                  if model["name"] else "fine-tune it by fit(model, data, finetune=RUN)"))
    found = {"model": model["name"], "model_option": [f"{name}={_text(value)}" for name, value in
                                                      model["options"].items()]}
    is_square = len(shape) == 3 and shape[0] == shape[1] and is_folder(str(given.get("dataset", "")))
    return {**found, "image_size": shape[0]} if is_square else found


def _text(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def imports_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what the run that is to be continued has imported, if its checkpoint can be read."""
    resume, output = values.get("resume"), values.get("output")
    if resume is None or (resume == "auto" and output is None):
        return ()
    place = Path(str(output if resume == "auto" else resume))
    try:
        found = load(place / "last.safetensors" if place.is_dir() else place)[1]["config"].get("imports") or ()
    except (OSError, ValueError):  # a name that the system refuses; CheckpointError is a ValueError
        return ()
    return tuple(found)


# ---- TOML ------------------------------------------------------------------------------------------------------------

MAX_TOML = 1 << 16  # bytes of a file with settings; all of them fit into 1,000
SHOWN = 80  # characters of a refused value


def shown_value(value: object) -> str:
    """Returns a value for a message: a long one is cut, and a huge integer is not written out."""
    if isinstance(value, int) and abs(value) >= 1 << 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a list with such an integer, or nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a file, unchecked.  Raises ConfigError if it cannot be read or is no TOML."""
    if sys.version_info < (3, 11):
        raise ConfigError(message("config", f"reading {path} needs Python 3.11 or later, this is "
                                  f"{sys.version.split()[0]}", "use a newer Python, or give the settings as flags"))
    import tomllib
    name = shown_value(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TOML + 1)
        if len(text) > MAX_TOML:
            raise ConfigError(message("config", f"{name} has more than {MAX_TOML} bytes", "write settings alone"))
        return tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(message("config", f"cannot read {name}: {error.strerror}", "correct the path")) from error
    except RecursionError as error:
        raise ConfigError(message("config", f"{name} is nested too deeply", "write one setting a line")) from error
    except ValueError as error:  # includes TOMLDecodeError and UnicodeDecodeError
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(message("config", f"{name} is not TOML: {shown_value(str(error))}",
                                  'write one setting a line, such as model = "lenet5"')) from error
