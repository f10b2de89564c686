from itertools import pairwise

from penstock.async_sink import FatalExceptionClassifier
from penstock.async_sink._core.classifier import EVERYTHING_IS_FATAL


def chain_of(*errors: Exception) -> Exception:
    for outer, inner in pairwise(errors):
        outer.__cause__ = inner
    return errors[0]


def test_a_fatal_error_is_found_in_the_chain_of_causes() -> None:
    """An error is fatal for the reason that lies below it."""
    classifier = FatalExceptionClassifier.of_types(PermissionError)
    root = PermissionError("root")
    assert classifier.fatal_error(chain_of(RuntimeError(), ValueError(), root)) is root
    assert classifier.fatal_error(chain_of(RuntimeError(), ValueError())) is None


def test_the_context_counts_unless_it_was_suppressed() -> None:
    """Python's implicit chaining is a cause too; `from None` says that it is none."""
    classifier = FatalExceptionClassifier.of_types(KeyError)
    error = RuntimeError()
    error.__context__ = KeyError("k")
    assert classifier.fatal_error(error) is error.__context__
    error.__suppress_context__ = True
    assert classifier.fatal_error(error) is None


def test_members_of_groups_count() -> None:
    """A task group's error is looked into."""
    inner = KeyError("k")
    group = ExceptionGroup("several", [ValueError(), inner])
    assert FatalExceptionClassifier.of_types(KeyError).fatal_error(group) is inner


def test_in_a_chain_of_classifiers_the_first_that_knows_decides() -> None:
    """Each is asked about the whole chain of causes before the next one."""
    chain = FatalExceptionClassifier.chain(
        [
            FatalExceptionClassifier.of_types(KeyError, lambda error: LookupError("first")),
            FatalExceptionClassifier.of_types((KeyError, ValueError), lambda error: LookupError("second")),
        ]
    )
    assert str(chain.fatal_error(KeyError())) == "first"
    assert str(chain.fatal_error(chain_of(ValueError(), KeyError()))) == "first"
    assert str(chain.fatal_error(ValueError())) == "second"
    assert chain.fatal_error(OSError()) is None


def test_a_wrapped_error_keeps_the_original_as_its_cause() -> None:
    """The caller sees what to do, and below it what happened."""
    classifier = FatalExceptionClassifier.of_types(OSError, lambda error: RuntimeError("grant the permission"))
    original = OSError("13")
    wrapped = classifier.fatal_error(original)
    assert isinstance(wrapped, RuntimeError)
    assert wrapped.__cause__ is original


def test_a_circle_of_causes_ends() -> None:
    """Errors that point at each other do not hang the classifier."""
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert FatalExceptionClassifier.of_types(KeyError).fatal_error(first) is None


def test_by_default_every_error_is_fatal() -> None:
    """A writer that does not say what can be tried again must not try a bug again for ever."""
    error = ZeroDivisionError()
    assert EVERYTHING_IS_FATAL.fatal_error(error) is error


def test_an_error_out_of_the_chain_does_not_become_its_own_cause() -> None:
    """The root is raised as it is: with the outer error as its cause, the chain would be a circle."""
    root, outer = PermissionError("root"), RuntimeError()
    outer.__cause__ = root
    assert FatalExceptionClassifier.of_types(PermissionError).fatal_error(outer) is root
    assert root.__cause__ is None
