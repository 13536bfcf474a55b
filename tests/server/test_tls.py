"""HTTPS, with a certificate that is good for nothing else (tests/server/tls)."""

import ssl
from pathlib import Path

import httpx
import pytest

from slipstream.cli.main import main
from slipstream.engine.echo import EchoEngine
from slipstream.errors import ConfigError
from slipstream.server.listen import check_tls
from tests.server.live import live
from tests.server.serving import byte_tokenizer

FOLDER = Path(__file__).with_name("tls")
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"


@pytest.mark.anyio
async def test_https():
    engine = EchoEngine(byte_tokenizer().decode)
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with live(engine, tls_certificate=CERTIFICATE, tls_key=KEY) as server:
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
