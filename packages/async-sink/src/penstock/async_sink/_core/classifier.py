"""Which exceptions end a writer, and as what."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, what caused that, and so on; members of exception groups too; each once."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        if current.__cause__ is not None:
            pending.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            pending.append(current.__context__)


class FatalExceptionClassifier:
    """Tells errors that trying again cannot mend from those that it can.

    `matches` is asked about the error and about each of its causes; `wrap` makes the error that the writer's caller
    gets, with the original as its cause.
    """

    def __init__(
        self,
        matches: Callable[[BaseException], bool],
        wrap: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        self._rules: tuple[tuple[Callable[[BaseException], bool], Callable[[BaseException], BaseException]], ...] = (
            (matches, wrap),
        )

    @classmethod
    def of_types(
        cls,
        types: type[BaseException] | tuple[type[BaseException], ...],
        wrap: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> Self:
        """Fatal are errors of these types, and errors that were caused by one."""
        return cls(lambda error: isinstance(error, types), wrap)

    @classmethod
    def chain(cls, classifiers: "Sequence[FatalExceptionClassifier]") -> Self:
        """Ask one after the other; the first that knows the error decides; one that none knows can be tried again."""
        joined = cls(lambda _: False)
        joined._rules = tuple(rule for classifier in classifiers for rule in classifier._rules)
        return joined

    def fatal_error(self, error: BaseException) -> BaseException | None:
        """The error for the writer's caller; None when the request can be tried again."""
        chain = list(causes(error))
        for matches, wrap in self._rules:
            for cause in chain:
                if matches(cause):
                    wrapped = wrap(cause)
                    # A link of the chain stands below `error` already: with it as cause the chain would be a circle.
                    if wrapped.__cause__ is None and all(wrapped is not link for link in chain):
                        wrapped.__cause__ = error
                    return wrapped
        return None


EVERYTHING_IS_FATAL = FatalExceptionClassifier(lambda _: True)
