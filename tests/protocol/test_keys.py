"""One secret, the same keys everywhere; what cannot be used is refused, not replaced."""

from __future__ import annotations

import logging

import pytest
import zmq

from taskd.protocol import keys


def test_the_keys_of_a_secret_never_change():
    # agents and managers of different releases must agree: changing these values breaks jobs during an upgrade
    assert keys.derive(b"secret").server_public == SERVER
    assert keys.derive(b"secret").client_public == CLIENT


SERVER = b"N*5-$3[q&As0YsLSxbO+fU!@*m+dD{iQ<0%(59!G"
CLIENT = b"q7EmA+b.ihUCZ>.LZJN$jerFBV9cqBwh<I7@l{mc"


def test_pairs_fit_and_differ():
    k = keys.derive(b"secret")
    assert zmq.curve_public(k.server_secret) == k.server_public
    assert zmq.curve_public(k.client_secret) == k.client_public
    assert len({k.server_secret, k.client_secret, k.server_public, k.client_public}) == 4
    assert keys.derive(b"secret2") != k


def test_secrets_are_not_printed():
    k = keys.derive(b"secret")
    assert k.server_secret.decode() not in repr(k) and k.client_secret.decode() not in repr(k)


def test_where_the_secret_comes_from(tmp_path):
    file = tmp_path / "secret"
    file.write_text("from the file\n")
    assert keys.for_job("j", {"TASKD_SECRET": "x", "TASKD_SECRET_FILE": str(file)}) == keys.derive(b"x")
    assert keys.for_job("j", {"TASKD_SECRET_FILE": str(file)}) == keys.derive(b"from the file")
    assert keys.for_job("j", {"TASKD_SECRET": "from the file"}) == keys.derive(b"from the file")


def test_without_a_secret_the_job_id_is_used_with_one_warning(caplog):
    keys._warned.discard("a job without a secret")
    first = keys.for_job("a job without a secret", {})
    assert first == keys.for_job("a job without a secret", {}) != keys.for_job("another", {"TASKD_SECRET": "x"})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "a job without a secret" in record.getMessage() and "set TASKD_SECRET" in record.getMessage()
    # a job id is no secret: whoever sets it as one must get other keys than those everybody can guess
    assert first != keys.derive(b"a job without a secret")


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 70_000])
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content):
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(keys.BadSecret, match="TASKD_SECRET_FILE") as caught:
        keys.for_job("j", {"TASKD_SECRET_FILE": str(file)})
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"TASKD_SECRET": ""},
        {"TASKD_SECRET": "  "},
        {"TASKD_SECRET_FILE": ""},
        {"TASKD_SECRET_FILE": "/"},
        {"TASKD_SECRET_FILE": "a\0b"},
    ],
)
def test_set_but_empty_is_refused(environ):
    with pytest.raises(keys.BadSecret, match="set TASKD_SECRET|give it a value"):
        keys.for_job("j", environ)
