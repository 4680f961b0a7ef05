"""A kind of case: its fields, how a case is picked from its number, and how one is made smaller."""

import json
import random
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Config = dict[str, Any]
Check = Callable[[SimpleNamespace], int | None]


class Unsuitable(Exception):
    """These values do not go together; the case is not counted."""


@dataclass(frozen=True)
class Kind:
    """Cases that differ in the values of some fields."""

    name: str
    part: str
    """What it attacks: "library" or "lab"."""
    says: str
    """What holds if nothing is found, for the table."""
    fields: Mapping[str, Sequence[Any]]
    """What is attacked, then everything else; the values of each, the simplest first."""
    check: Check
    """Raises if something is wrong; may say how many attacks it was."""
    unit: str = "comparison"
    """What an attack is."""
    share: float = 1.0
    """Of the time, relative to the others of its part."""

    def pick(self, number: int) -> Config:
        """The case of this number, always the same."""
        rng = random.Random(f"{self.name}-{number}")
        return {field: rng.choice(values) for field, values in self.fields.items()}

    def run(self, config: Config) -> int:
        """How many attacks it was; raises what is wrong."""
        # small temperatures are the point, and NumPy tells of infinities in Triton's interpreter
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attacks = self.check(SimpleNamespace(**config))
        return 1 if attacks is None else attacks

    def failure(self, config: Config) -> Exception | None:
        """What is wrong with a case, if something is."""
        try:
            self.run(config)
        except Unsuitable:
            return None
        except Exception as error:
            return error
        return None

    def shrink(self, config: Config, error: Exception, seconds: float) -> tuple[Config, Exception]:
        """A case that fails alike, in which no single field can be made simpler in time."""
        deadline, smaller = time.perf_counter() + seconds, True
        while smaller:
            smaller = False
            for candidate in self._simpler(config):
                if time.perf_counter() > deadline:
                    return config, error
                again = self.failure(candidate)
                if type(again) is type(error):
                    config, error, smaller = candidate, again, True
                    break
        return config, error

    def _simpler(self, config: Config) -> Iterator[Config]:
        # the first field says whose fault it is
        for field, values in [*self.fields.items()][1:]:
            place = values.index(config[field])
            # of a long range some only
            steps = range(place) if place < 16 else (0, 1, 2, place // 2)
            yield from (config | {field: values[step]} for step in steps)

    def parse(self, words: Sequence[str]) -> Config:
        """A case from texts such as ``gap=80``; fields that are not named have the simplest value.

        Raises:
            ValueError: If a field or a value does not exist.
        """
        config = {field: values[0] for field, values in self.fields.items()}
        for word in words:
            field, _, text = word.partition("=")
            values = self.fields.get(field, ())
            if isinstance(values, range):
                values = [int(text)] if text.isdigit() and int(text) in values else []
            known = {_text(value): value for value in values}
            if text not in known:
                raise ValueError(
                    f"expected FIELD=VALUE with a field of {', '.join(self.fields)} and one of its "
                    f"values ({', '.join(known) or 'whole numbers'}), got {word!r}"
                )
            config[field] = known[text]
        return config

    def command(self, config: Config) -> str:
        """What runs a case again: the fields that are not as simple as can be."""
        words = [f"{k}={_text(v)}" for k, v in config.items() if v != self.fields[k][0]]
        return shlex.join(["python", "-m", "soak", "--check", self.name, *words])


KINDS: dict[str, Kind] = {}
"""All kinds by name."""


def kind(
    part: str, says: str, unit: str = "comparison", share: float = 1.0, **fields: Sequence[Any]
) -> Callable[[Check], Kind]:
    """Make a check a kind of that name."""

    def register(check: Check) -> Kind:
        name = check.__name__.strip("_")
        KINDS[name] = Kind(name, part, says, fields, check, unit, share)
        return KINDS[name]

    return register


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
