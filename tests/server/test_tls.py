"""HTTPS, with a certificate that is good for nothing else (tests/server/tls)."""

import ssl
from pathlib import Path

import httpx
import pytest

from slipstream.cli.main import main
from slipstream.engine.echo import EchoEngine
from slipstream.errors import ConfigError
from slipstream.server.listen import check_tls, read_password
from slipstream.server.options import ServerOptions
from tests.server.live import live
from tests.server.serving import byte_tokenizer

FOLDER = Path(__file__).with_name("tls")
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"
ENCRYPTED, PASSWORD = FOLDER / "encrypted_key.pem", "open sesame"


@pytest.mark.anyio
@pytest.mark.parametrize(("key", "password"), [(KEY, None), (ENCRYPTED, PASSWORD)])
async def test_https(key: Path, password: str | None):
    engine = EchoEngine(byte_tokenizer().decode)
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with live(engine, tls_certificate=CERTIFICATE, tls_key=key, tls_key_password=password) as server:
        url = server.url.replace("http://", "https://")
        async with httpx.AsyncClient(base_url=url, verify=context) as client:
            answer = await client.post("/v1/completions", json={"prompt": "abc"})
    assert answer.json()["choices"][0]["text"] == "abc"


@pytest.mark.fast
def test_files_that_are_none(tmp_path: Path, capsys):
    check_tls(None, None)
    check_tls(CERTIFICATE, KEY)
    for certificate, key in ((tmp_path / "none", KEY), (KEY, CERTIFICATE), (CERTIFICATE, CERTIFICATE)):
        with pytest.raises(ConfigError, match="cannot be used for TLS"):
            check_tls(certificate, key)
    assert main(["serve", "m", "--tls-certificate", str(tmp_path / "none"), "--tls-key", str(KEY)]) == 2
    assert "cannot be used for TLS" in capsys.readouterr().err


@pytest.mark.fast
def test_what_is_wrong_with_the_files_is_said(tmp_path: Path):
    damaged = tmp_path / "damaged"
    damaged.write_text(KEY.read_text()[:100] + "\n-----END PRIVATE KEY-----\n")
    cases = (
        (tmp_path / "none", KEY, None, f"{tmp_path / 'none'}: cannot be used for TLS: cannot be read: No such file"),
        (CERTIFICATE, CERTIFICATE, None, f"{CERTIFICATE}: cannot be used for TLS: holds no private key"),
        (KEY, KEY, None, f"{KEY}: cannot be used for TLS: holds no certificate"),
        (CERTIFICATE, damaged, None, "one of the files is damaged"),
        (CERTIFICATE, ENCRYPTED, None, "the key is encrypted. Name a file with its password"),
        (CERTIFICATE, ENCRYPTED, "wrong", "the password does not open the key"),
    )
    for certificate, key, password, said in cases:
        with pytest.raises(ConfigError) as refused:
            check_tls(certificate, key, password)
        assert said in str(refused.value)


@pytest.mark.fast
def test_a_key_of_another_certificate():
    with pytest.raises(ConfigError, match="the key belongs to another certificate"):
        check_tls(CERTIFICATE, FOLDER / "other_key.pem")


@pytest.mark.fast
def test_the_password_of_a_key(tmp_path: Path, capsys):
    check_tls(CERTIFICATE, ENCRYPTED, PASSWORD)
    file = tmp_path / "password"
    for text, said in ((None, "cannot be read"), ("", "in one line"), ("a\nb", "in one line"), ("wrong", "for TLS")):
        if text is not None:
            file.write_text(text)
        options = ["--tls-certificate", str(CERTIFICATE), "--tls-key", str(ENCRYPTED), "--tls-key-password", str(file)]
        assert main(["serve", "m", *options]) == 2
        assert said in capsys.readouterr().err
    file.write_bytes(PASSWORD.encode() + b"\r\n")
    assert read_password(file) == PASSWORD
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_password(file)
    with pytest.raises(ConfigError, match="cannot be used for TLS"):
        check_tls(CERTIFICATE, ENCRYPTED)  # and nobody is asked on the terminal
    with pytest.raises(ConfigError, match="tls_key_password"):
        ServerOptions(tls_key_password=PASSWORD)
    options = ServerOptions(tls_certificate=CERTIFICATE, tls_key=ENCRYPTED, tls_key_password=PASSWORD)
    assert PASSWORD not in f"{options} {options.shown()}"
