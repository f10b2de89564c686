import pickle

import pytest

from penstock.aws import AwsOptionError, AwsOptions

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
def test_an_empty_role_beside_a_comma_is_told_as_such(role: str) -> None:
    """Its text alone would say nothing."""
    with pytest.raises(AwsOptionError, match=r"roleArn.* has an empty ARN beside a comma"):
        AwsOptions(role_arn=role)


@pytest.mark.parametrize("role", ["", "  "])
def test_a_blank_role_is_none(role: str) -> None:
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
