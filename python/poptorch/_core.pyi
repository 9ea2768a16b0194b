# SPDX-License-Identifier: Apache-2.0
# Made by tools/dev/write_stub.py
"""The compiler and runtime of Tessera."""

from collections.abc import Callable, Sequence


class Error(RuntimeError):
    pass

class RecoverableError(Error):
    pass

class UnrecoverableError(Error):
    pass

class CustomOp:
    """An op of a user's library."""

    @property
    def domain(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def library(self) -> str:
        """The file."""

    @property
    def composes(self) -> bool:
        """Whether it is a composition."""

    @property
    def has_gradients(self) -> bool: ...

def custom_ops() -> list[CustomOp]:
    """The ops of the libraries that are loaded."""

def custom_refused() -> list[str]:
    """Ops that are not used, and why."""

def custom_setup(domain: str, name: str, version: int, inputs: Sequence[tuple[str, Sequence[int]]], attributes: object) -> list[tuple[str, list[int]]]:
    """(dtype, shape) of the results of a call."""

def custom_wants_seed(domain: str, name: str, version: int, inputs: Sequence[tuple[str, Sequence[int]]], attributes: object) -> bool:
    """Whether the op takes a seed behind these inputs."""

def custom_compose(domain: str, name: str, version: int, inputs: Sequence[tuple[str, Sequence[int]]], attributes: object) -> object:
    """
    The nodes (op, arguments, results, types, line, column, bodies) and the outputs of a composition, where bodies are such pairs, and (input, kind) of the inputs whose new values its last outputs are.
    """

def custom_facts(facts: Sequence[tuple[str, int]]) -> None:
    """What ops may ask of the program that is being made."""

def custom_gradients(domain: str, name: str, version: int, inputs: Sequence[tuple[str, Sequence[int]]], attributes: object) -> list:
    """
    The gradient ops (domain, name, version, attributes, inputs, outputs) of a call.
    """

class Lease:
    """A device that this process holds until it is released."""

    @property
    def id(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def count(self) -> int: ...

    def release(self) -> None: ...

    def check(self) -> None:
        """Raises RecoverableError if the device is gone."""

def number_of_ipus() -> int:
    """Of the machine."""

def runtime_directory() -> str:
    """Where the locks of its IPUs are."""

def devices(ipus: int) -> list[tuple[int, int, int]]:
    """The devices (id, first, count) of a machine with so many IPUs."""

def acquire(directory: str, wanted: Sequence[tuple[int, int, int]]) -> Lease:
    """The first of these devices that is free, or None."""

def holders(directory: str) -> list:
    """(IPU, process, user, seconds, command) of every IPU that is held."""

def reset_device(directory: str, device: tuple[int, int, int]) -> None: ...

def dtypes() -> list[tuple[str, bool]]:
    """Names of the element types, and whether kernels compute with them."""

class Row:
    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def arity(self) -> int: ...

    @property
    def rule(self) -> str: ...

    @property
    def signature(self) -> str: ...

    @property
    def facts(self) -> list[str]: ...

def rows() -> list[Row]:
    """The ops that run natively."""

def host_is_faster(op: str, shape: Sequence[int], results: int) -> bool:
    """
    Whether torch is faster than the op's kernel on an operand of this shape.
    """

def narrow(wide: int, narrowed: int, count: int, integers: bool) -> bool:
    """Whether all values of 64 bits fit into 32 bits."""

class State:
    """A state of a program."""

    @property
    def name(self) -> str:
        """That users see."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> list[int]:
        """On the host."""

    @property
    def kind(self) -> str:
        """What it is for, such as param, optimizer or random."""

    @property
    def what(self) -> str:
        """Its name without that of its owner, such as momentum."""

    @property
    def param(self) -> object:
        """The parameter it belongs to, or None."""

    @property
    def group(self) -> object:
        """The parameter group it belongs to, or None."""

class Program:
    @property
    def inputs(self) -> list[tuple[str, str, list[int]]]: ...

    @property
    def outputs(self) -> list[tuple[str, str, list[int]]]: ...

    @property
    def states(self) -> list[State]: ...

    def write_state(self, name: str, address: int, bytes: int) -> None: ...

    def read_state(self, name: str, address: int, bytes: int) -> None: ...

    def host_calls(self) -> list: ...

    def set_host_call(self, index: int, function: Callable) -> None: ...

    def interrupt(self) -> None: ...

    def set_profiling(self, on: bool) -> None: ...

    @property
    def tensor_names(self) -> list[str]: ...

    @property
    def settings(self) -> list[str]:
        """Names of the options that the core has read."""

    @property
    def last_run_seconds(self) -> float: ...

    @property
    def times(self) -> list[tuple[float, float, float, float]]: ...

    @property
    def origin(self) -> str:
        """The file that it was read from; empty if it was compiled."""

    @property
    def notes(self) -> list:
        """What the user is to be told, and whether as a warning."""

    def save(self, path: bytes, creator: str, host: str, model: bytes) -> None: ...

    def summary(self) -> str: ...

    def attach(self, lease: Lease | None) -> None:
        """The device that it runs on from now; None for none."""

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None: ...

def compile(text: str, options: object | None, constants: dict, progress: object | None = None, cache: bytes = ..., creator: str = '') -> Program: ...

def load(file: ExecutableFile, options: object | None, progress: object | None = None) -> Program:
    """The program of a file."""

class ExecutableFile:
    """A program in a file, checked."""

    def __init__(self, arg: bytes, /) -> None: ...

    @property
    def creator(self) -> str:
        """The version that made it."""

    @property
    def digest(self) -> str:
        """Of the graph it was made from, without lines."""

    @property
    def host(self) -> str:
        """What save() was given for it."""

    @property
    def model(self) -> bytes:
        """What save() was given for it; empty if nothing."""

def graph_digest(text: str) -> str:
    """Of a graph, without lines."""

class CacheEntry:
    """A program in a cache."""

    @property
    def path(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def creator(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def used(self) -> float:
        """When it was, in seconds since 1970."""

    @property
    def problem(self) -> str:
        """Why it is not good; empty if it is."""

def cache_entries(dir: bytes) -> list[CacheEntry]:
    """The newest first."""

def prune_cache(dir: bytes, bytes: int) -> list[CacheEntry]:
    """
    Removes what is not good and what was not used for longest; what is gone.
    """
