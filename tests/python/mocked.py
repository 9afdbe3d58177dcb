"""Replaces modules that a trainer's package imports in addition to its models, such as kernels for GPUs."""

import importlib.abc
import importlib.machinery
import sys
from unittest import mock


class Mocked(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces modules of these names, and their submodules, with mocks until the process ends."""

    def __init__(self, *names):
        self.names = names
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path, target=None):
        if any(name == own or name.startswith(own + ".") for own in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module):
        pass
