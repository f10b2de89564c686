import pytest

from penstock.rpc import RpcOptionError
from penstock.rpc.service import set_up_telemetry


@pytest.mark.parametrize("variable", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": ""}])
def test_no_exporter_leaves_the_telemetry_alone(variable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable nothing is configured, so that another provider can be found."""
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    assert set_up_telemetry("penstock-test") is None


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which, before the service starts."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with pytest.raises(RpcOptionError, match="nowhere"):
        set_up_telemetry("penstock-test")
