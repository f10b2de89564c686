from itertools import pairwise

from penstock.async_sink import FatalExceptionClassifier


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
