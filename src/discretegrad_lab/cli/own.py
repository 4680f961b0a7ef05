"""Commands that tasks bring: a group for each of them, which is imported when it is used."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ..tasks import COMMANDS
from ..tasks import __name__ as tasks_name
from . import common


def _group(name: str) -> type[TyperGroup]:
    """The commands of a task; nothing of it is imported before one of them is asked for."""

    class Group(TyperGroup):
        def _own(self) -> Any:
            return get_command(import_module(f"{tasks_name}.{name}.commands").app)

        def list_commands(self, ctx: Any) -> list[str]:
            names: list[str] = self._own().list_commands(ctx)
            return names

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return self._own().get_command(ctx, cmd_name)

        def invoke(self, ctx: Any) -> Any:
            with common.explaining(), common.checking_input():
                return super().invoke(ctx)

    return Group


for _name, _help in COMMANDS.items():
    common.app.add_typer(
        typer.Typer(cls=_group(_name), help=_help, no_args_is_help=True), name=_name
    )
