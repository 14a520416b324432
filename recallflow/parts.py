"""Parts of an event that take no field they do not have: a misspelt condition, passed over, would widen what is asked
for, and nobody could tell."""

from collections.abc import Collection, Mapping
from difflib import SequenceMatcher
from typing import Any, ClassVar

from pydantic import (
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from recallflow.fields import Model
from recallflow.limits import PROBLEMS_MAX

LETTERS_READ = 64  # of a name that is none
ALIKE = 0.6
FIELDS_MAX = 64  # of a part with unknown fields


class Part(Model):
    """Base of such a part. `ALSO`: what others call a field, and its name here."""

    model_config = ConfigDict(extra="forbid")
    ALSO: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _known_fields(cls, given: object, check: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return check(given)
        except ValidationError as error:
            found = error.errors(include_url=False)
            # Those of parts within this one have been worded by then.
            unknown = [at for at, one in enumerate(found) if one["type"] == "extra_forbidden"]
            if not unknown:
                raise
            if isinstance(given, dict) and len(given) > FIELDS_MAX:
                raise ValueError(f"has {len(given):,} fields; it may have {FIELDS_MAX}") from None
            known = [field.alias or name for name, field in cls.model_fields.items()]
            problems = [*map(_as_details, found)]
            for count, at in enumerate(unknown):
                name = str(problems[at]["loc"][-1])
                # Nobody is told more than so many, and to look for what was meant takes its time.
                problems[at] = no_such(
                    "field", problems[at]["loc"], fix(name, known, cls.ALSO) if count < PROBLEMS_MAX else ""
                )
            raise ValidationError.from_exception_data(cls.__name__, problems) from None


def fix(name: str, known: Collection[str], also: Mapping[str, str] | None = None) -> str:
    """What was probably meant by a name that is not known, or else what there is."""
    if similar := (also or {}).get(name) or nearest(name, known):
        return f"did you mean {similar}?"
    return f"there are {', '.join(sorted(known))}"


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that is spelt most like a name, if any is: `eventTime` is event_time, `tau` is tau_days."""
    asked = _letters(name)

    def likeness(other: str) -> float:
        letters = _letters(other)
        if len(asked) > 1 and letters.startswith(asked):
            return 1.0
        matcher = SequenceMatcher(None, asked, letters)
        may_be_alike = matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE
        return matcher.ratio() if may_be_alike else 0.0

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best) >= ALIKE else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name[:LETTERS_READ].lower()))


def no_such(what: str, where: tuple[int | str, ...], how: str) -> InitErrorDetails:
    """The problem of a name that is not known."""
    problem = f"no such {what}; {how}" if how else f"no such {what}"
    return InitErrorDetails(type="value_error", loc=where, input=where[-1], ctx={"error": ValueError(problem)})


def check_all(given: object, check: ValidatorFunctionWrapHandler, problems: list[InitErrorDetails]) -> Any:
    """What `check` makes of a value. Raises ValidationError with these problems and with all that `check` refuses."""
    try:
        checked = check(given)
    except ValidationError as error:
        problems = [*problems, *map(_as_details, error.errors(include_url=False))]
    if problems:
        raise ValidationError.from_exception_data("fields", problems)
    return checked


def _as_details(error: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(type=error["type"], loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))
