"""Where the tests of GPU code run: on a GPU; kernels alone also on a CPU, with Triton there and TRITON_INTERPRET=1."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")
needs_kernels = pytest.mark.skipif(not (HAS_GPU or INTERPRETED), reason="no GPU")
