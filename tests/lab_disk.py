"""A disk that fails when it is told to, and forgets what it may forget when the power goes."""

import os
import shutil
from pathlib import Path


class Died(BaseException):
    """The process is gone; no except clause of the store may see it."""


class File:
    def __init__(self):
        self.data, self.synced = b"", False


class Directory:
    """Names as they are, and as they are known to last."""

    def __init__(self):
        self.now, self.lasting = {}, {}


class Disk:
    """Stands for ``os`` in the store: fails at an operation, forgets what may be lost.

    POSIX promises no more than this: what was written to a file lasts once it was fsynced, a change
    of a directory once the directory was; any part of the rest may be lost, in any order.
    """

    def __init__(self, root, fails_at=None, how=None):
        self.root, self.fails_at, self.how = root, fails_at, how
        self.count = 0
        self.top = Directory()
        self.open_files = {}

    def __getattr__(self, name):
        return getattr(os, name)

    def node(self, path):
        node = self.top
        for part in Path(path).relative_to(self.root).parts:
            node = node.now[part]
        return node

    def operation(self):
        self.count += 1
        if self.count == self.fails_at:
            raise Died if self.how is None else OSError(self.how, os.strerror(self.how))

    def open(self, path, flags, mode=0o777):
        if flags & os.O_CREAT:
            self.operation()
        descriptor = os.open(path, flags, mode)
        if flags & os.O_CREAT:
            self.node(path.parent).now[path.name] = File()
        self.open_files[descriptor] = self.node(path)
        return descriptor

    def fdopen(self, descriptor, mode):
        return _Open(self, self.open_files[descriptor], os.fdopen(descriptor, mode))

    def fsync(self, descriptor):
        self.operation()
        node = self.open_files[descriptor]
        if isinstance(node, File):
            node.synced = True
        else:
            node.lasting = dict(node.now)

    def replace(self, source, target):
        self.operation()
        os.replace(source, target)
        moved = self.node(source.parent).now.pop(source.name)
        self.node(target.parent).now[target.name] = moved

    rename = replace

    def unlink(self, path):
        self.operation()
        os.unlink(path)
        del self.node(path.parent).now[path.name]

    def mkdir(self, path):
        self.operation()
        os.mkdir(path)
        self.node(path.parent).now[path.name] = Directory()

    def lose_power(self, chance):
        """Put on the real disk what may be found after the machine has died."""
        for path in self.root.iterdir():
            if path.name != ".locks":
                shutil.rmtree(path)
        self._restore(self.root, self.top, chance)

    def _restore(self, path, node, chance):
        if isinstance(node, File):
            lasting = node.data if node.synced else node.data[: chance.randint(0, len(node.data))]
            path.write_bytes(lasting)
            return
        path.mkdir(exist_ok=True)
        for name in {**node.now, **node.lasting}:
            views = [node.now.get(name), node.lasting.get(name)]
            child = views[0] if views[0] is views[1] else chance.choice(views)
            if child is not None:
                self._restore(path / name, child, chance)


class _Open:
    def __init__(self, disk, node, file):
        self.disk, self.node, self.file = disk, node, file

    def write(self, content):
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            self.disk.operation()
            self.file.write(part)
            self.node.data += part

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
