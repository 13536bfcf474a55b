import pytest

from slipstream.errors import ConfigError
from slipstream.server.errors import RateLimitError
from slipstream.server.key_limits import KeyLimits
from slipstream.server.keys import ApiKey, find_key, parse_keys, read_keys

pytestmark = pytest.mark.fast


def test_lines_of_a_key_file():
    keys = parse_keys(["# who may ask", "", "ann s3cret", "lonely-secret", "  bob   b0b  "], "keys.txt")
    assert [key.name for key in keys] == ["ann", "key-2", "bob"]
    assert find_key(keys, "s3cret") == keys[0]
    assert find_key(keys, "lonely-secret") == keys[1]
    assert find_key(keys, "b0b") == keys[2]
    for other in ("", "S3cret", "s3cret ", "s3cre", "ann s3cret", "\udcff", "ü"):
        assert find_key(keys, other) is None


def test_secrets_are_not_shown():
    key = ApiKey.of("ann", "s3cret")
    assert "s3cret" not in repr(key)
    assert b"s3cret" not in key.digest


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["ann two w0rds"], "line 1"),
        (["ann one", "ann two"], "line 2"),
        (["ann one", "bob one"], "twice"),
        (["ann sécret"], "ASCII"),
        (["ann se\x01cret"], "ASCII"),
    ],
)
def test_bad_lines_are_refused_without_showing_the_secret(lines, part):
    with pytest.raises(ConfigError, match=part) as caught:
        parse_keys(lines, "keys.txt")
    assert lines[-1].split()[-1] not in str(caught.value)


def test_file_and_environment(tmp_path):
    path = tmp_path / "keys"
    path.write_text("ann one\n")
    assert [key.name for key in read_keys(path, "bob two, three")] == ["ann", "bob", "key-2"]
    assert read_keys(None, None) == ()
    with pytest.raises(ConfigError, match="same key"):
        read_keys(path, "one")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none", None)


def test_a_file_without_keys_does_not_open_the_server(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# nobody yet\n")
    with pytest.raises(ConfigError, match="no API key"):
        read_keys(path, None)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_concurrency_of_a_key():
    limits = KeyLimits(Clock(), concurrency=2)
    limits.enter("ann")
    limits.enter("ann")
    limits.enter("bob")
    with pytest.raises(RateLimitError, match="2 requests open"):
        limits.enter("ann")
    limits.leave("ann")
    limits.enter("ann")


def test_rate_of_a_key():
    clock = Clock()
    limits = KeyLimits(clock, per_minute=30)
    for _ in range(30):
        limits.enter("ann")
    with pytest.raises(RateLimitError, match="30 requests per minute") as caught:
        limits.enter("ann")
    assert caught.value.retry_after == pytest.approx(2.0)
    limits.enter("bob")
    clock.now = 2.0
    limits.enter("ann")
    with pytest.raises(RateLimitError):
        limits.enter("ann")
    clock.now = 1000.0
    for _ in range(30):
        limits.enter("ann")  # a minute's worth, not the whole idle time's
    with pytest.raises(RateLimitError):
        limits.enter("ann")


def test_a_slow_rate_lets_one_through():
    clock = Clock()
    limits = KeyLimits(clock, per_minute=0.5)
    limits.enter("ann")
    with pytest.raises(RateLimitError) as caught:
        limits.enter("ann")
    assert caught.value.retry_after == pytest.approx(120.0)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_keys(tmp_path / "none", None)
    assert str(caught.value).startswith(
        f"{tmp_path / 'none'}: the file of API keys cannot be read: No such file or directory. Put one NAME SECRET"
    )
    (tmp_path / "latin").write_bytes(b"ann s\xe9cret")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_keys(tmp_path / "latin", None)
