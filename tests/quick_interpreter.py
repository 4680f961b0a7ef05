"""Triton's interpreter without the work that it does again and again.

It computes the same in less time: what follows from a type alone is looked up, and the language is
prepared once in a launch, not at every call of a function within it. A part that does not fit
another version of Triton is left out.
"""

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Place = tuple[Any, str]


def _once_in_a_launch(tl, interpreter) -> dict[Place, Any]:
    """A function called within a kernel finds the language as the kernel's launch left it."""
    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared = set()

    @functools.cache
    def languages(function):
        seen = function.__globals__.values()
        return tuple(any(value is module for value in seen) for module in (tl, tl.core))

    def prepare_once(function):
        if languages(function) in prepared:
            return None
        prepared.add(languages(function))
        return prepare(function)

    def fresh_launch(self, *arguments, **options):
        prepared.clear()
        try:
            return launch(self, *arguments, **options)
        finally:
            prepared.clear()

    return {
        (interpreter, "_patch_lang"): prepare_once,
        (interpreter.GridExecutor, "__call__"): fresh_launch,
    }


def _names_of_builtins_by_module(tl, interpreter) -> dict[Place, Any]:
    put, is_builtin = interpreter._patch_attr, tl.core.is_builtin

    @functools.cache
    def names(module):
        return [name for name, member in inspect.getmembers(module) if is_builtin(member)]

    def put_all(module, builder, scope):
        for name in names(module):
            member = getattr(module, name)
            if is_builtin(member):
                put(module, name, member, builder, scope)

    return {(interpreter, "_patch_builtin"): put_all}


def _numpy_type_by_name(tl, interpreter) -> dict[Place, Any]:
    find = interpreter._get_np_dtype
    known = {}

    def look_up(kind):
        name = (kind.element_ty if isinstance(kind, tl.block_type) else kind).name
        if name not in known:
            known[name] = find(kind)
        return known[name]

    return {(interpreter, "_get_np_dtype"): look_up}


def _types_of_blocks_by_shape(tl, interpreter) -> dict[Place, Any]:
    make, known = tl.block_type.__init__, {}

    def init(self, element_ty, shape):
        sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
        key = (element_ty.name, *sizes) if all(type(size) is int for size in sizes) else None
        if key in known:
            vars(self).update(known[key], element_ty=element_ty)
            return
        make(self, element_ty, shape)
        if key is not None:
            known[key] = dict(vars(self))

    return {(tl.block_type, "__init__"): init}


def _shapes_of_tensors_by_type(tl, interpreter) -> dict[Place, Any]:
    make, known = tl.tensor.__init__, {}

    def init(self, handle, type):
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes in known:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known[sizes]
            return
        make(self, handle, type)
        known[sizes] = self.shape, self.numel

    return {(tl.tensor, "__init__"): init}


PARTS = (
    _once_in_a_launch,
    _names_of_builtins_by_module,
    _numpy_type_by_name,
    _types_of_blocks_by_shape,
    _shapes_of_tensors_by_type,
)
_changed: dict[Place, tuple[Any, Any]] = {}
"""What Triton has there, and what is there instead."""


def install() -> None:
    """From now on, in this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    for part in PARTS:
        try:
            changes = part(tl, interpreter)
        except AttributeError:
            continue
        for (owner, name), value in changes.items():
            _changed[owner, name] = getattr(owner, name), value
            setattr(owner, name, value)


@contextmanager
def as_it_came() -> Iterator[None]:
    """The interpreter as Triton has it, for a while."""
    for (owner, name), (before, _) in _changed.items():
        setattr(owner, name, before)
    try:
        yield
    finally:
        for (owner, name), (_, now) in _changed.items():
            setattr(owner, name, now)
