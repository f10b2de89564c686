import pickle
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.aws import AwsOptionError, AwsOptions
from penstock.aws._options import _OPTION_NAMES

KEYS = {"awsAccessKeyId": "AKIA", "awsSecretAccessKey": "hush"}
ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"awsAccessKeyId": "AKIA"}, "awsSecretAccessKey"),
        ({"awsSecretAccessKey": "hush"}, "awsAccessKeyId"),
        ({"awsSessionToken": "hush"}, "awsAccessKeyId"),
        ({"roleExternalId": "id"}, "roleArn"),
        ({"webIdentityTokenFile": "token"}, "roleArn"),
        ({**KEYS, "awsProfile": "work"}, "awsProfile"),
        ({"endpointUrl": "localhost:4567"}, "endpointUrl"),
        ({"roleArn": ROLE, "stsEndpointUrl": "ftp://host"}, "stsEndpointUrl"),
        ({"roleArn": "admin"}, "roleArn"),
        ({"roleArn": f"{ROLE},admin"}, "roleArn"),
        ({"roleArn": f"{ROLE},"}, "roleArn"),
    ],
)
def test_a_half_or_contradictory_option_is_named(options: dict[str, str], named: str) -> None:
    """The error says which option is missing or wrong, by the name that the user wrote or has to write."""
    with pytest.raises(AwsOptionError) as error:
        AwsOptions.from_mapping(options)
    assert error.value.option == named


@pytest.mark.parametrize("role", [f"{ROLE},", f"{ROLE},,{ROLE}", ","])
def test_an_empty_role_beside_a_comma_is_an_error(role: str) -> None:
    """Its text alone would say nothing."""
    with pytest.raises(AwsOptionError, match=r"roleArn.* has an empty ARN beside a comma"):
        AwsOptions(role_arn=role)


@pytest.mark.parametrize("role", ["", "  "])
def test_a_blank_role_counts_as_not_set(role: str) -> None:
    """As of a variable that is blank."""
    assert AwsOptions(role_arn=role).role_arns == ()


def test_names_are_read_in_any_case() -> None:
    """Spark hands option names over in lower case; options can be pickled."""
    options = AwsOptions.from_mapping({name.lower(): value for name, value in {**KEYS, "region": "eu-west-1"}.items()})
    assert (options.region, options.access_key_id) == ("eu-west-1", KEYS["awsAccessKeyId"])
    assert pickle.loads(pickle.dumps(options)) == options


def test_secrets_are_not_in_the_representation() -> None:
    """Keys, tokens and external ids never reach a log by way of `repr`."""
    options = AwsOptions(
        access_key_id="AKIA", secret_access_key="hush", session_token="hush", role_arn=ROLE, role_external_id="hush"
    )
    assert "hush" not in repr(options)


def give_keys() -> None:
    """What a user may mean by a provider of credentials."""


@pytest.mark.parametrize("value", [b"text", 0.5, give_keys])
@pytest.mark.parametrize("field", fields(AwsOptions), ids=lambda field: field.name)
def test_a_value_of_the_wrong_type_is_named(field: "Field[Any]", value: Any) -> None:
    """It would fail in a call to AWS, far from here."""
    with pytest.raises(AwsOptionError) as caught:
        AwsOptions(**{field.name: value})
    assert caught.value.option == _OPTION_NAMES.get(field.name, field.name)


def test_a_function_as_provider_is_an_error_with_the_correct_form() -> None:
    """Its place is given, because each process of Spark imports it."""
    with pytest.raises(AwsOptionError, match=r"package\.module:callable") as caught:
        AwsOptions(credentials_provider=give_keys)  # type: ignore[arg-type]  # the mistake
    assert caught.value.option == "credentialsProvider"


@pytest.mark.parametrize("tags", [("team",), (("team",),), (("team", 5),), [5]])
def test_tags_that_are_no_pairs_are_named(tags: Any) -> None:
    """Of text."""
    with pytest.raises(AwsOptionError) as caught:
        AwsOptions(role_arn=ROLE, role_session_tags=tags)
    assert caught.value.option == "roleSessionTags"


def test_files_may_be_paths() -> None:
    """As well as text."""
    options = AwsOptions(
        role_arn=ROLE,
        ca_bundle=Path("ca.pem"),  # type: ignore[arg-type]  # of users without mypy
        web_identity_token_file=Path("token"),  # type: ignore[arg-type]
    )
    assert options.role_arns == (ROLE,)
