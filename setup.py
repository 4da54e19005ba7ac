"""Packaging of alpha.  The core needs numpy, tqdm and safetensors; everything else is an extra."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "alpha" / "__init__.py").read_text(encoding="utf-8")).group(1)

EXTRAS = {
    "cuda": ["pycuda>=2024.1"],             # builds from source: needs the CUDA toolkit, its curand.h and a driver
    "data": ["scikit-learn>=1.3", "scipy>=1.7"],    # the bundled handwritten digits; files of MATLAB, for SVHN
    "images": ["pillow>=9.1"],              # folders of pictures
    "plot": ["matplotlib>=3.7"],
    "tensorboard": ["tensorboard>=2.14"],
    "onnx": ["onnx>=1.16"],
    "docs": ["mkdocs>=1.5"],                # the site of make docs
    "dist": ["mpi4py>=4.0", "mpich>=4.2"],  # on a cluster with an MPI of its own: pip install mpi4py alone
    "test": ["setuptools>=70.1", "pytest>=8", "pytest-timeout>=2.2", "pytest-xdist>=3.5", "hypothesis>=6.100",
             "ruff>=0.6", "mypy>=1.11", "tensorboard>=2.14", "onnx>=1.16", "onnxruntime>=1.18"],
    "bench": ["torch>=2.1", "matplotlib>=3.7", "onnx>=1.15", "onnxruntime>=1.17"],
}

# Users have emulator/ as alpha.testing.emulator, so that no other package of that name is hidden.
EMULATOR = {"alpha.testing.emulator": "emulator"} if (ROOT / "emulator").is_dir() else {}
# The pages that messages name are alpha/docs in an installation.
BESIDE = {**EMULATOR, **({"alpha.docs": "docs"} if (ROOT / "docs").is_dir() else {})}

setup(
    name="alpha-cks",
    version=VERSION,
    description="A small tensor and autograd framework whose convolutions skip every padded zero",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=[*find_packages(include=["alpha*", "models*", "train*"]), *BESIDE],
    package_dir=BESIDE,
    package_data={"alpha.docs": ["*/*.md", "*/*.ipynb", "images/*"],
                  **{name: ["*.cpp", "*.hpp", "*.h", "README.md"] for name in EMULATOR},
                  "alpha": ["py.typed", "cpu/kernels/**/*.cpp", "cpu/kernels/**/*.hpp", "cuda/**/*.cu", "cuda/**/*.cuh",
                            "cuda/packed/*.zip", "cuda/conv/*/*.json", "ops/*.pyi"],
                  "train": ["recipes/*.toml"]},
    install_requires=["numpy>=1.24", "tqdm>=4.60", "safetensors>=0.4"],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["alpha = train.__main__:command"]},
)
